package resend_test

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// A replay is what outboxd does about a doubt: the same key and the same bytes
// again, until there is an answer.
func TestReplay(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]providertest.Reaction{
		"reply lost":           providertest.Accept().Then(providertest.Reset()),
		"500 after acceptance": providertest.Accept().Then(providertest.Reply(500, "")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, server := start(t, func(r providertest.Seen) providertest.Reaction {
				if r.Number == 1 {
					return first
				}
				return providertest.Accept()
			})
			s := sending(t, p, 1)
			if _, err := p.Send(t.Context(), s); err == nil || providers.AsError(err).Outcome != providers.InDoubt {
				t.Fatalf("first: %v, want in doubt", err)
			}
			receipt, err := p.Send(t.Context(), s)
			if err != nil || receipt.ProviderMessageID != "resend-1" {
				t.Errorf("replay: %+v, %v, want the first message's id", receipt, err)
			}
			if n := len(server.Accepted()); n != 1 {
				t.Errorf("%d messages accepted, want 1", n)
			}
			want := []providertest.Replay{{Request: 2, Reference: s.Key, ID: "resend-1"}}
			if got := server.Replays(); !slices.Equal(got, want) {
				t.Errorf("replays %+v, want %+v", got, want)
			}
		})
	}
}

// I8 broken: other bytes under a used key. The first request may have been
// accepted, and here it was: the conflict is no failure of the message.
func TestOtherBytesUnderTheKey(t *testing.T) {
	t.Parallel()
	p, server := start(t, nil)
	s := sending(t, p, 1)
	if _, err := p.Send(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	s.Payload = bytes.Replace(s.Payload, []byte("Message 1"), []byte("Message 2"), 1)
	_, err := p.Send(t.Context(), s)
	e := providers.AsError(err)
	if err == nil || e.Outcome != providers.InDoubt || e.Code != "invalid_idempotent_request" {
		t.Errorf("got %v, want in doubt, invalid_idempotent_request", err)
	}
	if n := len(server.Accepted()); n != 1 {
		t.Errorf("%d messages accepted, want 1", n)
	}
}

func TestConcurrentRequestsWithOneKey(t *testing.T) {
	t.Parallel()
	released := make(chan struct{})
	p, server := start(t, func(r providertest.Seen) providertest.Reaction {
		if r.Number == 1 {
			return providertest.Accept().When(released)
		}
		return providertest.Accept()
	})
	s := sending(t, p, 1)
	first := make(chan error)
	go func() {
		_, err := p.Send(t.Context(), s)
		first <- err
	}()
	if err := server.WaitAccepted(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	_, err := p.Send(t.Context(), s)
	if e := providers.AsError(err); err == nil || e.Outcome != providers.InDoubt ||
		e.Code != "concurrent_idempotent_requests" || e.RetryAfter <= 0 || e.RetryAfter > 10*time.Second {
		t.Errorf("second: %+v, want in doubt for a short while", e)
	}
	close(released)
	if err := <-first; err != nil {
		t.Errorf("first: %v", err)
	}
	if receipt, err := p.Send(t.Context(), s); err != nil || receipt.ProviderMessageID != "resend-1" {
		t.Errorf("third: %+v, %v, want the first message's id", receipt, err)
	}
	if n := len(server.Accepted()); n != 1 {
		t.Errorf("%d messages accepted, want 1", n)
	}
}

// F19, I9: net/http repeats a POST by itself when it has an Idempotency-Key, a
// connection that was used before, and that connection breaks. The service
// sees two requests and the client a clean 200.
func TestOneRequestOnAWarmConnection(t *testing.T) {
	t.Parallel()
	breakSecond := func(r providertest.Seen) providertest.Reaction {
		if r.Number == 2 {
			return providertest.Reset()
		}
		return providertest.Accept()
	}

	t.Run("the adapter", func(t *testing.T) {
		t.Parallel()
		p, server := start(t, breakSecond)
		if _, err := p.Send(t.Context(), sending(t, p, 1)); err != nil {
			t.Fatal(err)
		}
		_, err := p.Send(t.Context(), sending(t, p, 2))
		if e := providers.AsError(err); err == nil || e.Outcome != providers.InDoubt || e.Code != providers.CodeNoReply {
			t.Errorf("got %v, want in doubt, %s", err, providers.CodeNoReply)
		}
		server.Close()
		checkWarm(t, server, 2)
		if n := len(server.Accepted()); n != 1 {
			t.Errorf("%d messages accepted, want only the first", n)
		}
	})

	// The control: without it, a server that does not meet the conditions
	// would make the case above pass.
	t.Run("a plain client repeats", func(t *testing.T) {
		t.Parallel()
		p, server := start(t, breakSecond)
		client := providers.NewHTTPClient()
		for n := 1; n <= 2; n++ {
			s := sending(t, p, n)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL()+"/emails", bytes.NewReader(s.Payload))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+apiKey)
			req.Header.Set("Idempotency-Key", s.Key)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatalf("request %d: %v", n, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("request %d: status %d", n, resp.StatusCode)
			}
		}
		server.Close()
		checkWarm(t, server, 3)
	})
}

// checkWarm checks how many requests there were, and that the first two were
// on one connection.
func checkWarm(t *testing.T, server *providertest.HTTP, want int) {
	t.Helper()
	seen := server.Seen()
	if len(seen) != want {
		t.Fatalf("%d requests on the wire, want %d", len(seen), want)
	}
	if seen[0].Connection != seen[1].Connection {
		t.Error("the second request was on a new connection: the case was not hit")
	}
}
