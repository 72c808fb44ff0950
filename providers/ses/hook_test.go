package ses_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/ses"
)

func TestHook(t *testing.T) {
	t.Parallel()
	s := newSNS(t)
	providertest.RunHook(t, providertest.HookSuite{
		Hook: s.hook(t), Webhooks: s.SESWebhooks,
		// Members around the event, such as the URL to unsubscribe, are not signed.
		Covers: providertest.CoversEvents,
	})
}

func TestHookPayloads(t *testing.T) {
	t.Parallel()
	s := newSNS(t)
	h := s.hook(t)
	sent := time.Date(2026, 3, 1, 11, 59, 0, 645e6, time.UTC)
	about := func(kind providers.EventType, detail string, recipients ...string) []providers.Event {
		var list []providers.Event
		for _, r := range recipients {
			list = append(list, providers.Event{
				Type: kind, Reference: "key-1", ProviderMessageID: "010001-e9aedb9a-000000", Recipient: r,
				OccurredAt: noon.Add(250 * time.Millisecond), Detail: detail,
			})
		}
		return list
	}
	whole := func(kind providers.EventType, detail string) []providers.Event {
		list := about(kind, detail, "")
		list[0].OccurredAt = sent
		return list
	}
	hard := func(list []providers.Event) []providers.Event {
		for i := range list {
			list[i].Permanent = true
		}
		return list
	}
	untagged := about(providers.EventDelivered, "250 ok", "ann@example.org")
	untagged[0].Reference = ""
	const ann, bob = "ann@example.org", "bob@example.org"
	providertest.RunHookPayloads(t, "testdata/hook.json", map[string][]providers.Event{
		"Send":                        whole(providers.EventAccepted, ""),
		"Delivery":                    about(providers.EventDelivered, "250 ok", ann, bob),
		"DeliveryDelay":               about(providers.EventDelayed, "TransientCommunicationFailure: 4.4.1: smtp; 421 4.4.1 try later", ann),
		"Bounce":                      hard(about(providers.EventBounced, "Permanent: General: 5.1.1: smtp; 550 5.1.1 user unknown", ann, bob)),
		"Bounce/Suppressed":           hard(about(providers.EventBounced, "Permanent: OnAccountSuppressionList", ann)),
		"Bounce/Transient":            about(providers.EventBounced, "Transient: MailboxFull", ann),
		"Bounce/Undetermined":         about(providers.EventBounced, "Undetermined: Undetermined", ann),
		"Complaint":                   about(providers.EventComplained, "abuse", ann),
		"Complaint/not spam":          nil,
		"Complaint/suppressed":        about(providers.EventBounced, "OnAccountSuppressionList", ann),
		"Reject":                      whole(providers.EventBounced, "Bad content"),
		"Rendering Failure":           whole(providers.EventBounced, "No such attribute."),
		"Open":                        about(providers.EventOpened, "", ann),
		"Open/of several":             about(providers.EventOpened, "", ""),
		"Click":                       about(providers.EventClicked, "https://example.com/receipt", ann),
		"Subscription":                about(providers.EventUnsubscribed, "UnsubscribeHeader", ann),
		"Subscription/of a topic":     nil,
		"Notification of an identity": untagged,
		"Succeeded":                   nil,
	}, func(t *testing.T, message []byte) ([]providers.Event, error) {
		t.Helper()
		return h.ParseEvents(t.Context(), nil, s.sign(t, s.envelope(map[string]string{"Message": string(message)})), noon)
	})
}

// Both versions of signatures, with and without a subject, and the messages that
// report no event.
func TestHookSignatures(t *testing.T) {
	t.Parallel()
	s := newSNS(t)
	h := s.hook(t)
	for name, changes := range map[string]map[string]string{
		"version 1": {"SignatureVersion": "1"}, "version 2": {"SignatureVersion": "2"},
		"validated":          {"Message": "Successfully validated SNS topic for Amazon SES event publishing."},
		"subscription ended": {"Type": "UnsubscribeConfirmation", "SubscribeURL": origin + "/?Action=ConfirmSubscription", "Token": "t"},
	} {
		body := s.sign(t, s.envelope(changes))
		if events, err := h.ParseEvents(t.Context(), nil, body, noon); err != nil || events != nil {
			t.Errorf("%s: %v, %v", name, events, err)
		}
	}
	m := s.envelope(nil)
	delete(m, "Subject")
	if _, err := h.ParseEvents(t.Context(), nil, s.sign(t, m), noon); err != nil {
		t.Errorf("without a subject: %v", err)
	}
	if got := s.requests(); !slices.Equal(got, []string{"GET " + certificateURL}) {
		t.Errorf("fetched %v, want the certificate once", got)
	}
	// Bits of the last character that no byte is made of are not ignored.
	body := s.sign(t, s.envelope(nil))
	at := bytes.Index(body, []byte(`==","SignatureVersion`)) - 1
	body[at]++
	if _, err := h.ParseEvents(t.Context(), nil, body, noon); !errors.Is(err, providers.ErrUnverified) {
		t.Errorf("another last character: %v", err)
	}
}

