package mailgun_test

import (
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/mailgun"
	"github.com/outboxd/outboxd/providers/providertest"
)

// The recorded answer has events of three messages: one that was accepted under
// another id, one that was rejected and one that was delivered. Only the last
// proves that Mailgun took it.
func TestFindTakesNoLookAlike(t *testing.T) {
	t.Parallel()
	p, server := start(t, mailgun.Config{}, nil)
	server.RespondSearch(always(providertest.Reply(200, recorded(t, "events.json"))))
	for key, want := range map[string]struct {
		receipt providers.Receipt
		found   providers.Found
	}{
		providertest.Request(1).Key: {
			providers.Receipt{ProviderMessageID: "0198c0de-0000-7000-8000-000000000001@mg.example.com", Status: 200},
			providers.FoundAccepted,
		},
		providertest.Request(2).Key: {}, // rejected
		providertest.Request(3).Key: {},
		"20260301164300":            {},
		"":                          {},
		"a OR b":                    {},
	} {
		receipt, found, err := p.Find(t.Context(), key, time.Now())
		if err != nil || receipt != want.receipt || found != want.found {
			t.Errorf("%q: got %+v, %d, %v, want %+v", key, receipt, found, err, want)
		}
	}
}

func TestFindAsks(t *testing.T) {
	t.Parallel()
	p, server := start(t, mailgun.Config{}, nil)
	if _, _, err := p.Find(t.Context(), "k", time.Unix(1_772_370_000, 0)); err != nil {
		t.Fatal(err)
	}
	seen := server.Searches()[0]
	for name, want := range map[string]string{
		"message-id": "k@mg.example.com", "begin": "1772366400", "ascending": "yes",
	} {
		if got := seen.Query.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if seen.Path != "/v3/mg.example.com/events" || seen.Header.Get("Authorization") != "Basic "+credentials {
		t.Errorf("path %s, credentials %q", seen.Path, seen.Header.Get("Authorization"))
	}
}

// What one domain has sent is not found in another.
func TestFindInItsDomain(t *testing.T) {
	t.Parallel()
	p, server := start(t, mailgun.Config{}, nil)
	s := sending(t, p, 1)
	if _, err := p.Send(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	other := newProvider(t, mailgun.Config{BaseURL: server.URL(), Domain: "mg.example.org"})
	for p, want := range map[*mailgun.Provider]providers.Found{p: providers.FoundAccepted, other: providers.FoundNothing} {
		if _, found, err := p.Find(t.Context(), s.Key, time.Now()); err != nil || found != want {
			t.Errorf("found %d, %v, want %d", found, err, want)
		}
	}
}
