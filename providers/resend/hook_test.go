package resend_test

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/resend"
)

// noon is when requests are signed.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newHook(t testing.TB, secrets ...string) *resend.Hook {
	t.Helper()
	h, err := resend.NewHook(resend.HookConfig{Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// sign returns the header of a request, signed by the Standard Webhooks library:
// Svix' signature under Svix' names.
func sign(t testing.TB, secret string, body []byte) http.Header {
	t.Helper()
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := signer.Sign("msg_1", noon, body)
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{}
	header.Set("svix-id", "msg_1")
	header.Set("svix-timestamp", strconv.FormatInt(noon.Unix(), 10))
	header.Set("svix-signature", signature)
	return header
}

func TestHook(t *testing.T) {
	t.Parallel()
	webhooks := providertest.NewResendWebhooks()
	providertest.RunHook(t, providertest.HookSuite{
		Hook: newHook(t, webhooks.Secret), Webhooks: webhooks,
		Headers: []string{"Svix-Id", "Svix-Timestamp", "Svix-Signature"},
	})
}

func TestHookPayloads(t *testing.T) {
	t.Parallel()
	secret := providertest.NewResendWebhooks().Secret
	h := newHook(t, secret)
	about := func(kind providers.EventType, recipient, detail string) []providers.Event {
		return []providers.Event{{
			Type: kind, Reference: "key-1", ProviderMessageID: "56761188-7520-42d8-8898-ff6fc54ce618",
			Recipient: recipient, WholeMessage: true, OccurredAt: noon.Add(500 * time.Millisecond), Detail: detail,
		}}
	}
	hard := func(list []providers.Event) []providers.Event {
		list[0].Permanent = true
		return list
	}
	foreign := about(providers.EventDelivered, "ann@example.org", "")
	foreign[0].Reference = ""
	const ann = "ann@example.org"
	providertest.RunHookPayloads(t, "testdata/hook.json", map[string][]providers.Event{
		"sent":              about(providers.EventAccepted, ann, ""),
		"scheduled":         about(providers.EventAccepted, ann, ""),
		"delivered":         about(providers.EventDelivered, ann, ""),
		"delivery_delayed":  about(providers.EventDelayed, ann, ""),
		"bounced":           hard(about(providers.EventBounced, ann, "Permanent: General: No such user.")),
		"bounced_transient": about(providers.EventBounced, ann, "Transient: MailboxFull: The mailbox is full."),
		"bounced_untyped":   about(providers.EventBounced, ann, "No reason given."),
		"suppressed":        about(providers.EventBounced, ann, "OnAccountSuppressionList: On the list."),
		"failed":            about(providers.EventBounced, ann, "reached_daily_quota"),
		"complained":        about(providers.EventComplained, ann, ""),
		"opened":            about(providers.EventOpened, ann, ""),
		"clicked":           about(providers.EventClicked, ann, "https://example.com/receipt"),
		"received":          nil,
		"contact":           nil,
		"domain":            nil,
		// Who of several it is about is not said.
		"several_recipients": hard(about(providers.EventBounced, "", "Permanent: General: No such user.")),
		"with_a_copy":        about(providers.EventComplained, "", ""),
		"named_recipient":    about(providers.EventDelivered, ann, ""),
		"of_other_programs":  foreign,
	}, func(t *testing.T, body []byte) ([]providers.Event, error) {
		t.Helper()
		return h.ParseEvents(t.Context(), sign(t, secret, body), body, noon)
	})
}

// While a secret is changed there are two on either side: Svix signs with both,
// and both are configured.
func TestHookRotation(t *testing.T) {
	t.Parallel()
	old, next, other := providertest.NewResendWebhooks().Secret, providertest.NewResendWebhooks().Secret, providertest.NewResendWebhooks().Secret
	body := []byte(`{"type":"contact.created"}`)
	signature := func(secret string) string { return sign(t, secret, body).Get("svix-signature") }
	for name, c := range map[string]struct {
		secrets    []string
		signatures string
		good       bool
	}{
		"old of two":          {[]string{old, next}, signature(old), true},
		"new of two":          {[]string{old, next}, signature(next), true},
		"both by Svix":        {[]string{next}, signature(old) + " " + signature(next), true},
		"another version too": {[]string{old}, "v1a,AAAA " + signature(old), true},
		"another secret":      {[]string{old, next}, signature(other), false},
		"another version":     {[]string{old}, strings.Replace(signature(old), "v1,", "v2,", 1), false},
		"too many":            {[]string{old}, strings.Repeat("v1,AAAA ", 16) + signature(old), false},
		"none":                {[]string{old}, " ", false},
	} {
		header := sign(t, old, body)
		header.Set("svix-signature", c.signatures)
		_, err := newHook(t, c.secrets...).ParseEvents(t.Context(), header, body, noon)
		if c.good != (err == nil) || !c.good && !errors.Is(err, providers.ErrUnverified) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A request that is Resend's and cannot be understood is not called forged.
func TestHookUnreadable(t *testing.T) {
	t.Parallel()
	secret := providertest.NewResendWebhooks().Secret
	h := newHook(t, secret)
	for _, body := range []string{
		"", "[]", `{"type":"email.sent"`, `{"type":"email.sent"}`, `{"type":"email.sent","created_at":"today"}`,
		`{"type":"email.sent","created_at":"2026-03-01T12:00:00Z","data":{"to":"ann@example.org"}}`,
	} {
		events, err := h.ParseEvents(t.Context(), sign(t, secret, []byte(body)), []byte(body), noon)
		if err == nil || errors.Is(err, providers.ErrUnverified) || events != nil {
			t.Errorf("%s: %v, %v", body, events, err)
		}
	}
}

func TestHookConfig(t *testing.T) {
	t.Parallel()
	good := providertest.NewResendWebhooks().Secret
	for name, secrets := range map[string][]string{
		"none": nil, "empty": {good, ""}, "no prefix": {strings.TrimPrefix(good, "whsec_")},
		"no base64": {"whsec_a-secret!"}, "too short": {"whsec_c2VjcmV0"}, "no key": {"whsec_"},
	} {
		if h, err := resend.NewHook(resend.HookConfig{Secrets: secrets}); err == nil || strings.Contains(err.Error(), "a-secret") {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
}

func FuzzHook(f *testing.F) {
	f.Add([]byte(`{"type":"email.bounced","created_at":"2026-03-01T12:00:00Z","data":{"to":["<a\u0000@b>"],"tags":{"outboxd_attempt":"k"}}}`))
	f.Add([]byte(`{"type":"email.sent","created_at":"0001-01-01T00:00:00Z"}`))
	f.Add(providertest.DeepJSON(`{"type":"email.bounced","data":`))
	secret := providertest.NewResendWebhooks().Secret
	h := newHook(f, secret)
	f.Fuzz(func(t *testing.T, body []byte) {
		events, err := h.ParseEvents(t.Context(), sign(t, secret, body), body, noon)
		providertest.CheckHookEvents(t, events, err)
	})
}

// FuzzHookUnsigned feeds what anybody can post: never an event, whatever it says.
func FuzzHookUnsigned(f *testing.F) {
	h := newHook(f, providertest.NewResendWebhooks().Secret)
	body := []byte(`{"type":"email.sent","created_at":"2026-03-01T12:00:00Z","data":{"tags":{"outboxd_attempt":"k"}}}`)
	signed := sign(f, providertest.NewResendWebhooks().Secret, body)
	id, timestamp, signature := signed.Get("svix-id"), signed.Get("svix-timestamp"), signed.Get("svix-signature")
	f.Add(id, timestamp, signature, body)
	f.Add("", "", "", body)
	f.Add(id, timestamp, "v1, v1,= v1a,AAAA", body)
	f.Add(id, "9223372036854775808", signature, body)
	f.Fuzz(func(t *testing.T, id, timestamp, signature string, body []byte) {
		for _, prefix := range []string{"svix-", "webhook-"} {
			header := http.Header{}
			header.Set(prefix+"id", id)
			header.Set(prefix+"timestamp", timestamp)
			header.Set(prefix+"signature", signature)
			if events, err := h.ParseEvents(t.Context(), header, body, noon); err == nil || len(events) > 0 {
				t.Errorf("%d events, error %v", len(events), err)
			}
		}
	})
}