// What must not be taken for SNS', whoever signed it. Nothing is fetched from
// anywhere else.
func TestHookRefuses(t *testing.T) {
	t.Parallel()
	s := newSNS(t)
	for name, changes := range map[string]map[string]string{
		"wrong topic":                {"TopicArn": "arn:aws:sns:us-east-1:123456789012:another"},
		"topic of another account":   {"TopicArn": "arn:aws:sns:us-east-1:999999999999:outboxd-fake"},
		"version 3":                  {"SignatureVersion": "3"},
		"no version":                 {"SignatureVersion": ""},
		"another type":               {"Type": "Surprise"},
		"no time":                    {"Timestamp": ""},
		"stale":                      {"Timestamp": "2026-03-01T11:54:59.000Z"},
		"future":                     {"Timestamp": "2026-03-01T12:05:01.000Z"},
		"http certificate":           {"SigningCertURL": strings.Replace(certificateURL, "https", "http", 1)},
		"certificate elsewhere":      {"SigningCertURL": "https://sns.us-east-1.amazonaws.com.example.org/SimpleNotificationService-0.pem"},
		"certificate of a bucket":    {"SigningCertURL": "https://sns.s3.amazonaws.com/SimpleNotificationService-0.pem"},
		"certificate elsewhere @":    {"SigningCertURL": "https://sns.us-east-1.amazonaws.com@example.org/SimpleNotificationService-0.pem"},
		"certificate with user":      {"SigningCertURL": "https://user@sns.us-east-1.amazonaws.com/SimpleNotificationService-0.pem"},
		"certificate at a port":      {"SigningCertURL": "https://sns.us-east-1.amazonaws.com:8443/SimpleNotificationService-0.pem"},
		"certificate of a region":    {"SigningCertURL": "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0.pem"},
		"certificate of China":       {"SigningCertURL": "https://sns.us-east-1.amazonaws.com.cn/SimpleNotificationService-0.pem"},
		"certificate from the API":   {"SigningCertURL": origin + "/?Action=GetEndpointAttributes&x=.pem"},
		"certificate with a query":   {"SigningCertURL": certificateURL + "?x"},
		"certificate with a hash":    {"SigningCertURL": certificateURL + "#x"},
		"certificate in a folder":    {"SigningCertURL": origin + "/a/../SimpleNotificationService-0.pem"},
		"certificate at no address":  {"SigningCertURL": ""},
		"certificate in upper case":  {"SigningCertURL": strings.Replace(certificateURL, "sns", "SNS", 1)},
		"certificate, escaped":       {"SigningCertURL": origin + "/SimpleNotificationService-0%2Epem"},
		"certificate, other scheme":  {"SigningCertURL": "file:///SimpleNotificationService-0.pem"},
		"certificate, opaque":        {"SigningCertURL": "https:sns.us-east-1.amazonaws.com"},
		"certificate, empty query":   {"SigningCertURL": certificateURL + "?"},
		"certificate, not of an URL": {"SigningCertURL": "\x7f"},
	} {
		body := s.sign(t, s.envelope(changes))
		if events, err := s.hook(t).ParseEvents(t.Context(), nil, body, noon); !errors.Is(err, providers.ErrUnverified) {
			t.Errorf("%s: %v, %v", name, events, err)
		}
	}
	// The event as it is, which is what raw message delivery posts.
	raw := http.Header{"X-Amz-Sns-Rawdelivery": {"true"}, "X-Amz-Sns-Topic-Arn": {s.TopicARN}}
	if _, err := s.hook(t).ParseEvents(t.Context(), raw, []byte(`{"eventType":"Send"}`), noon); !errors.Is(err, providers.ErrUnverified) {
		t.Errorf("raw message delivery: %v", err)
	}
	s.checkDials(t, "refused messages")
	// Signed with a key that is not the certificate's.
	other := newForger(t)
	if _, err := s.hook(t).ParseEvents(t.Context(), nil, other.sign(t, s.envelope(nil)), noon); !errors.Is(err, providers.ErrUnverified) {
		t.Errorf("another key: %v", err)
	}
	if got := s.requests(); !slices.Equal(got, []string{"GET " + certificateURL}) {
		t.Errorf("fetched %v", got)
	}
}

