package postmark_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/postmark"
	"github.com/outboxd/outboxd/providers/providertest"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var credentials = postmark.Credentials{User: "postmark", Password: "a-secret:with-a-colon"}

func newHook(t testing.TB, list ...postmark.Credentials) *postmark.Hook {
	t.Helper()
	h, err := postmark.NewHook(postmark.HookConfig{Credentials: list})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// login returns a header with credentials.
func login(c postmark.Credentials) http.Header {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(c.User, c.Password)
	return r.Header
}

func TestHook(t *testing.T) {
	t.Parallel()
	providertest.RunHook(t, providertest.HookSuite{
		Hook:     newHook(t, credentials),
		Webhooks: providertest.PostmarkWebhooks{Username: credentials.User, Password: credentials.Password},
		Headers:  []string{"Authorization"},
		Covers:   providertest.CoversNothing,
		Untimed:  true,
	})
}

func TestHookPayloads(t *testing.T) {
	t.Parallel()
	h := newHook(t, credentials)
	at := func(kind providers.EventType, at time.Time, detail string) []providers.Event {
		return []providers.Event{{
			Type: kind, Reference: "key-1", ProviderMessageID: "883953f4-6105-42a2-a16a-77a8eac79483",
			Recipient: "ann@example.org", OccurredAt: at, Detail: detail,
		}}
	}
	past := noon.Add(273539300 * time.Nanosecond)
	want := map[string][]providers.Event{
		"Delivery":                         at(providers.EventDelivered, past, "250 OK"),
		"SpamComplaint":                    at(providers.EventComplained, past, "SpamComplaint: What it means.: smtp;550 what was said"),
		"Open":                             at(providers.EventOpened, noon, ""),
		"Click":                            at(providers.EventClicked, noon, "https://example.com/receipt"),
		"SubscriptionChange/unsubscribed":  at(providers.EventUnsubscribed, noon, "ManualSuppression"),
		"SubscriptionChange/bounced":       nil, // a Bounce says so
		"SubscriptionChange/by the sender": nil,
		"SubscriptionChange/again":         nil,
		"Inbound":                          nil,
	}
	for kind, event := range map[string]providers.EventType{
		"HardBounce": providers.EventBounced, "BadEmailAddress": providers.EventBounced, "SoftBounce": providers.EventBounced,
		"SpamNotification": providers.EventBounced, "VirusNotification": providers.EventBounced, "Blocked": providers.EventBounced,
		"DMARCPolicy": providers.EventBounced, "Unknown": providers.EventBounced, "ManuallyDeactivated": providers.EventBounced,
		"SMTPApiError": providers.EventBounced, "TemplateRenderingFailed": providers.EventBounced,
		"Transient": providers.EventDelayed, "DnsError": providers.EventDelayed, "Unsubscribe": providers.EventUnsubscribed,
		"Subscribe": "", "AutoResponder": "", "AddressChange": "", "OpenRelayTest": "", "ChallengeVerification": "",
		"Unconfirmed": "", "InboundError": "", "new kind": "",
	} {
		var events []providers.Event
		if event != "" {
			events = at(event, past, kind+": What it means.: smtp;550 what was said")
			events[0].Permanent = kind == "HardBounce" || kind == "BadEmailAddress"
		}
		want["Bounce/"+kind] = events
	}
	providertest.RunHookPayloads(t, "testdata/hook.json", want, func(t *testing.T, body []byte) ([]providers.Event, error) {
		t.Helper()
		return h.ParseEvents(t.Context(), login(credentials), body, noon)
	})
}

func TestHookRotation(t *testing.T) {
	t.Parallel()
	next := postmark.Credentials{User: "next", Password: "another-long-secret"}
	h := newHook(t, credentials, next)
	body := []byte(`{"RecordType":"Inbound"}`)
	for _, known := range []postmark.Credentials{credentials, next} {
		if _, err := h.ParseEvents(t.Context(), login(known), body, noon); err != nil {
			t.Error(err)
		}
	}
	for _, other := range []postmark.Credentials{
		{User: "next", Password: credentials.Password},
		{User: "postmark"},
		{Password: next.Password},
		{},
		{User: "postmark", Password: credentials.Password + " "},
	} {
		if _, err := h.ParseEvents(t.Context(), login(other), body, noon); !errors.Is(err, providers.ErrUnverified) {
			t.Errorf("%+v: %v", other, err)
		}
	}
}

// A request that is Postmark's and cannot be understood is not called forged.
func TestHookUnreadable(t *testing.T) {
	t.Parallel()
	h := newHook(t, credentials)
	for _, body := range []string{
		"", "[]", `{"RecordType":"Open"`, `{"RecordType":"Open"}`, `{"RecordType":"Open","ReceivedAt":5}`,
		`{"RecordType":"Open","ReceivedAt":"today"}`,
	} {
		events, err := h.ParseEvents(t.Context(), login(credentials), []byte(body), noon)
		if err == nil || errors.Is(err, providers.ErrUnverified) || events != nil {
			t.Errorf("%s: %v, %v", body, events, err)
		}
	}
}

func TestHookConfig(t *testing.T) {
	t.Parallel()
	for name, list := range map[string][]postmark.Credentials{
		"none": nil, "no user": {{Password: "a-secret-long-enough"}}, "no password": {{User: "u"}},
		"short password": {{User: "u", Password: "a-secret"}}, "colon": {{User: "u:v", Password: "a-secret-long-enough"}},
		"line end": {{User: "u", Password: "a-secret-long-enough\n"}}, "one of two": {credentials, {User: "u"}},
	} {
		if h, err := postmark.NewHook(postmark.HookConfig{Credentials: list}); err == nil || strings.Contains(err.Error(), "a-secret") {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
}

func FuzzHook(f *testing.F) {
	f.Add([]byte(`{"RecordType":"Bounce","Type":"HardBounce","Email":"a\u0000@b","BouncedAt":"2026-03-01T12:00:00Z","Metadata":{"outboxd_attempt":"k"}}`))
	f.Add([]byte(`{"RecordType":"Click","ReceivedAt":"9999-12-31T23:59:59-23:59"}`))
	f.Add(providertest.DeepJSON(`{"RecordType":"Bounce","Metadata":`))
	h := newHook(f, credentials)
	f.Fuzz(func(t *testing.T, body []byte) {
		events, err := h.ParseEvents(t.Context(), login(credentials), body, noon)
		providertest.CheckHookEvents(t, events, err)
	})
}

// FuzzHookUnsigned feeds what anybody can post: never an event without the password.
func FuzzHookUnsigned(f *testing.F) {
	body := []byte(`{"RecordType":"Delivery","DeliveredAt":"2026-03-01T12:00:00Z","Metadata":{"outboxd_attempt":"k"}}`)
	h := newHook(f, credentials)
	for _, header := range []string{"", "Basic", "Basic Og==", "Basic !", login(postmark.Credentials{User: credentials.User, Password: "a-secret"}).Get("Authorization")} {
		f.Add(header, body)
	}
	right := login(credentials).Get("Authorization")
	f.Fuzz(func(t *testing.T, authorization string, body []byte) {
		if strings.HasSuffix(authorization, strings.TrimPrefix(right, "Basic ")) {
			t.Skip("the password was found")
		}
		events, err := h.ParseEvents(t.Context(), http.Header{"Authorization": {authorization}}, body, noon)
		if err == nil || len(events) > 0 {
			t.Errorf("%d events, error %v", len(events), err)
		}
	})
}
