package providertest

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/providers"
)

// Coverage is how much of a request its signature covers.
type Coverage int

// The coverages.
const (
	// CoversBody: all of the body.
	CoversBody Coverage = iota
	// CoversEvents: the part of the body that events are read from.
	CoversEvents
	// CoversNothing: the body may be another one.
	CoversNothing
)

// HookSuite describes a hook under test.
type HookSuite struct {
	// Hook verifies what Webhooks signs.
	Hook     providers.Hook
	Webhooks Webhooks
	// Headers are those that a request is verified by.
	Headers []string
	Covers  Coverage
	// Untimed says that requests are not signed for a time.
	Untimed bool
}

// hookTime is when requests are signed, and when their events happened.
var hookTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// RunHook checks that a hook takes what the service posts, and nothing else.
func RunHook(t *testing.T, s HookSuite) {
	t.Helper()
	for name, check := range map[string]func(*testing.T, HookSuite){
		"events":          checkHookEvents,
		"repeated (F22)":  checkHookRepeats,
		"flipped bits":    checkHookBits,
		"window":          checkHookWindow,
		"missing headers": checkHookHeaders,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, s)
		})
	}
}

func hookEvent(kind EventKind) Event {
	return Event{
		Kind: kind, ID: "id-" + string(kind), At: hookTime, Recipient: "a@example.org",
		Message: Accepted{
			At: hookTime, ID: "m-1", Reference: "key-1", From: "s@example.com", To: []string{"a@example.org"}, Subject: "Hello",
		},
	}
}

// request returns the one request that reports an event, and false when the
// service does not report such events.
func (s HookSuite) request(t *testing.T, e Event, at time.Time) (Webhook, bool) {
	t.Helper()
	list, err := s.Webhooks.Post([]Event{e}, at)
	if err != nil || len(list) > 1 {
		t.Fatalf("%d requests, %v", len(list), err)
	}
	if len(list) == 0 {
		return Webhook{}, false
	}
	return list[0], true
}

func (s HookSuite) parse(t *testing.T, w Webhook) ([]providers.Event, error) {
	t.Helper()
	return s.Hook.ParseEvents(t.Context(), w.Header, w.Body, hookTime)
}

// must returns the events of a bounce's request, which every service reports,
// and the request.
func (s HookSuite) must(t *testing.T) (Webhook, []providers.Event) {
	t.Helper()
	w, ok := s.request(t, hookEvent(EventBounced), hookTime)
	if !ok {
		t.Fatal("no bounces are reported")
	}
	events, err := s.parse(t, w)
	if err != nil {
		t.Fatal(err)
	}
	return w, events
}

var hookTypes = map[EventKind]providers.EventType{
	EventProcessed:  providers.EventAccepted,
	EventDeferred:   providers.EventDelayed,
	EventDelivered:  providers.EventDelivered,
	EventBounced:    providers.EventBounced,
	EventComplained: providers.EventComplained,
}

func checkHookEvents(t *testing.T, s HookSuite) {
	for kind, want := range hookTypes {
		w, ok := s.request(t, hookEvent(kind), hookTime)
		if !ok {
			continue
		}
		got, err := s.parse(t, w)
		if err != nil || len(got) != 1 {
			t.Errorf("%s: events %+v, error %v", kind, got, err)
			continue
		}
		e := got[0]
		if want == providers.EventBounced && e.Detail == "" {
			t.Error("a bounce without its reason")
		}
		expected := providers.Event{
			Type: want, Reference: "key-1", ProviderMessageID: "m-1", Recipient: "a@example.org",
			OccurredAt: hookTime, Permanent: want == providers.EventBounced, Detail: e.Detail,
			WholeMessage: e.WholeMessage, // some report of the message only
		}
		if want == providers.EventAccepted && e.Recipient == "" {
			expected.Recipient = "" // some report that of the message
		}
		if diff := cmp.Diff(expected, e); diff != "" {
			t.Errorf("%s: %s", kind, diff)
		}
	}
}

func checkHookRepeats(t *testing.T, s HookSuite) {
	e := hookEvent(EventBounced)
	_, first := s.must(t)
	w, _ := s.request(t, s.Webhooks.Again(e), hookTime)
	again, err := s.parse(t, w)
	if diff := cmp.Diff(first, again); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
}

// refused reports whether nothing was taken from a request.
func refused(events []providers.Event, err error) bool {
	return len(events) == 0 && (errors.Is(err, providers.ErrUnverified) || errors.Is(err, providers.ErrHookUnavailable))
}