func TestHookConfirmsSubscription(t *testing.T) {
	t.Parallel()
	s := newSNS(t)
	subscribe := origin + "/?Action=ConfirmSubscription&TopicArn=" + s.TopicARN + "&Token=a-secret-token"
	confirm, err := s.Confirm(subscribe, noon)
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.hook(t).ParseEvents(t.Context(), confirm.Header, confirm.Body, noon)
	if err != nil || events != nil {
		t.Errorf("%v, %v", events, err)
	}
	if got := s.requests(); !slices.Equal(got, []string{"GET " + certificateURL, "GET " + subscribe}) {
		t.Errorf("fetched %v", got)
	}
}

// A confirmation never leads anywhere else, and one that failed is answered such
// that SNS tries again.
func TestHookRefusesToSubscribe(t *testing.T) {
	t.Parallel()
	topic := newSNS(t).TopicARN
	good := origin + "/?Action=ConfirmSubscription&TopicArn=" + topic + "&Token=a-secret-token"
	for name, c := range map[string]struct {
		url    string
		answer http.HandlerFunc
		gets   int
		later  bool
	}{
		"http":              {url: strings.Replace(good, "https", "http", 1)},
		"elsewhere":         {url: strings.Replace(good, "us-east-1.amazonaws.com", "example.org", 1)},
		"inside":            {url: "https://169.254.169.254/?Action=ConfirmSubscription&TopicArn=" + topic},
		"another action":    {url: strings.Replace(good, "ConfirmSubscription", "Publish", 1)},
		"another topic":     {url: strings.Replace(good, topic, topic+"2", 1)},
		"redirect":          {url: good, answer: redirectTo("https://example.org/"), gets: 1},
		"redirect to SNS":   {url: good, answer: redirectTo(good), gets: 1},
		"refused":           {url: good, answer: status(http.StatusBadRequest), gets: 1},
		"SNS out of order":  {url: good, answer: status(http.StatusServiceUnavailable), gets: 1, later: true},
		"SNS is throttling": {url: good, answer: status(http.StatusTooManyRequests), gets: 1, later: true},
	} {
		s := newSNS(t)
		h := s.hook(t)
		if _, err := h.ParseEvents(t.Context(), nil, s.sign(t, s.envelope(nil)), noon); err != nil { // the certificate is there
			t.Fatal(err)
		}
		s.answer = c.answer
		body := s.sign(t, s.envelope(map[string]string{"Type": "SubscriptionConfirmation", "SubscribeURL": c.url, "Token": "a-secret-token"}))
		_, err := h.ParseEvents(t.Context(), nil, body, noon)
		if err == nil || errors.Is(err, providers.ErrUnverified) || c.later != errors.Is(err, providers.ErrHookUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "a-secret-token") {
			t.Errorf("%s: the error shows the token: %v", name, err)
		}
		s.checkDials(t, name)
		if got := s.requests()[1:]; len(got) != c.gets {
			t.Errorf("%s: fetched %v", name, got)
		}
	}
}

