package fakeesp

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sendgrid/sendgrid-go/helpers/eventwebhook"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outboxd/outboxd/providers/providertest"
)

// posting is a webhook as its receiver got it.
type posting struct {
	path   string
	header http.Header
	body   []byte
}

// receiver takes webhooks and answers each with what the function says.
func receiver(t *testing.T, answer func(n int) int) (url string, got <-chan posting) {
	t.Helper()
	list := make(chan posting, 1000)
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		list <- posting{r.URL.Path, r.Header, body}
		n++ // requests come one after the other
		w.WriteHeader(answer(n))
	}))
	t.Cleanup(server.Close)
	return server.URL, list
}

func fine(int) int { return http.StatusNoContent }

// reported is an event in a webhook: what a receiver needs of it.
type reported struct{ id, kind, reference, recipient string }

// readers verify a webhook with an implementation that is not the builder's, by
// what the fake prints, and return its events.
var readers = map[string]func(t *testing.T, s *Server, p posting) ([]reported, error){
	"sendgrid": readSendGrid,
	"resend":   readResend,
	"postmark": readPostmark,
	"mailgun":  readMailgun,
	"ses":      readSES,
}

var errSignature = errors.New("the signature is wrong")

func readSendGrid(t *testing.T, s *Server, p posting) ([]reported, error) {
	t.Helper()
	key, err := eventwebhook.ConvertPublicKeyBase64ToECDSA(variable(t, s.WebhookEnvironment(), "SENDGRID_WEBHOOK_PUBLIC_KEY"))
	if err != nil {
		return nil, err
	}
	ok, err := eventwebhook.VerifySignature(key, p.body,
		p.header.Get(eventwebhook.VerificationHTTPHeader), p.header.Get(eventwebhook.TimestampHTTPHeader))
	if err != nil || !ok {
		return nil, errors.Join(errSignature, err)
	}
	var batch []struct {
		Email, Event string
		ID           string `json:"sg_event_id"`
		Attempt      string `json:"outboxd_attempt"`
	}
	err = json.Unmarshal(p.body, &batch)
	var list []reported
	for _, e := range batch {
		list = append(list, reported{e.ID, e.Event, e.Attempt, e.Email})
	}
	return list, err
}

func readResend(t *testing.T, s *Server, p posting) ([]reported, error) {
	t.Helper()
	verifier, err := standardwebhooks.NewWebhook(variable(t, s.WebhookEnvironment(), "RESEND_WEBHOOK_SECRET"))
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	for _, name := range []string{"id", "timestamp", "signature"} {
		header.Set("Webhook-"+name, p.header.Get("Svix-"+name))
	}
	if err := verifier.Verify(p.body, header); err != nil {
		return nil, err
	}
	var e struct {
		Type string
		Data struct {
			To   []string
			Tags map[string]string
		}
	}
	err = json.Unmarshal(p.body, &e)
	return []reported{{header.Get("Webhook-Id"), e.Type, e.Data.Tags["outboxd_attempt"], e.Data.To[0]}}, err
}

func readPostmark(t *testing.T, s *Server, p posting) ([]reported, error) {
	t.Helper()
	user, password, _ := (&http.Request{Header: p.header}).BasicAuth()
	if user != variable(t, s.WebhookEnvironment(), "POSTMARK_WEBHOOK_USER") ||
		password != variable(t, s.WebhookEnvironment(), "POSTMARK_WEBHOOK_PASSWORD") {
		return nil, errSignature
	}
	var e struct {
		RecordType, MessageID, Email, Recipient string
		Metadata                                map[string]string
	}
	err := json.Unmarshal(p.body, &e)
	return []reported{{e.MessageID + e.RecordType, e.RecordType, e.Metadata["outboxd_attempt"], e.Email + e.Recipient}}, err
}

func readMailgun(t *testing.T, s *Server, p posting) ([]reported, error) {
	t.Helper()
	var body struct {
		Signature struct{ Timestamp, Token, Signature string }
		Event     struct {
			ID, Event, Recipient string
			Variables            map[string]string `json:"user-variables"`
		} `json:"event-data"`
	}
	if err := json.Unmarshal(p.body, &body); err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, []byte(variable(t, s.WebhookEnvironment(), "MAILGUN_WEBHOOK_SIGNING_KEY")))
	_, _ = io.WriteString(mac, body.Signature.Timestamp+body.Signature.Token)
	if body.Signature.Signature != hex.EncodeToString(mac.Sum(nil)) {
		return nil, errSignature
	}
	e := body.Event
	return []reported{{e.ID, e.Event, e.Variables["outboxd_attempt"], e.Recipient}}, nil
}

