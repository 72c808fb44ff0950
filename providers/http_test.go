package providers_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// post sends a payload to a provider at url.
func post(t *testing.T, client *http.Client, url string, s providers.Sending) (providers.Reply, *providers.Error) {
	t.Helper()
	if s.Payload == nil {
		s.Payload = []byte(`{"to":"a@example.org"}`)
	}
	call := providers.Call{Client: client, URL: url, Header: http.Header{"Idempotency-Key": {"k"}}}
	reply, err := call.Post(t.Context(), s)
	if err == nil {
		return reply, nil
	}
	e, ok := errors.AsType[*providers.Error](err)
	if !ok {
		t.Fatalf("error of type %T: %v", err, err)
	}
	return reply, e
}

func TestPostIsMadeOnceWithAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	// F19, I9. The first request warms the connection up; the second is read
	// and then reset, which is when net/http would repeat it.
	breakSecond := func(p *providertest.HTTP) {
		p.Respond(func(r providertest.Seen) providertest.Reaction {
			if r.Number == 2 {
				return providertest.Reset()
			}
			return providertest.Reply(http.StatusOK, "")
		})
	}
	t.Run("Post", func(t *testing.T) {
		t.Parallel()
		p := providertest.NewHTTP(t, providertest.SendGrid)
		breakSecond(p)
		client := providers.NewHTTPClient()
		if _, e := post(t, client, p.URL(), providers.Sending{}); e != nil {
			t.Fatal(e)
		}
		_, e := post(t, client, p.URL(), providers.Sending{})
		if e == nil || e.Outcome != providers.InDoubt || e.Code != providers.CodeNoReply {
			t.Errorf("got %v, want in doubt %s", e, providers.CodeNoReply)
		}
		if n := p.Requests(); n != 2 {
			t.Errorf("%d requests on the wire, want 2", n)
		}
	})
	t.Run("control: net/http by itself", func(t *testing.T) {
		t.Parallel()
		p := providertest.NewHTTP(t, providertest.SendGrid)
		breakSecond(p)
		client := providers.NewHTTPClient()
		for range 2 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL(), strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Idempotency-Key", "k")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		if n := p.Requests(); n != 3 {
			t.Errorf("%d requests on the wire, want 3: the case above proves nothing", n)
		}
	})
}

func TestPostKeepsRedirects(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		p := providertest.NewHTTP(t, providertest.SendGrid)
		p.Respond(func(providertest.Seen) providertest.Reaction {
			return providertest.Reply(status, "").With("Location", "/elsewhere")
		})
		client := providers.NewHTTPClient()
		client.CheckRedirect = nil // a third party's client follows
		reply, e := post(t, client, p.URL(), providers.Sending{})
		if e != nil || reply.Status != status || p.Requests() != 1 {
			t.Errorf("got %d, %v after %d requests, want the %d itself after 1", reply.Status, e, p.Requests(), status)
		}
	}
}

func TestPostBoundsTheReply(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.SendGrid)
	p.Respond(func(providertest.Seen) providertest.Reaction {
		return providertest.Reply(http.StatusOK, strings.Repeat("x", 1<<20))
	})
	reply, e := post(t, providers.NewHTTPClient(), p.URL(), providers.Sending{})
	if e != nil || len(reply.Body) != 64<<10 {
		t.Errorf("got %d bytes, %v, want 64 KiB", len(reply.Body), e)
	}
}

func TestPostSendsExactlyThePayload(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.SendGrid)
	p.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reply(http.StatusOK, "") })
	client := providers.NewHTTPClient()
	for _, size := range []int{1, 2, 4095, 4096, 4097, 100_000} {
		payload := bytes.Repeat([]byte("p"), size)
		if _, e := post(t, client, p.URL(), providers.Sending{Payload: payload}); e != nil {
			t.Fatalf("%d bytes: %v", size, e)
		}
		seen := p.Seen()
		last := seen[len(seen)-1]
		if !bytes.Equal(last.Body, payload) || last.Header.Get("Content-Length") != "" && len(last.Body) != size {
			t.Errorf("%d bytes arrived, want %d", len(last.Body), size)
		}
	}
}

func TestPostRefusesWhatItCannotSend(t *testing.T) {
	t.Parallel()
	const secret = "in-the-url"
	tests := []struct {
		name string
		call providers.Call
		body string
		want providers.Outcome
	}{
		{"no payload", providers.Call{Client: providers.NewHTTPClient(), URL: "http://127.0.0.1:1"}, "", providers.Rejected},
		{"no client", providers.Call{URL: "http://127.0.0.1:1"}, "x", providers.Deferred},
		{"bad URL", providers.Call{Client: providers.NewHTTPClient(), URL: "http://" + secret + "\x7f"}, "x", providers.Deferred},
		{"bad header", providers.Call{
			Client: providers.NewHTTPClient(), URL: "http://127.0.0.1:1",
			Header: http.Header{"Authorization": {secret + "\n"}},
		}, "x", providers.Deferred},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := tt.call.Post(t.Context(), providers.Sending{Payload: []byte(tt.body)})
			if e := providers.AsError(err); e.Outcome != tt.want {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error quotes a secret: %v", err)
			}
		})
	}
}

func TestPostOverHTTP2(t *testing.T) {
	t.Parallel()
	errFence := errors.New("no longer ours")
	tests := []struct {
		name    string
		confirm func() error
		handle  http.HandlerFunc
		want    providers.Outcome
		code    string
		status  int
	}{
		{
			name: "accepted", status: 202,
			handle: func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(http.StatusAccepted)
			},
		},
		{
			name: "reset after the body (F19)", want: providers.InDoubt, code: providers.CodeNoReply,
			handle: func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				panic(http.ErrAbortHandler)
			},
		},
		{
			name: "not confirmed", want: providers.Deferred, code: providers.CodeNotConfirmed,
			confirm: func() error { return errFence },
			handle:  func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var complete atomic.Int32
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err == nil && r.ProtoMajor == 2 {
					complete.Add(1)
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				tt.handle(w, r)
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			reply, e := post(t, server.Client(), server.URL, providers.Sending{Confirm: tt.confirm})
			server.Close()
			if tt.status != 0 {
				if e != nil || reply.Status != tt.status {
					t.Fatalf("got %d, %v, want %d", reply.Status, e, tt.status)
				}
			} else if e == nil || e.Outcome != tt.want || e.Code != tt.code {
				t.Errorf("got %v, want %v %s", e, tt.want, tt.code)
			}
			if got, want := complete.Load(), map[bool]int32{true: 0, false: 1}[tt.confirm != nil]; got != want {
				t.Errorf("%d complete requests at the server, want %d", got, want)
			}
		})
	}
}

func TestPostEndsWithAnEndedContext(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.SendGrid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	asked := false
	call := providers.Call{Client: providers.NewHTTPClient(), URL: p.URL()}
	_, err := call.Post(ctx, providers.Sending{Payload: []byte("x"), Confirm: func() error { asked = true; return nil }})
	if e := providers.AsError(err); e.Outcome != providers.Deferred || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want deferred", err)
	}
	if asked || p.Requests() != 0 {
		t.Error("something was begun")
	}
}