func TestHookCertificates(t *testing.T) {
	t.Parallel()
	s := newSNS(t)
	ofEC, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := s.certificate(t, nil, nil)
	named := func(name string) []byte {
		return s.certificate(t, func(c *x509.Certificate) { c.Subject.CommonName = name }, nil)
	}
	for name, c := range map[string]struct {
		file []byte
		good bool
	}{
		"good":              {good, true},
		"of a region":       {named("sns-signing.me-south-1.amazonaws.com"), true},
		"of China":          {named("sns-cn-north-1.amazonaws.com.cn"), true},
		"of another name":   {named("ses.amazonaws.com"), false},
		"of a longer name":  {named("sns.amazonaws.com.example.org"), false},
		"of a similar name": {named("snsxamazonaws.com"), false},
		"expired":           {s.certificate(t, func(c *x509.Certificate) { c.NotAfter = noon.Add(-time.Second) }, nil), false},
		"not valid yet":     {s.certificate(t, func(c *x509.Certificate) { c.NotBefore = noon.Add(time.Second) }, nil), false},
		"of an EC key":      {s.certificate(t, nil, &ofEC.PublicKey), false},
		"inside a document": {append([]byte("<Data>\n"), good...), false},
		"before a document": {append(slices.Clone(good), "</Data>"...), false},
		"another issuer":    {append(slices.Clone(good), newForger(t).Certificate...), false},
		"nothing":           {nil, false},
		"not a certificate": {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), false},
		"a key":             {pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}), false},
	} {
		s.answer = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(c.file) }
		_, err := s.hook(t).ParseEvents(t.Context(), nil, s.sign(t, s.envelope(nil)), noon)
		if c.good != (err == nil) || !c.good && !errors.Is(err, providers.ErrUnverified) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What cannot be fetched now says nothing about the request; a redirect does.
