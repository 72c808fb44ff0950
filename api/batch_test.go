package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/api"
)

func batchOf(items ...string) string { return "[" + strings.Join(items, ",") + "]" }

func numbered(n int) string {
	return fmt.Sprintf(`{"from":"shop@example.com","to":"jane@example.org","subject":"Mail %d","text":"Hi"}`, n)
}

const badItem = `{"from":"shop@example.com","to":"nobody","subject":"Bad","text":"Hi"}`

type batchAnswer struct {
	ids    []string
	errors map[int]string
}

func readBatch(t *testing.T, a answer) batchAnswer {
	t.Helper()
	body := a.json(t)
	if a.status != http.StatusAccepted {
		t.Fatalf("answer %d %s", a.status, a.body)
	}
	out := batchAnswer{errors: map[int]string{}}
	for _, item := range body["data"].([]any) {
		out.ids = append(out.ids, item.(map[string]any)["id"].(string))
	}
	for _, item := range body["errors"].([]any) {
		e := item.(map[string]any)
		out.errors[int(e["index"].(float64))] = e["message"].(string)
	}
	return out
}

func TestBatch(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	first := s.do("POST", "/emails/batch", batchOf(numbered(0), numbered(1), numbered(2)), "Idempotency-Key", "b")
	got := readBatch(t, first)
	if len(got.ids) != 3 || len(got.errors) != 0 {
		t.Fatalf("answer %s", first.body)
	}
	for i, id := range got.ids {
		if subject := s.do("GET", "/emails/"+id, "").json(t)["subject"]; subject != fmt.Sprintf("Mail %d", i) {
			t.Errorf("email %d has subject %v", i, subject)
		}
	}
	again := s.do("POST", "/emails/batch", batchOf(numbered(0), numbered(1), numbered(2)), "Idempotency-Key", "b")
	if again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("replay %s, first %s", again.body, first.body)
	}
	other := s.do("POST", "/emails/batch", batchOf(numbered(0), numbered(1)), "Idempotency-Key", "b")
	if other.json(t)["name"] != "invalid_idempotent_request" {
		t.Errorf("answer %s", other.body)
	}
	if n := s.emails(); n != 3+3+1 {
		t.Errorf("%d rows, want 3 emails, 3 jobs, 1 key", n)
	}
}

func TestStrictBatchRefusesAll(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	tests := []struct{ name, body, field string }{
		{"invalid", batchOf(numbered(0), badItem), "[1].to[0]"},
		{"undecodable", batchOf(numbered(0), numbered(1), `{"from":7}`), "[2].from"},
		{"no object", batchOf(`"a"`), "[0]"},
		{"empty", "[]", ""},
		{"no array", numbered(0), ""},
		{"too many", batchOf(strings.Split(strings.Repeat(numbered(0)+"\n", 101), "\n")[:101]...), ""},
	}
	for _, test := range tests {
		got := s.do("POST", "/emails/batch", test.body, "Idempotency-Key", "k")
		fields, _ := got.json(t)["errors"].([]any)
		if got.status != 422 || len(fields) != 1 || fields[0].(map[string]any)["field"] != test.field {
			t.Errorf("%s: answer %d %s", test.name, got.status, got.body)
		}
	}
	if n := s.emails(); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// F39: one bad address does not fail the whole batch.
func TestPermissiveBatch(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{FromDomains: []string{"example.com"}}, api.Key{})
	foreign := strings.Replace(numbered(9), "example.com", "example.net", 1)
	body := batchOf(numbered(0), badItem, `{"from":7}`, foreign, numbered(4))
	first := s.do("POST", "/emails/batch", body, "X-Batch-Validation", "permissive", "Idempotency-Key", "p")
	got := readBatch(t, first)
	if len(got.ids) != 2 || len(got.errors) != 3 || got.errors[1] == "" || got.errors[2] == "" || got.errors[3] == "" {
		t.Fatalf("answer %s", first.body)
	}
	again := s.do("POST", "/emails/batch", body, "X-Batch-Validation", "permissive", "Idempotency-Key", "p")
	if again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("replay %s, first %s", again.body, first.body)
	}
	// The bad items belong to the request: with others it is another one.
	changed := s.do("POST", "/emails/batch", strings.Replace(body, `{"from":7}`, `{"from":8}`, 1),
		"X-Batch-Validation", "permissive", "Idempotency-Key", "p")
	if changed.json(t)["name"] != "invalid_idempotent_request" {
		t.Errorf("answer %s", changed.body)
	}
	if bad := s.do("POST", "/emails/batch", body, "X-Batch-Validation", "lenient"); bad.status != 422 {
		t.Errorf("unknown mode: answer %d %s", bad.status, bad.body)
	}
}
