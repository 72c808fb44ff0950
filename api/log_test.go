package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/providers"
)

// saying is a hook that says something of the request that it was given.
type saying func() error

// ParseEvents implements [providers.Hook].
func (s saying) ParseEvents(context.Context, http.Header, []byte, time.Time) ([]providers.Event, error) {
	return nil, s()
}

// Each request has one line, whatever becomes of it. No line has the path, the
// query, or a value that an error or a panic quotes.
func TestRequestLines(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	handler := api.New(api.Config{Logger: slog.New(slog.NewJSONHandler(&log, nil)), Hooks: map[string]providers.Hook{
		"garbled": saying(func() error { return errors.New(`parsing time "canary" of canary@example.org`) }),
		"away": saying(func() error {
			return fmt.Errorf(`%w: Get "https://sns.test/?key=canary"`, providers.ErrHookUnavailable)
		}),
		"panics": saying(func() error { panic(`index "canary" of canary@example.org`) }),
	}})
	requests := []struct {
		method, path, route string
		status              int
	}{
		{http.MethodGet, "/healthz?to=canary@example.org", "/healthz", http.StatusOK},
		{http.MethodDelete, "/suppressions/canary@example.org", "/suppressions/{address}", http.StatusUnauthorized},
		{http.MethodGet, "/canary@example.org", "", http.StatusNotFound},
		{http.MethodPost, "/hooks/garbled", "/hooks/{provider}", http.StatusBadRequest},
		{http.MethodPost, "/hooks/away", "/hooks/{provider}", http.StatusServiceUnavailable},
		{http.MethodPost, "/hooks/panics", "/hooks/{provider}", http.StatusInternalServerError},
	}
	for _, r := range requests {
		log.Reset()
		req := httptest.NewRequestWithContext(t.Context(), r.method, r.path, strings.NewReader(`{"to":"canary@example.org"}`))
		req.Header.Set("Content-Type", "application/json")
		handler.ServeHTTP(httptest.NewRecorder(), req)
		if strings.Contains(log.String(), "canary") {
			t.Errorf("%s %s logs\n%s", r.method, r.path, &log)
		}
		lines := 0
		for text := range strings.Lines(log.String()) {
			var line struct {
				Msg, Method, Route string
				Status             int
				RequestID          string `json:"request_id"`
			}
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Fatalf("%v in %s", err, text)
			}
			if line.Msg != "request" {
				continue
			}
			lines++
			if line.Method != r.method || line.Route != r.route || line.Status != r.status || line.RequestID == "" {
				t.Errorf("%s %s: %s", r.method, r.path, text)
			}
		}
		if lines != 1 {
			t.Errorf("%s %s has %d lines:\n%s", r.method, r.path, lines, &log)
		}
	}
}