func checkHookBits(t *testing.T, s HookSuite) {
	w, events := s.must(t)
	for i := range w.Body {
		body := append([]byte(nil), w.Body...)
		body[i] ^= 1 << (i % 8)
		got, err := s.parse(t, Webhook{Header: w.Header, Body: body})
		same := err == nil && cmp.Equal(events, got)
		if !refused(got, err) && (s.Covers == CoversBody || s.Covers == CoversEvents && !same) {
			t.Fatalf("byte %d of the body, %q, flipped to %q: %+v, %v", i, w.Body[i], body[i], got, err)
		}
	}
	for _, name := range s.Headers {
		value := w.Header.Get(name)
		for i := range len(value) * 8 {
			flipped := []byte(value)
			flipped[i/8] ^= 1 << (i % 8)
			header := w.Header.Clone()
			header.Set(name, string(flipped))
			if got, err := s.parse(t, Webhook{Header: header, Body: w.Body}); !refused(got, err) {
				t.Fatalf("%s as %q: %+v, %v", name, flipped, got, err)
			}
		}
	}
}

func checkHookWindow(t *testing.T, s HookSuite) {
	if s.Untimed {
		return
	}
	const second = time.Second
	for shift, taken := range map[time.Duration]bool{
		-providers.HookWindow: true, providers.HookWindow: true,
		-providers.HookWindow - second: false, providers.HookWindow + second: false,
		-24 * time.Hour: false, 24 * time.Hour: false,
	} {
		w, _ := s.request(t, hookEvent(EventBounced), hookTime.Add(shift))
		if events, err := s.parse(t, w); taken != (err == nil) || !taken && !refused(events, err) {
			t.Errorf("signed for %v from now: %+v, %v", shift, events, err)
		}
	}
}

func checkHookHeaders(t *testing.T, s HookSuite) {
	w, _ := s.must(t)
	for _, name := range s.Headers {
		for _, value := range [][]string{nil, {""}} {
			header := w.Header.Clone()
			header[http.CanonicalHeaderKey(name)] = value
			if events, err := s.parse(t, Webhook{Header: header, Body: w.Body}); !refused(events, err) {
				t.Errorf("%s as %q: %+v, %v", name, value, events, err)
			}
		}
	}
	for _, body := range []string{"", "null", "{}", "[]", `"text"`} {
		if events, err := s.parse(t, Webhook{Header: http.Header{}, Body: []byte(body)}); !refused(events, err) {
			t.Errorf("%s with no header: %+v, %v", body, events, err)
		}
	}
}

// RunHookPayloads checks what becomes of bodies in the forms that a vendor
// documents. They are in a file: a list of objects with a name, the vendor's page
// and a body. want has the events of each; parse signs a body and has it parsed.
func RunHookPayloads(
	t *testing.T, path string, want map[string][]providers.Event, parse func(t *testing.T, body []byte) ([]providers.Event, error),
) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Name, Page string
		Body       json.RawMessage
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range list {
		names = append(names, p.Name)
		if !strings.HasPrefix(p.Page, "https://") {
			t.Errorf("%s: no page beside it", p.Name)
		}
		got, err := parse(t, p.Body)
		if diff := cmp.Diff(want[p.Name], got); diff != "" || err != nil {
			t.Errorf("%s: %v: %s", p.Name, err, diff)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(slices.Values(names))); diff != "" {
		t.Errorf("what is wanted and what is in %s: %s", path, diff)
	}
}

// DeepJSON returns a text of JSON that begins as said and goes on into arrays, 10,000
// levels deep, which it leaves open: what a parser that calls itself may die of.
func DeepJSON(begin string) []byte { return []byte(begin + strings.Repeat("[", 10_000)) }

// CheckHookEvents checks what holds of the events of any verified request: they
// are complete and can be stored.
func CheckHookEvents(t *testing.T, events []providers.Event, err error) {
	t.Helper()
	if err != nil && len(events) > 0 {
		t.Errorf("%d events beside the error %v", len(events), err)
	}
	for _, e := range events {
		texts := e.Reference + e.ProviderMessageID + e.Recipient + e.Detail
		switch {
		case e.Type == "":
			t.Errorf("no type: %+v", e)
		case e.OccurredAt.IsZero() || e.OccurredAt.Location() != time.UTC:
			t.Errorf("no time in UTC: %+v", e)
		case len(e.Reference) > 256 || len(e.ProviderMessageID) > 256 || len(e.Recipient) > 320 || len(e.Detail) > 500:
			t.Errorf("too long: %+v", e)
		case !utf8.ValidString(texts) || strings.ContainsFunc(texts, unicode.IsControl):
			t.Errorf("not printable: %q", texts)
		case e.Permanent && e.Type != providers.EventBounced:
			t.Errorf("permanent: %+v", e)
		}
	}
}
