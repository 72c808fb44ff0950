package providertest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// testFinder checks a provider that can be asked what became of a message. The
// provider's dialect needs its [Search] for it.
func testFinder(t *testing.T, s Suite) {
	b := newBench(t, s)
	if _, ok := b.provider.(providers.Finder); !ok {
		t.Skip("the provider cannot be asked")
	}
	if server, ok := b.server.(*HTTP); !ok || !server.hasSearch() {
		t.Skip("the programmable provider has no search")
	}
	for _, tt := range []struct {
		name string
		test func(*testing.T, *finderBench)
	}{
		{"an accepted message is found", testFound},
		{"absence proves nothing while the index lags", testFindLag},
		{"an answer that is none proves nothing", testFindGarbage},
		{"the context ends a search", testFindContext},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.test(t, newFinderBench(t, s))
		})
	}
}

// finderBench is an adapter that has sent a message, with the provider that has
// it.
type finderBench struct {
	*bench
	finder  providers.Finder
	server  *HTTP
	sent    providers.Sending
	since   time.Time
	receipt providers.Receipt
}

func newFinderBench(t *testing.T, s Suite) *finderBench {
	t.Helper()
	b := &finderBench{bench: newBench(t, s), since: time.Now()}
	b.finder, _ = b.bench.provider.(providers.Finder)
	b.server, _ = b.bench.server.(*HTTP)
	b.sent = b.sending(t, 1, false)
	receipt, e := b.send(patient(t), t, b.sent)
	if e != nil {
		t.Fatalf("send: %v", e)
	}
	b.receipt = receipt
	return b
}

// find searches and checks what holds for every search: an error is no answer,
// and has no secret in it.
func (b *finderBench) find(ctx context.Context, t *testing.T, key string) (providers.Receipt, providers.Found, error) {
	t.Helper()
	receipt, found, err := b.finder.Find(ctx, key, b.since)
	if err != nil && found != providers.FoundNothing {
		t.Errorf("found %d together with an error: %v", found, err)
	}
	if found != providers.FoundAccepted && receipt != (providers.Receipt{}) {
		t.Errorf("a receipt of a message that was not found: %+v", receipt)
	}
	if err != nil {
		b.checkSecrets(t, err, providers.AsError(err))
	}
	return receipt, found, err
}

func testFound(t *testing.T, b *finderBench) {
	receipt, found, err := b.find(patient(t), t, b.sent.Key)
	if err != nil || found != providers.FoundAccepted || receipt.ProviderMessageID != b.receipt.ProviderMessageID {
		t.Errorf("got %+v, %d, %v, want the message %+v", receipt, found, err, b.receipt)
	}
	// What was never sent is not found, although much alike was.
	if receipt, found, err = b.find(patient(t), t, key(2)); err != nil || found == providers.FoundAccepted {
		t.Errorf("another key: %+v, %d, %v, want nothing", receipt, found, err)
	}
	// Of several, the right one.
	if _, e := b.send(patient(t), t, b.sending(t, 2, false)); e != nil {
		t.Fatalf("send: %v", e)
	}
	receipt, found, err = b.find(patient(t), t, b.sent.Key)
	if err != nil || found != providers.FoundAccepted || receipt.ProviderMessageID != b.receipt.ProviderMessageID {
		t.Errorf("of two: %+v, %d, %v, want the message %+v", receipt, found, err, b.receipt)
	}
	if n := b.server.Requests(); n != 2 {
		t.Errorf("%d hand-overs, want 2: a search changes nothing", n)
	}
}

func testFindLag(t *testing.T, b *finderBench) {
	b.server.SetSearchLag(time.Hour)
	if receipt, found, err := b.find(patient(t), t, b.sent.Key); err != nil || found != providers.FoundNothing {
		t.Errorf("got %+v, %d, %v, want nothing", receipt, found, err)
	}
	b.server.SetSearchLag(0)
	if receipt, found, err := b.find(patient(t), t, b.sent.Key); err != nil || found != providers.FoundAccepted {
		t.Errorf("after the lag: %+v, %d, %v, want the message", receipt, found, err)
	}
}

// testFindGarbage answers searches with everything but the message. None may
// be taken for it, or for the proof that there is none.
func testFindGarbage(t *testing.T, b *finderBench) {
	answers := map[string]func(Seen) Reaction{
		"no JSON":   always(Reply(200, "<html>"+b.sent.Key)),
		"empty":     always(Reply(200, "")),
		"null":      always(Reply(200, "null")),
		"array":     always(Reply(200, `["`+b.sent.Key+`"]`)),
		"string":    always(Reply(200, `"`+b.sent.Key+`"`)),
		"no fields": always(Reply(200, "{}")),
		"the key in some field": always(Reply(200,
			`{"key":"`+b.sent.Key+`","items":[{"id":"`+b.sent.Key+`"}],"Messages":[{"MessageID":"x"}]}`)),
		"cut short": always(Raw("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"")),
		"long":      always(Reply(200, `{"x":"`+strings.Repeat("x", 2<<20)+`"}`)),
		"no HTTP":   always(Raw("250 this is not HTTP\r\n")),
		"reset":     always(Reset()),
		"redirect": func(r Seen) Reaction {
			return Reply(http.StatusTemporaryRedirect, "").With("Location", r.Path+"?"+r.Query.Encode())
		},
		"credentials": func(r Seen) Reaction { return Reply(400, headerText(r.Header)) },
	}
	for _, status := range []int{204, 400, 401, 403, 404, 429, 500, 503} {
		answers[http.StatusText(status)] = always(Reply(status, ""))
	}
	for name, answer := range answers {
		before := len(b.server.Searches())
		b.server.RespondSearch(answer)
		if receipt, found, err := b.find(patient(t), t, b.sent.Key); found != providers.FoundNothing {
			t.Errorf("%s: %+v, %d, %v, want nothing", name, receipt, found, err)
		}
		if n := len(b.server.Searches()) - before; name == "redirect" && n != 1 {
			t.Errorf("%d searches after a redirect, want 1", n)
		}
	}
}

func testFindContext(t *testing.T, b *finderBench) {
	ctx, cancel := context.WithCancel(t.Context())
	b.server.RespondSearch(func(Seen) Reaction {
		cancel()
		return Hang()
	})
	if _, found, err := b.find(ctx, t, b.sent.Key); !errors.Is(err, context.Canceled) {
		t.Errorf("ended during the search: %d, %v, want the context's end", found, err)
	}
	before := len(b.server.Searches())
	if _, found, err := b.find(ctx, t, b.sent.Key); !errors.Is(err, context.Canceled) {
		t.Errorf("ended before: %d, %v, want the context's end", found, err)
	}
	if n := len(b.server.Searches()) - before; n != 0 {
		t.Errorf("%d searches after the end, want none", n)
	}
}
