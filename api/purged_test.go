package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

// An email whose content is purged is still there, and says so. Its key still gets the
// first answer. It is found by no address, and cannot be sent again.
func TestPurgedEmail(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Scopes: []string{"admin"}})
	ctx := context.Background()
	first := s.do("POST", "/emails", simple, "Idempotency-Key", "welcome")
	id := first.json(t)["id"].(string)
	for _, sql := range []string{
		`UPDATE outbox.emails SET status = 'failed', reason = 'rejected', reason_detail = 'Hello?', attempts = 1, ended_at = now() WHERE id = $1`,
		`INSERT INTO outbox.attempts (email_id, number, provider, provider_key, stage, worker, began_at, deadline, ended_at, detail, payload_sha256)
			VALUES ($1, 1, 'smtp', gen_random_uuid(), 'rejected', 'w', now(), now(), now(), 'Hello?', '')`,
		`INSERT INTO outbox.events (id, email_id, type, provider, recipient, detail, occurred_at)
			VALUES (gen_random_uuid(), $1, 'bounced', 'smtp', 'jane@example.org', 'Hello?', now())`,
	} {
		if _, err := s.pool.Exec(ctx, sql, id); err != nil {
			t.Fatal(err)
		}
	}
	before := s.do("GET", "/emails/"+id, "").json(t)
	if found, _ := s.list("to=jane@example.org"); len(found) != 1 || before["content_purged_at"] != nil {
		t.Fatalf("before: found %v, purged at %v", found, before["content_purged_at"])
	}
	if n, err := outbox.PurgeContents(ctx, s.pool, time.Microsecond); n != 1 || err != nil {
		t.Fatalf("%d emails were purged, error %v", n, err)
	}

	got := s.do("GET", "/emails/"+id, "")
	for _, word := range []string{"Hello", "Hi", "@"} {
		if strings.Contains(got.body, word) {
			t.Errorf("it shows %q: %s", word, got.body)
		}
	}
	after := got.json(t)
	if at, err := time.Parse(time.RFC3339, after["content_purged_at"].(string)); err != nil || time.Since(at) > time.Hour {
		t.Errorf("purged at %v", after["content_purged_at"])
	}
	event := after["events"].([]any)[0].(map[string]any)
	if after["status"] != "failed" || after["reason"] != "rejected" || len(after["attempts"].([]any)) != 1 ||
		event["type"] != "bounced" || event["recipient"] != nil || event["detail"] != nil {
		t.Errorf("what is left: %s", got.body)
	}
	if found, _ := s.list("to=jane@example.org"); len(found) != 0 {
		t.Errorf("found by its address: %v", found)
	}
	if found, _ := s.list("status=failed"); len(found) != 1 {
		t.Errorf("found by its status: %v", found)
	}
	if a := s.do("POST", "/emails/"+id+"/retry", ""); a.status != http.StatusConflict || a.json(t)["name"] != "content_purged" {
		t.Errorf("retry: %d %s", a.status, a.body)
	}
	if a := s.do("POST", "/emails", simple, "Idempotency-Key", "welcome"); a.body != first.body || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("replay: %d %s, want %s", a.status, a.body, first.body)
	}
	other := strings.Replace(simple, "Hello", "Bye", 1)
	if a := s.do("POST", "/emails", other, "Idempotency-Key", "welcome"); a.json(t)["name"] != "invalid_idempotent_request" {
		t.Errorf("another request: %d %s", a.status, a.body)
	}
}
