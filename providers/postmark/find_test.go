package postmark_test

import (
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/postmark"
	"github.com/outboxd/outboxd/providers/providertest"
)

// The recorded answer has a message with other metadata before the right one:
// a search that finds too much finds the right one, and no look-alike.
func TestFindTakesNoLookAlike(t *testing.T) {
	t.Parallel()
	p, server := start(t, postmark.Config{}, nil)
	server.RespondSearch(always(providertest.Reply(200, recorded(t, "search.json"))))
	for key, want := range map[string]struct {
		receipt providers.Receipt
		found   providers.Found
	}{
		providertest.Request(1).Key: {providers.Receipt{ProviderMessageID: "b7bc2f4a-e38e-4336-af7d-e6c392c2f817", Status: 200}, providers.FoundAccepted},
		providertest.Request(2).Key: {},
		"":                          {},
		"a&metadata_color=blue":     {},
	} {
		receipt, found, err := p.Find(t.Context(), key, time.Now())
		if err != nil || receipt != want.receipt || found != want.found {
			t.Errorf("%q: got %+v, %d, %v, want %+v", key, receipt, found, err, want)
		}
	}
}

// A search looks into the stream that the messages went to.
func TestFindInItsStream(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"", "receipts"} {
		p, server := start(t, postmark.Config{MessageStream: stream}, nil)
		s := sending(t, p, 1)
		if _, err := p.Send(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		other := newProvider(t, postmark.Config{BaseURL: server.URL(), MessageStream: "other"})
		for p, want := range map[*postmark.Provider]providers.Found{p: providers.FoundAccepted, other: providers.FoundNothing} {
			if _, found, err := p.Find(t.Context(), s.Key, time.Now()); err != nil || found != want {
				t.Errorf("stream %q: found %d, %v, want %d", stream, found, err, want)
			}
		}
	}
}

// The sandbox keeps nothing, and its token is good for no search.
func TestFindInTheSandbox(t *testing.T) {
	t.Parallel()
	p, server := start(t, postmark.Config{Sandbox: true}, nil)
	if _, found, err := p.Find(t.Context(), providertest.Request(1).Key, time.Now()); found != providers.FoundNothing || err != nil {
		t.Errorf("found %d, %v, want nothing", found, err)
	}
	if n := len(server.Searches()); n != 0 {
		t.Errorf("%d searches, want none", n)
	}
}
