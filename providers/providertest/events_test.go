package providertest_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sendgrid/sendgrid-go/helpers/eventwebhook"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outboxd/outboxd/providers/providertest"
)

var eventTime = time.Date(2026, 3, 1, 12, 0, 0, 500_000_000, time.UTC)

// events returns one event of each kind about one message.
func events() []providertest.Event {
	message := providertest.Accepted{
		At: eventTime.Add(-time.Second), ID: "m-1", Reference: "key-1", From: "s@example.com",
		To: []string{"a@example.org", "b@example.org"}, Subject: "Hello",
	}
	var list []providertest.Event
	for _, kind := range []providertest.EventKind{
		providertest.EventProcessed, providertest.EventDeferred, providertest.EventDelivered,
		providertest.EventBounced, providertest.EventComplained,
	} {
		list = append(list, providertest.Event{
			Kind: kind, ID: "id-" + string(kind), At: eventTime, Recipient: "a@example.org", Message: message,
		})
	}
	return list
}

// post returns the requests about all events.
func post(t *testing.T, w providertest.Webhooks) []providertest.Webhook {
	t.Helper()
	list, err := w.Post(events(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// read returns a value inside a JSON body, by its path.
func read(t *testing.T, body []byte, path ...string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	for _, name := range path {
		members, ok := v.(map[string]any)
		if !ok {
			t.Fatalf("no %v in %s", path, body)
		}
		v = members[name]
	}
	return v
}

// The signature is verified with SendGrid's own library.
func TestSendGridWebhooks(t *testing.T) {
	t.Parallel()
	s, err := providertest.NewSendGridWebhooks()
	if err != nil {
		t.Fatal(err)
	}
	requests := post(t, s)
	if len(requests) != 1 {
		t.Fatalf("%d requests, want all events in one", len(requests))
	}
	public, err := s.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	key, err := eventwebhook.ConvertPublicKeyBase64ToECDSA(public)
	if err != nil {
		t.Fatal(err)
	}
	signature := requests[0].Header.Get(eventwebhook.VerificationHTTPHeader)
	timestamp := requests[0].Header.Get(eventwebhook.TimestampHTTPHeader)
	if ok, err := eventwebhook.VerifySignature(key, requests[0].Body, signature, timestamp); !ok || err != nil {
		t.Errorf("signature refused: %v", err)
	}
	if ok, err := eventwebhook.VerifySignature(key, append(requests[0].Body, ' '), signature, timestamp); ok || err != nil {
		t.Errorf("signature good for another body: %v, %v", ok, err)
	}
	var got []struct {
		Email, Event, Reference string
		Timestamp               int64
		EventID                 string `json:"sg_event_id"`
		MessageID               string `json:"sg_message_id"`
		Attempt                 string `json:"outboxd_attempt"`
	}
	if err := json.Unmarshal(requests[0].Body, &got); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range got {
		kinds = append(kinds, e.Event)
		if e.Email != "a@example.org" || e.Attempt != "key-1" || !strings.HasPrefix(e.MessageID, "m-1.") || e.Timestamp != eventTime.Unix() {
			t.Errorf("event %+v", e)
		}
	}
	if diff := cmp.Diff([]string{"processed", "deferred", "delivered", "bounce", "spamreport"}, kinds); diff != "" {
		t.Error(diff)
	}
	// F22: the same event comes under another id.
	e := events()[0]
	if again := s.Again(e); again.ID == e.ID || again.Kind != e.Kind || again.At != e.At {
		t.Errorf("again %+v, want another id alone", again)
	}
}

// Svix' signature is that of Standard Webhooks under other header names.
func TestResendWebhooks(t *testing.T) {
	t.Parallel()
	r := providertest.NewResendWebhooks()
	verifier, err := standardwebhooks.NewWebhook(r.Secret)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []any
	for _, request := range post(t, r) {
		header := http.Header{}
		for _, name := range []string{"id", "timestamp", "signature"} {
			header.Set("Webhook-"+name, request.Header.Get("Svix-"+name))
		}
		if err := verifier.Verify(request.Body, header); err != nil {
			t.Error(err)
		}
		if err := verifier.Verify(append(request.Body, ' '), header); err == nil {
			t.Error("signature good for another body")
		}
		kinds = append(kinds, read(t, request.Body, "type"))
		if got := read(t, request.Body, "data", "tags", "outboxd_attempt"); got != "key-1" {
			t.Errorf("reference %v", got)
		}
		if got := read(t, request.Body, "data", "email_id"); got != "m-1" {
			t.Errorf("id %v", got)
		}
	}
	want := []any{"email.sent", "email.delivery_delayed", "email.delivered", "email.bounced", "email.complained"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Error(diff)
	}
	if _, err := (providertest.ResendWebhooks{Secret: "whsec_!"}).Post(events(), eventTime); err == nil {
		t.Error("signed with a secret that is none")
	}
}

func TestPostmarkWebhooks(t *testing.T) {
	t.Parallel()
	var kinds []any
	for _, request := range post(t, providertest.PostmarkWebhooks{Username: "user", Password: "p:w"}) {
		r := &http.Request{Header: request.Header}
		if user, password, ok := r.BasicAuth(); !ok || user != "user" || password != "p:w" {
			t.Errorf("credentials %q %q %v", user, password, ok)
		}
		kinds = append(kinds, read(t, request.Body, "RecordType"))
		if got := read(t, request.Body, "Metadata", "outboxd_attempt"); got != "key-1" {
			t.Errorf("reference %v", got)
		}
		if got := read(t, request.Body, "MessageID"); got != "m-1" {
			t.Errorf("id %v", got)
		}
	}
	// Nothing says that a message was taken up.
	if diff := cmp.Diff([]any{"Bounce", "Delivery", "Bounce", "SpamComplaint"}, kinds); diff != "" {
		t.Error(diff)
	}
}

// The signature is computed here from the page's words: HMAC-SHA256 over
// timestamp and token.
func TestMailgunWebhooks(t *testing.T) {
	t.Parallel()
	var kinds []any
	tokens := map[string]bool{}
	for _, request := range post(t, providertest.MailgunWebhooks{SigningKey: "signing key"}) {
		var body struct {
			Signature struct{ Timestamp, Token, Signature string }
		}
		if err := json.Unmarshal(request.Body, &body); err != nil {
			t.Fatal(err)
		}
		mac := hmac.New(sha256.New, []byte("signing key"))
		mac.Write([]byte(body.Signature.Timestamp))
		mac.Write([]byte(body.Signature.Token))
		if got := body.Signature.Signature; got != hex.EncodeToString(mac.Sum(nil)) {
			t.Errorf("signature %s", got)
		}
		if tokens[body.Signature.Token] || len(body.Signature.Token) != 50 {
			t.Errorf("token %q is used twice or not 50 characters", body.Signature.Token)
		}
		tokens[body.Signature.Token] = true
		kinds = append(kinds, read(t, request.Body, "event-data", "event"))
		if got := read(t, request.Body, "event-data", "user-variables", "outboxd_attempt"); got != "key-1" {
			t.Errorf("reference %v", got)
		}
		if got := read(t, request.Body, "event-data", "message", "headers", "message-id"); got != "m-1" {
			t.Errorf("id %v", got)
		}
	}
	if diff := cmp.Diff([]any{"accepted", "failed", "delivered", "failed", "complained"}, kinds); diff != "" {
		t.Error(diff)
	}
}

// snsFields are what is signed, in order, of each type of message.
var snsFields = map[string][]string{
	"Notification":             {"Message", "MessageId", "Timestamp", "TopicArn", "Type"},
	"SubscriptionConfirmation": {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
}

// verifySNS checks the signature of version 2 with the certificate's own method.
func verifySNS(t *testing.T, request providertest.Webhook, certificate []byte) map[string]string {
	t.Helper()
	var envelope map[string]string
	if err := json.Unmarshal(request.Body, &envelope); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(certificate)
	if block == nil {
		t.Fatal("the certificate is not PEM")
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	var signed bytes.Buffer
	for _, name := range snsFields[envelope["Type"]] {
		signed.WriteString(name + "\n" + envelope[name] + "\n")
	}
	signature, err := base64.StdEncoding.DecodeString(envelope["Signature"])
	if err != nil {
		t.Fatal(err)
	}
	if err := parsed.CheckSignature(x509.SHA256WithRSA, signed.Bytes(), signature); err != nil || envelope["SignatureVersion"] != "2" {
		t.Errorf("signature of %s, version %s: %v", envelope["Type"], envelope["SignatureVersion"], err)
	}
	if got := request.Header.Get("X-Amz-Sns-Message-Type"); got != envelope["Type"] {
		t.Errorf("header says %q of a %q", got, envelope["Type"])
	}
	return envelope
}

func TestSESWebhooks(t *testing.T) {
	t.Parallel()
	s, err := providertest.NewSESWebhooks("http://127.0.0.1/certificate.pem")
	if err != nil {
		t.Fatal(err)
	}
	var kinds []any
	for _, request := range post(t, s) {
		envelope := verifySNS(t, request, s.Certificate)
		if envelope["SigningCertURL"] != s.CertificateURL || envelope["TopicArn"] != s.TopicARN {
			t.Errorf("envelope %v", envelope)
		}
		record := []byte(envelope["Message"])
		kinds = append(kinds, read(t, record, "eventType"))
		if diff := cmp.Diff([]any{"key-1"}, read(t, record, "mail", "tags", "outboxd_attempt")); diff != "" {
			t.Error(diff)
		}
		if got := read(t, record, "mail", "messageId"); got != "m-1" {
			t.Errorf("id %v", got)
		}
	}
	if diff := cmp.Diff([]any{"Send", "DeliveryDelay", "Delivery", "Bounce", "Complaint"}, kinds); diff != "" {
		t.Error(diff)
	}
	confirm, err := s.Confirm("http://127.0.0.1/confirm", eventTime)
	if err != nil {
		t.Fatal(err)
	}
	if envelope := verifySNS(t, confirm, s.Certificate); envelope["SubscribeURL"] != "http://127.0.0.1/confirm" {
		t.Errorf("confirmation %v", envelope)
	}
}

// A service that retries says the same under the same id.
func TestWebhooksAgain(t *testing.T) {
	t.Parallel()
	e := events()[0]
	for _, w := range []providertest.Webhooks{
		providertest.ResendWebhooks{}, providertest.PostmarkWebhooks{}, providertest.MailgunWebhooks{}, providertest.SESWebhooks{},
	} {
		if again := w.Again(e); again.ID != e.ID {
			t.Errorf("%T: another id", w)
		}
	}
}
