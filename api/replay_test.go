package api_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/outboxd/outboxd/api"
)

// Which domains an API key may send from is not part of the request. A retry
// with another key of the org, or after a change, replays.
func TestBatchReplaysWithAKeyOfOtherDomains(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{FromDomains: []string{"example.com"}})
	unrestricted, err := api.CreateKey(context.Background(), s.pool, api.Key{Org: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	const body = `[{"from":"a@example.com","to":"jane@example.org","subject":"1","text":"Hi"},
		{"from":"a@example.net","to":"jane@example.org","subject":"2","text":"Hi"}]`
	headers := []string{"Idempotency-Key", "b", "X-Batch-Validation", "permissive"}
	first := s.do("POST", "/emails/batch", body, headers...)
	if sent, _ := first.json(t)["data"].([]any); first.status != http.StatusAccepted || len(sent) != 1 {
		t.Fatalf("answer %d %s, want one email", first.status, first.body)
	}
	again := s.do("POST", "/emails/batch", body, append(headers, "Authorization", "", "Authorization", "Bearer "+unrestricted)...)
	if again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("answer %d %s, want the first one, %s", again.status, again.body, first.body)
	}
}

// What Postgres does not take as text is the client's fault in a filter too.
func TestFilterThatIsNoText(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	for _, query := range []string{"to=%FF", "tag=%FF", "to=%00", "tag=a:%00", "created_after=2026-01-31T9:30:00Z"} {
		if got := s.do("GET", "/emails?"+query, ""); got.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: answer %d %s, want 422", query, got.status, got.body)
		}
	}
}
