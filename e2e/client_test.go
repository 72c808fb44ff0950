package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// answer is an HTTP answer.
type answer struct {
	status   int
	header   http.Header
	body     []byte
	replayed bool
}

func (a answer) decode(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		t.Fatalf("answer %d: %v in %s", a.status, err, a.body)
	}
}

// call makes a request; the error is the transport's.
func call(method, url, token, key string, body any) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return callWithin(ctx, method, url, token, key, body)
}

// callWithin is call by a client that gives up when the context ends.
func callWithin(ctx context.Context, method, url, token, key string, body any) (answer, error) {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return answer{}, err
		}
		content = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
		req.GetBody = nil // or Go repeats the request by itself, and the test proves nothing
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	read, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, read, resp.Header.Get("Idempotent-Replayed") == "true"}, err
}

func mustCall(t *testing.T, method, url, token, key string, body any) answer {
	t.Helper()
	a, err := call(method, url, token, key, body)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// email is a small one, with a subject of its own.
func email(number int) map[string]any {
	return map[string]any{
		"from": "Shop <shop@example.com>", "to": "jane@example.org",
		"subject": fmt.Sprintf("Mail %d", number), "text": "Hello.",
	}
}

// eventually waits until done returns true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for !done() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%s: it did not happen", what)
		}
	}
}

// awaitEnded waits until no email is on its way.
func (in *installation) awaitEnded() {
	in.t.Helper()
	eventually(in.t, "every email ends", func() bool {
		return in.count("SELECT count(*) FROM outbox.emails WHERE ended_at IS NULL") == 0
	})
}
