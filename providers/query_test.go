package providers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// query asks a server that answers as handle says.
func query(t *testing.T, handle http.HandlerFunc) (answer struct{ ID string }, e *providers.Error) {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	client := providers.NewHTTPClient()
	t.Cleanup(client.CloseIdleConnections)
	client.CheckRedirect = nil // a third party's client follows
	q := providers.Query{Client: client, URL: server.URL + "?secret", Header: http.Header{"Authorization": {"secret"}}}
	err := q.JSON(t.Context(), &answer)
	if err == nil {
		return answer, nil
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error quotes a secret: %v", err)
	}
	e, ok := errors.AsType[*providers.Error](err)
	if !ok || e.Outcome != providers.InDoubt {
		t.Errorf("%T %v, want a *providers.Error in doubt", err, err)
	}
	return answer, e
}

func TestQuery(t *testing.T) {
	t.Parallel()
	answer, e := query(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"id":%q,"other":1}`, r.Method+r.Header.Get("Authorization"))
	})
	if e != nil || answer.ID != "GETsecret" {
		t.Errorf("got %+v, %v, want the answer", answer, e)
	}
}

func TestQueryFailures(t *testing.T) {
	t.Parallel()
	write := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
	}
	tests := []struct {
		name   string
		handle http.HandlerFunc
		code   string
		status int
		wait   time.Duration
	}{
		{"refused", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret", http.StatusUnauthorized) }, providers.CodeSearchRefused, 401, 0},
		{"limited", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}, providers.CodeSearchRefused, 429, 7 * time.Second},
		{"another success", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, providers.CodeSearchRefused, 204, 0},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/secret", http.StatusTemporaryRedirect)
		}, providers.CodeSearchRefused, 307, 0},
		{"no JSON", write("secret"), providers.CodeBadAnswer, 200, 0},
		{"nothing", write(""), providers.CodeBadAnswer, 200, 0},
		{"other types", write(`{"id":["secret"]}`), providers.CodeBadAnswer, 200, 0},
		{"too long", write(`{"id":"x"}` + strings.Repeat(" ", 1<<20)), providers.CodeBadAnswer, 200, 0},
		{"broken off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "99")
			_, _ = w.Write([]byte(`{"id":"x"}`))
		}, providers.CodeNoAnswer, 0, 0},
		{"no reply", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, providers.CodeNoAnswer, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, e := query(t, tt.handle)
			if e == nil || e.Code != tt.code || e.Status != tt.status || e.RetryAfter != tt.wait {
				t.Errorf("got %+v, want %s %d with a wait of %v", e, tt.code, tt.status, tt.wait)
			}
		})
	}
}

func TestQueryThatCannotBeMade(t *testing.T) {
	t.Parallel()
	client := providers.NewHTTPClient()
	for name, q := range map[string]providers.Query{
		"no client": {URL: "http://127.0.0.1:1"},
		"bad URL":   {Client: client, URL: "http://secret\x7f"},
		"nobody":    {Client: client, URL: "http://127.0.0.1:1"},
	} {
		err := q.JSON(t.Context(), nil)
		if e := providers.AsError(err); err == nil || e.Code != providers.CodeNoAnswer || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", name, err, providers.CodeNoAnswer)
		}
	}
}

func TestQueryEndsWithItsContext(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	err := providers.Query{Client: providers.NewHTTPClient(), URL: server.URL}.JSON(ctx, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's end", err)
	}
}
