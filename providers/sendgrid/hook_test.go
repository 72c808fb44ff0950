package sendgrid_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sendgrid/sendgrid-go/helpers/eventwebhook"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/sendgrid"
)

// noon is when requests are signed.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newHook returns a hook for the keys of some webhooks.
func newHook(t testing.TB, webhooks ...providertest.SendGridWebhooks) *sendgrid.Hook {
	t.Helper()
	var keys []string
	for _, w := range webhooks {
		key, err := w.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	h, err := sendgrid.NewHook(sendgrid.HookConfig{PublicKeys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func newWebhooks(t testing.TB) providertest.SendGridWebhooks {
	t.Helper()
	w, err := providertest.NewSendGridWebhooks()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// sign returns the header of a signed request.
func sign(t testing.TB, key *ecdsa.PrivateKey, body []byte, at time.Time) http.Header {
	t.Helper()
	timestamp := strconv.FormatInt(at.Unix(), 10)
	digest := sha256.Sum256(append([]byte(timestamp), body...))
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{}
	header.Set(eventwebhook.VerificationHTTPHeader, base64.StdEncoding.EncodeToString(signature))
	header.Set(eventwebhook.TimestampHTTPHeader, timestamp)
	return header
}

func TestHook(t *testing.T) {
	t.Parallel()
	webhooks := newWebhooks(t)
	providertest.RunHook(t, providertest.HookSuite{
		Hook: newHook(t, webhooks), Webhooks: webhooks,
		Headers: []string{eventwebhook.VerificationHTTPHeader, eventwebhook.TimestampHTTPHeader},
	})
}

func TestHookPayloads(t *testing.T) {
	t.Parallel()
	webhooks := newWebhooks(t)
	h := newHook(t, webhooks)
	about := func(kind providers.EventType, permanent bool, detail string) providers.Event {
		return providers.Event{
			Type: kind, Reference: "key-1", ProviderMessageID: "14c5d75ce93dfd64b469", Recipient: "ann@example.org",
			OccurredAt: noon, Permanent: permanent, Detail: detail,
		}
	}
	one := func(kind providers.EventType, permanent bool, detail string) []providers.Event {
		return []providers.Event{about(kind, permanent, detail)}
	}
	bob := about(providers.EventDelivered, false, "250 OK")
	bob.Recipient, bob.OccurredAt = "bob@example.org", noon.Add(time.Second)
	foreign := about(providers.EventOpened, false, "")
	foreign.Reference = ""
	providertest.RunHookPayloads(t, "testdata/hook.json", map[string][]providers.Event{
		"processed":             one(providers.EventAccepted, false, ""),
		"deferred":              one(providers.EventDelayed, false, "400 try again later"),
		"delivered":             one(providers.EventDelivered, false, "250 OK"),
		"bounce":                one(providers.EventBounced, true, "Invalid Address: 550 5.1.1 no such user"),
		"bounce_blocked":        one(providers.EventBounced, false, "Reputation: 550 5.7.1 blocked by policy"),
		"bounce_without_status": one(providers.EventBounced, false, "Unclassified: unable to get mx info"),
		"dropped_bounced":       one(providers.EventBounced, true, "Bounced Address"),
		"dropped_invalid":       one(providers.EventBounced, true, "Invalid"),
		"dropped_unsubscribed":  one(providers.EventBounced, false, "Unsubscribed Address"),
		"spamreport":            one(providers.EventComplained, false, ""),
		"unsubscribe":           one(providers.EventUnsubscribed, false, ""),
		"group_unsubscribe":     one(providers.EventUnsubscribed, false, ""),
		"group_resubscribe":     nil,
		"open":                  one(providers.EventOpened, false, ""),
		"click":                 one(providers.EventClicked, false, "https://example.com/receipt"),
		"account_status_change": nil,
		"several":               {about(providers.EventDelivered, false, ""), bob},
		"of_other_programs":     {foreign},
	}, func(t *testing.T, body []byte) ([]providers.Event, error) {
		t.Helper()
		return h.ParseEvents(t.Context(), sign(t, webhooks.Key, body, noon), body, noon)
	})
}

// What SendGrid's own library verifies, the hook does too, and the other way
// round, but for the age.
func TestHookAgreesWithSendGrid(t *testing.T) {
	t.Parallel()
	webhooks := newWebhooks(t)
	h := newHook(t, webhooks)
	body := []byte("[]\r\n")
	header := sign(t, webhooks.Key, body, noon)
	for _, other := range []string{"[]\r\n", "[]", "[]\n", " []\r\n"} {
		theirs, err := eventwebhook.VerifySignature(&webhooks.Key.PublicKey, []byte(other),
			header.Get(eventwebhook.VerificationHTTPHeader), header.Get(eventwebhook.TimestampHTTPHeader))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.ParseEvents(t.Context(), header, []byte(other), noon); theirs != (err == nil) {
			t.Errorf("%q: SendGrid says %v, the hook %v", other, theirs, err)
		}
	}
}

// There is one way to write a signature: bits of the last character that no byte
// is made of are not ignored.
func TestHookSignatureIsCanonical(t *testing.T) {
	t.Parallel()
	webhooks := newWebhooks(t)
	h := newHook(t, webhooks)
	body := []byte("[]")
	header := sign(t, webhooks.Key, body, noon)
	for !strings.HasSuffix(header.Get(eventwebhook.VerificationHTTPHeader), "=") {
		header = sign(t, webhooks.Key, body, noon) // of another length
	}
	signature := header.Get(eventwebhook.VerificationHTTPHeader)
	last := len(strings.TrimRight(signature, "=")) - 1
	changed := []byte(signature)
	changed[last] = next(changed[last])
	header.Set(eventwebhook.VerificationHTTPHeader, string(changed))
	if _, err := h.ParseEvents(t.Context(), header, body, noon); !errors.Is(err, providers.ErrUnverified) {
		t.Errorf("%s for %s: %v", changed, signature, err)
	}
}

// next returns the character of base64 after c.
func next(c byte) byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	return alphabet[strings.IndexByte(alphabet, c)+1]
}

func TestHookRotation(t *testing.T) {
	t.Parallel()
	old, recent, other := newWebhooks(t), newWebhooks(t), newWebhooks(t)
	h := newHook(t, old, recent)
	body := []byte("[]")
	for _, known := range []providertest.SendGridWebhooks{old, recent} {
		if _, err := h.ParseEvents(t.Context(), sign(t, known.Key, body, noon), body, noon); err != nil {
			t.Error(err)
		}
	}
	if _, err := h.ParseEvents(t.Context(), sign(t, other.Key, body, noon), body, noon); !errors.Is(err, providers.ErrUnverified) {
		t.Errorf("another account's key: %v", err)
	}
}

// A request that is SendGrid's and cannot be understood is not called forged.
func TestHookUnreadable(t *testing.T) {
	t.Parallel()
	webhooks := newWebhooks(t)
	h := newHook(t, webhooks)
	for name, body := range map[string]string{
		"no list": `{"event":"open"}`, "cut short": `[{"event":"open"`, "nothing": "",
		"too many": "[" + strings.Repeat("{},", 10_000) + "{}]",
	} {
		events, err := h.ParseEvents(t.Context(), sign(t, webhooks.Key, []byte(body), noon), []byte(body), noon)
		if err == nil || errors.Is(err, providers.ErrUnverified) || events != nil {
			t.Errorf("%s: %v, %v", name, events, err)
		}
	}
}

func TestHookConfig(t *testing.T) {
	t.Parallel()
	encode := func(key any) string {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(der)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ofRSA, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	good := encode(&newWebhooks(t).Key.PublicKey)
	for name, keys := range map[string][]string{
		"none": nil, "empty": {""}, "one of two empty": {good, ""}, "no base64": {"a-secret!"}, "no key": {"YS1zZWNyZXQ="},
		"of RSA": {encode(&ofRSA.PublicKey)}, "of another curve": {encode(&p384.PublicKey)},
	} {
		if h, err := sendgrid.NewHook(sendgrid.HookConfig{PublicKeys: keys}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
	if _, err := sendgrid.NewHook(sendgrid.HookConfig{PublicKeys: []string{" " + good + "\n"}}); err != nil {
		t.Error(err)
	}
}

func FuzzHook(f *testing.F) {
	f.Add([]byte(`[{"event":"bounce","email":"a@b.c","timestamp":1772366400,"sg_message_id":"x.y","type":"bounce","reason":"\u0000"}]`))
	f.Add([]byte(`[{"event":"open","timestamp":1e400},{"event":"open","timestamp":-9223372036854775808}]`))
	f.Add(providertest.DeepJSON(`[{"event":"open","category":`))
	webhooks := newWebhooks(f)
	h := newHook(f, webhooks)
	f.Fuzz(func(t *testing.T, body []byte) {
		events, err := h.ParseEvents(t.Context(), sign(t, webhooks.Key, body, noon), body, noon)
		providertest.CheckHookEvents(t, events, err)
	})
}

// FuzzHookUnsigned feeds what anybody can post: never an event, whatever it says.
func FuzzHookUnsigned(f *testing.F) {
	stranger := newWebhooks(f)
	h := newHook(f, newWebhooks(f))
	body := []byte(`[{"event":"bounce","email":"a@b.c","timestamp":1772366400,"sg_message_id":"x.y"}]`)
	signed := sign(f, stranger.Key, body, noon)
	f.Add(signed.Get(eventwebhook.VerificationHTTPHeader), signed.Get(eventwebhook.TimestampHTTPHeader), body)
	f.Add("", "", body)
	f.Add("MAYCAQECAQE=", signed.Get(eventwebhook.TimestampHTTPHeader), body)
	f.Add("MAYCAQACAQA=", "-1", body)
	f.Fuzz(func(t *testing.T, signature, timestamp string, body []byte) {
		header := http.Header{}
		header.Set(eventwebhook.VerificationHTTPHeader, signature)
		header.Set(eventwebhook.TimestampHTTPHeader, timestamp)
		if events, err := h.ParseEvents(t.Context(), header, body, noon); err == nil || len(events) > 0 {
			t.Errorf("%d events, error %v", len(events), err)
		}
	})
}
