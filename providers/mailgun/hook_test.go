package mailgun_test

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/mailgun"
	"github.com/outboxd/outboxd/providers/providertest"
)

// noon is when requests are signed.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const signingKey = "a-secret-signing-key"

func newHook(t testing.TB, keys ...string) *mailgun.Hook {
	t.Helper()
	h, err := mailgun.NewHook(mailgun.HookConfig{SigningKeys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// signed returns a body with an event and a signature.
func signed(timestamp, token, key, event string) []byte {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(timestamp + token))
	return []byte(`{"signature":{"timestamp":"` + timestamp + `","token":"` + token +
		`","signature":"` + hex.EncodeToString(mac.Sum(nil)) + `"},"event-data":` + event + `}`)
}

func seconds(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }

func TestHook(t *testing.T) {
	t.Parallel()
	providertest.RunHook(t, providertest.HookSuite{
		Hook: newHook(t, signingKey), Webhooks: providertest.MailgunWebhooks{SigningKey: signingKey},
		// The signature does not cover the event: see TestHookSignature.
		Covers: providertest.CoversNothing,
	})
}

func TestHookPayloads(t *testing.T) {
	t.Parallel()
	h := newHook(t, signingKey)
	about := func(kind providers.EventType, permanent bool, detail string) []providers.Event {
		return []providers.Event{{
			Type: kind, Reference: "key-1", ProviderMessageID: "key-1@mg.example.com", Recipient: "ann@example.org",
			OccurredAt: noon.Add(250123 * time.Microsecond), Permanent: permanent, Detail: detail,
		}}
	}
	foreign := about(providers.EventDelivered, false, "")
	foreign[0].Reference, foreign[0].ProviderMessageID = "", "x@mg.example.com"
	providertest.RunHookPayloads(t, "testdata/hook.json", map[string][]providers.Event{
		"accepted":                    about(providers.EventAccepted, false, ""),
		"delivered":                   about(providers.EventDelivered, false, "OK"),
		"temporary_fail":              about(providers.EventDelayed, false, "generic: No MX for example.org: No MX for example.org"),
		"permanent_fail":              about(providers.EventBounced, true, "bounce: 5.1.1 no such user"),
		"permanent_fail_suppressed":   about(providers.EventBounced, true, "suppress-bounce: Not delivering to previously bounced address"),
		"permanent_fail_unsubscribed": about(providers.EventBounced, false, "suppress-unsubscribe: Not delivering to unsubscribed address"),
		"permanent_fail_old":          about(providers.EventBounced, false, "old: too old"),
		"complained":                  about(providers.EventComplained, false, ""),
		"unsubscribed":                about(providers.EventUnsubscribed, false, ""),
		"opened":                      about(providers.EventOpened, false, ""),
		"clicked":                     about(providers.EventClicked, false, "https://example.com/receipt"),
		"rejected":                    nil, // not taken, so no evidence that it was
		"stored":                      nil,
		"failed_of_a_new_severity":    nil,
		"of_other_programs":           foreign,
	}, func(t *testing.T, event []byte) ([]providers.Event, error) {
		t.Helper()
		return h.ParseEvents(t.Context(), nil, signed(seconds(noon), rand.Text(), signingKey, string(event)), noon)
	})
}

const someEvent = `{"event":"opened","timestamp":1772366400,"recipient":"ann@example.org"}`

// One flipped bit anywhere in the signature, the token or the timestamp.
func TestHookSignature(t *testing.T) {
	t.Parallel()
	body := signed(seconds(noon), rand.Text(), signingKey, someEvent)
	var p struct{ Signature map[string]string }
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatal(err)
	}
	for name, value := range p.Signature {
		for i := range len(value) * 8 {
			flipped := []byte(value)
			flipped[i/8] ^= 1 << (i % 8)
			changed := map[string]string{"timestamp": p.Signature["timestamp"], "token": p.Signature["token"], "signature": p.Signature["signature"]}
			changed[name] = string(flipped)
			again, err := json.Marshal(map[string]any{"signature": changed, "event-data": json.RawMessage(someEvent)})
			if err != nil {
				t.Fatal(err)
			}
			if events, err := newHook(t, signingKey).ParseEvents(t.Context(), nil, again, noon); !errors.Is(err, providers.ErrUnverified) {
				t.Fatalf("%s as %q: %v, %v", name, flipped, events, err)
			}
		}
		missing := map[string]string{"timestamp": p.Signature["timestamp"], "token": p.Signature["token"], "signature": p.Signature["signature"]}
		delete(missing, name)
		again, err := json.Marshal(map[string]any{"signature": missing, "event-data": json.RawMessage(someEvent)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newHook(t, signingKey).ParseEvents(t.Context(), nil, again, noon); !errors.Is(err, providers.ErrUnverified) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// Timestamp and token are signed as one text: moving a digit from one to the
// other leaves the signature as it is.
func TestHookSignatureHasNoSeam(t *testing.T) {
	t.Parallel()
	whole := seconds(noon) + strings.Repeat("7", 40)
	for cut := range len(whole) + 1 {
		body := signed(whole[:cut], whole[cut:], signingKey, someEvent)
		_, err := newHook(t, signingKey).ParseEvents(t.Context(), nil, body, noon)
		if good := whole[:cut] == seconds(noon); good != (err == nil) || !good && !errors.Is(err, providers.ErrUnverified) {
			t.Errorf("%q and %q: %v", whole[:cut], whole[cut:], err)
		}
	}
}

// The event is not signed: with a signature that was seen, another one could be
// put in its place.
func TestHookRemembersTokens(t *testing.T) {
	t.Parallel()
	h := newHook(t, signingKey)
	token := rand.Text()
	body := signed(seconds(noon), token, signingKey, someEvent)
	for range 2 { // Mailgun retries
		if events, err := h.ParseEvents(t.Context(), nil, body, noon); err != nil || len(events) != 1 {
			t.Errorf("%v, %v", events, err)
		}
	}
	other := signed(seconds(noon), token, signingKey, strings.Replace(someEvent, "opened", "complained", 1))
	for _, now := range []time.Time{noon, noon.Add(providers.HookWindow)} {
		if events, err := h.ParseEvents(t.Context(), nil, other, now); !errors.Is(err, providers.ErrUnverified) {
			t.Errorf("%v, %v", events, err)
		}
	}
	if _, err := h.ParseEvents(t.Context(), nil, signed(seconds(noon), rand.Text(), signingKey, someEvent), noon); err != nil {
		t.Errorf("another token: %v", err)
	}
}

func TestHookRotation(t *testing.T) {
	t.Parallel()
	h := newHook(t, "old-key", "new-key")
	for key, good := range map[string]bool{"old-key": true, "new-key": true, "other-key": false, "": false} {
		_, err := h.ParseEvents(t.Context(), nil, signed(seconds(noon), rand.Text(), key, someEvent), noon)
		if good != (err == nil) || !good && !errors.Is(err, providers.ErrUnverified) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// A request that is Mailgun's and cannot be understood is not called forged.
func TestHookUnreadable(t *testing.T) {
	t.Parallel()
	h := newHook(t, signingKey)
	for _, event := range []string{
		`[]`, `"text"`, `{"event":"opened"}`, `{"event":"opened","timestamp":"now"}`, `{"event":"opened","timestamp":1e300}`,
	} {
		events, err := h.ParseEvents(t.Context(), nil, signed(seconds(noon), rand.Text(), signingKey, event), noon)
		if err == nil || errors.Is(err, providers.ErrUnverified) || events != nil {
			t.Errorf("%s: %v, %v", event, events, err)
		}
	}
}

func TestHookConfig(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string][]string{"none": nil, "empty": {"a-secret", ""}, "in two lines": {"a-secret\nkey"}} {
		if h, err := mailgun.NewHook(mailgun.HookConfig{SigningKeys: keys}); err == nil || strings.Contains(err.Error(), "a-secret") {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
}

func FuzzHook(f *testing.F) {
	f.Add([]byte(`{"event":"failed","severity":"permanent","timestamp":1772366400.5,"recipient":"a\u0000@b","user-variables":{"outboxd_attempt":"k"}}`))
	f.Add([]byte(`{"event":"opened","timestamp":-1e12}`))
	f.Add(providertest.DeepJSON(`{"event":"failed","user-variables":`))
	f.Fuzz(func(t *testing.T, event []byte) {
		h := newHook(t, signingKey)
		events, err := h.ParseEvents(t.Context(), nil, signed(seconds(noon), rand.Text(), signingKey, string(event)), noon)
		providertest.CheckHookEvents(t, events, err)
	})
}

// FuzzHookUnsigned feeds what anybody can post: never an event, whatever it says.
func FuzzHookUnsigned(f *testing.F) {
	const event = `{"event":"delivered","timestamp":1772366400.5,"user-variables":{"outboxd_attempt":"k"}}`
	f.Add(signed(seconds(noon), "token", "another-key", event))
	f.Add([]byte(`{"signature":{},"event-data":` + event + `}`))
	f.Add([]byte(`{"signature":{"timestamp":"` + seconds(noon) + `","token":"t","signature":""},"event-data":` + event + `}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		h := newHook(t, signingKey)
		if events, err := h.ParseEvents(t.Context(), nil, body, noon); err == nil || len(events) > 0 {
			t.Errorf("%d events, error %v", len(events), err)
		}
	})
}