func TestHookCertificateUnavailable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		later  bool
	}{
		"out of order": {status(http.StatusInternalServerError), true},
		"throttling":   {status(http.StatusTooManyRequests), true},
		"broken off":   {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true},
		"redirect":     {redirectTo(certificateURL), false},
		"gone":         {status(http.StatusForbidden), false},
	} {
		s := newSNS(t)
		s.answer = c.answer
		_, err := s.hook(t).ParseEvents(t.Context(), nil, s.sign(t, s.envelope(nil)), noon)
		if c.later != errors.Is(err, providers.ErrHookUnavailable) || c.later == errors.Is(err, providers.ErrUnverified) {
			t.Errorf("%s: %v", name, err)
		}
		if got := s.requests(); len(got) != 1 {
			t.Errorf("%s: fetched %v", name, got)
		}
	}
	s := newSNS(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.hook(t).ParseEvents(gone, nil, s.sign(t, s.envelope(nil)), noon); !errors.Is(err, providers.ErrHookUnavailable) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// A certificate is fetched once a day, and by one request at a time; made-up
// addresses are looked at ten times a minute.
func TestHookKeepsCertificates(t *testing.T) {
	t.Parallel()
	s := newSNS(t)
	h := s.hook(t)
	var all sync.WaitGroup
	for range 20 {
		body := s.sign(t, s.envelope(nil))
		all.Go(func() {
			if _, err := h.ParseEvents(t.Context(), nil, body, noon); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := s.requests(); len(got) != 1 {
		t.Errorf("fetched %d times", len(got))
	}
	for i := range 30 {
		forged := s.envelope(map[string]string{"SigningCertURL": origin + "/SimpleNotificationService-" + strings.Repeat("f", i+1) + ".pem"})
		if _, err := h.ParseEvents(t.Context(), nil, s.sign(t, forged), noon); err == nil {
			t.Error("a certificate that is not there")
		}
	}
	if got := s.requests(); len(got) != 10 {
		t.Errorf("fetched %d times within a minute", len(got))
	}
	if _, err := h.ParseEvents(t.Context(), nil, s.sign(t, s.envelope(nil)), noon); err != nil {
		t.Errorf("the certificate that is kept: %v", err)
	}
	tomorrow := noon.Add(24 * time.Hour)
	later := s.envelope(map[string]string{"Timestamp": tomorrow.Format(time.RFC3339)})
	if _, err := h.ParseEvents(t.Context(), nil, s.sign(t, later), tomorrow); err != nil {
		t.Error(err)
	}
	if got := s.requests(); len(got) != 11 {
		t.Errorf("fetched %d times, want once more the next day", len(got))
	}
}

// A message that is SNS' and cannot be understood is not called forged.
func TestHookUnreadable(t *testing.T) {
	t.Parallel()
	s := newSNS(t)
	h := s.hook(t)
	for _, message := range []string{
		"", "hello", "[]", `{"eventType":"Send"}`, `{"eventType":"Send","mail":{"timestamp":"today"}}`,
		`{"eventType":"Bounce","bounce":{"bouncedRecipients":"ann@example.org"}}`,
	} {
		events, err := h.ParseEvents(t.Context(), nil, s.sign(t, s.envelope(map[string]string{"Message": message})), noon)
		if err == nil || errors.Is(err, providers.ErrUnverified) || events != nil {
			t.Errorf("%s: %v, %v", message, events, err)
		}
	}
}

// Two topics while one replaces another, China's own domain, and a service that
// stands in for SNS.
func TestHookConfig(t *testing.T) {
	t.Parallel()
	s := newSNS(t)
	const other = "arn:aws:sns:us-east-1:123456789012:next"
	two, err := ses.NewHook(ses.HookConfig{TopicARNs: []string{s.TopicARN, " " + other}, HTTPClient: s.client})
	if err != nil {
		t.Fatal(err)
	}
	for _, arn := range []string{s.TopicARN, other} {
		if _, err := two.ParseEvents(t.Context(), nil, s.sign(t, s.envelope(map[string]string{"TopicArn": arn})), noon); err != nil {
			t.Error(err)
		}
	}
	for arn, endpoint := range map[string]string{
		"arn:aws-cn:sns:cn-north-1:123456789012:t": "", s.TopicARN: "https://fake.example.org:8443",
	} {
		base := endpoint
		if base == "" {
			base = "https://sns.cn-north-1.amazonaws.com.cn"
		}
		h, err := ses.NewHook(ses.HookConfig{TopicARNs: []string{arn}, EndpointURL: endpoint, HTTPClient: s.client})
		if err != nil {
			t.Fatal(err)
		}
		s.answer = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(s.Certificate) }
		body := s.sign(t, s.envelope(map[string]string{"TopicArn": arn, "SigningCertURL": base + "/SimpleNotificationService-1.pem"}))
		if _, err := h.ParseEvents(t.Context(), nil, body, noon); err != nil {
			t.Errorf("%s: %v", base, err)
		}
		if _, err := h.ParseEvents(t.Context(), nil, s.sign(t, s.envelope(map[string]string{"TopicArn": arn})), noon); !errors.Is(err, providers.ErrUnverified) {
			t.Errorf("a certificate that is not at %s: %v", base, err)
		}
	}
	for name, c := range map[string]ses.HookConfig{
		"no topic":         {},
		"an empty one":     {TopicARNs: []string{s.TopicARN, ""}},
		"no ARN":           {TopicARNs: []string{"outboxd"}},
		"of a queue":       {TopicARNs: []string{"arn:aws:sqs:us-east-1:123456789012:t"}},
		"a region in it":   {TopicARNs: []string{"arn:aws:sns:evil.example.org/:123456789012:t"}},
		"two regions":      {TopicARNs: []string{s.TopicARN, "arn:aws:sns:eu-west-1:123456789012:t"}},
		"endpoint no URL":  {TopicARNs: []string{s.TopicARN}, EndpointURL: "127.0.0.1:1"},
		"endpoint of file": {TopicARNs: []string{s.TopicARN}, EndpointURL: "file:///x"},
	} {
		if h, err := ses.NewHook(c); err == nil {
			t.Errorf("%s: %v", name, h)
		}
	}
}

func FuzzHook(f *testing.F) {
	f.Add(`{"eventType":"Bounce","mail":{"tags":{"outboxd_attempt":["k"]}},"bounce":{"bounceType":"Permanent","timestamp":"2026-03-01T12:00:00Z","bouncedRecipients":[{"emailAddress":"a\u0000@b"}]}}`)
	f.Add(`{"notificationType":"Send","mail":{"timestamp":"2026-03-01T12:00:00Z","messageId":"\n"}}`)
	f.Add(string(providertest.DeepJSON(`{"eventType":"Bounce","mail":`)))
	s := newSNS(f)
	h := s.hook(f)
	f.Fuzz(func(t *testing.T, message string) {
		events, err := h.ParseEvents(t.Context(), nil, s.sign(t, s.envelope(map[string]string{"Message": strings.ToValidUTF8(message, "?")})), noon)
		if errors.Is(err, providers.ErrUnverified) {
			t.Error(err)
		}
		providertest.CheckHookEvents(t, events, err)
	})
}

// FuzzHookEnvelope feeds what anybody can post.
func FuzzHookEnvelope(f *testing.F) {
	s := newSNS(f)
	f.Add(s.sign(f, s.envelope(nil)))
	f.Add([]byte(`{"Type":"Notification","Signature":"AA=="}`))
	h := s.hook(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		events, err := h.ParseEvents(t.Context(), nil, body, noon)
		providertest.CheckHookEvents(t, events, err)
	})
}