// readSES gets the certificate from where the envelope says that it is.
func readSES(t *testing.T, s *Server, p posting) ([]reported, error) {
	t.Helper()
	var envelope map[string]string
	if err := json.Unmarshal(p.body, &envelope); err != nil {
		return nil, err
	}
	fields := []string{"Message", "MessageId", "Timestamp", "TopicArn", "Type"}
	if envelope["Type"] == "SubscriptionConfirmation" {
		fields = []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
	}
	var signed strings.Builder
	for _, name := range fields {
		signed.WriteString(name + "\n" + envelope[name] + "\n")
	}
	path, ours := strings.CutPrefix(envelope["SigningCertURL"], s.URL())
	if !ours || envelope["TopicArn"] != variable(t, s.WebhookEnvironment(), "SES_SNS_TOPIC_ARN") {
		return nil, errSignature
	}
	_, text := s.call(t, "GET", path, "")
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("no certificate at " + path)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	signature, err := base64.StdEncoding.DecodeString(envelope["Signature"])
	if err != nil {
		return nil, err
	}
	if err := certificate.CheckSignature(x509.SHA256WithRSA, []byte(signed.String()), signature); err != nil {
		return nil, err
	}
	if envelope["Type"] == "SubscriptionConfirmation" {
		path, _ := strings.CutPrefix(envelope["SubscribeURL"], s.URL())
		if status, _ := s.call(t, "GET", path, ""); status != http.StatusOK {
			return nil, errors.New("the subscription cannot be confirmed")
		}
		return nil, nil
	}
	var record struct {
		EventType string
		Mail      struct {
			Destination []string
			Tags        map[string][]string
		}
	}
	err = json.Unmarshal([]byte(envelope["Message"]), &record)
	return []reported{{
		envelope["MessageId"], record.EventType, record.Mail.Tags["outboxd_attempt"][0], record.Mail.Destination[0],
	}}, err
}

// words are how services call what is reported of mail that was delivered, that
// bounced, and that was complained about.
var words = map[string]struct{ delivered, bounced, complained []string }{
	"sendgrid": {[]string{"delivered", "processed"}, []string{"bounce", "processed"}, []string{"delivered", "processed", "spamreport"}},
	"resend":   {[]string{"email.delivered", "email.sent"}, []string{"email.bounced", "email.sent"}, []string{"email.complained", "email.delivered", "email.sent"}},
	"postmark": {[]string{"Delivery"}, []string{"Bounce"}, []string{"Delivery", "SpamComplaint"}},
	"mailgun":  {[]string{"accepted", "delivered"}, []string{"accepted", "failed"}, []string{"accepted", "complained", "delivered"}},
	"ses":      {[]string{"Delivery", "Send"}, []string{"Bounce", "Send"}, []string{"Complaint", "Delivery", "Send"}},
}

// Each service reports what became of its mail, in its own form, signed: three
// copies of each event, SendGrid's under other ids.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	const copies = 3
	for _, provider := range Providers() {
		if provider == relay {
			continue // reports nothing
		}
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			url, got := receiver(t, fine)
			s := start(t, Options{WebhookURL: url, WebhookCopies: copies, WebhookShuffle: true})
			p := s.adapter(t, provider)
			for address, want := range map[string][]string{
				"a@example.org": words[provider].delivered, "bounce@fake.test": words[provider].bounced,
				"jane+complaint@shop.fake.test": words[provider].complained,
			} {
				n := len(s.accepted())
				if outcome, e := send(t.Context(), t, p, n, address); outcome != "accepted" {
					t.Fatalf("%s: %v", address, e)
				}
				events := receive(t, s, got, provider, copies*len(want))
				ids := map[string]map[string]bool{}
				for _, e := range events {
					if e.recipient != address || e.reference != providertest.Request(n).Key {
						t.Errorf("%+v: about another message", e)
					}
					if ids[e.kind] == nil {
						ids[e.kind] = map[string]bool{}
					}
					ids[e.kind][e.id] = true
				}
				if kinds := slices.Sorted(maps.Keys(ids)); !slices.Equal(kinds, want) {
					t.Errorf("%s: reported %v, want %v", address, kinds, want)
				}
				for kind, seen := range ids {
					if distinct := len(seen); provider == "sendgrid" && distinct != copies || provider != "sendgrid" && distinct != 1 {
						t.Errorf("%s: %d ids", kind, distinct)
					}
				}
			}
		})
	}
}

// receive verifies webhooks until n events have come.
func receive(t *testing.T, s *Server, got <-chan posting, provider string, n int) []reported {
	t.Helper()
	var events []reported
	for len(events) < n {
		p := <-got
		if p.path != "/hooks/"+provider {
			t.Fatalf("posted to %s", p.path)
		}
		list, err := readers[provider](t, s, p)
		if err != nil {
			t.Fatalf("%v: %s", err, p.body)
		}
		events = append(events, list...)
	}
	return events
}

// A receiver that is not well gets the webhook again.
func TestWebhooksAreRetried(t *testing.T) {
	t.Parallel()
	url, got := receiver(t, func(n int) int {
		if n == 1 {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	s := start(t, Options{WebhookURL: url, postWait: time.Millisecond})
	if outcome, e := send(t.Context(), t, s.adapter(t, "sendgrid"), 1, "a@example.org"); outcome != "accepted" {
		t.Fatal(e)
	}
	first, second := <-got, <-got
	if string(first.body) != string(second.body) {
		t.Error("the second try has another body")
	}
}

// What nobody takes does not keep the fake from ending.
func TestWebhooksEndWithTheFake(t *testing.T) {
	t.Parallel()
	url, got := receiver(t, func(int) int { return http.StatusServiceUnavailable })
	s := start(t, Options{WebhookURL: url})
	if outcome, e := send(t.Context(), t, s.adapter(t, "sendgrid"), 1, "a@example.org"); outcome != "accepted" {
		t.Fatal(e)
	}
	<-got
	s.Close()
}
