package api_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/api"
)

func (s *service) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.pool.Exec(context.Background(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

const webhookBody = `{"endpoint":"https://example.com/webhooks","events":["email.sent","email.bounced"]}`

// newWebhook makes a webhook and returns its id.
func (s *service) newWebhook() string {
	s.t.Helper()
	a := s.do("POST", "/webhooks", webhookBody)
	if a.status != http.StatusCreated {
		s.t.Fatalf("answer %d %s", a.status, a.body)
	}
	return a.json(s.t)["id"].(string)
}

// newMessage makes a message of a webhook and returns its id.
func (s *service) newMessage(webhook string) string {
	s.t.Helper()
	id := uuid.Must(uuid.NewV7()).String()
	s.exec(`INSERT INTO outbox.webhook_messages (id, webhook_id, org_id, type, email_id, created_at, next_attempt_at)
		SELECT $1, w.id, w.org_id, 'email.sent', $3, now(), now() FROM outbox.webhooks w WHERE w.id = $2`, id, webhook, s.newScheduled())
	return id
}

func adminService(t *testing.T) *service {
	t.Helper()
	return newService(t, api.Org{}, api.Key{Scopes: []string{"send", "admin"}})
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	s := adminService(t)
	created := s.do("POST", "/webhooks", webhookBody).json(t)
	id, secret := created["id"].(string), created["signing_secret"].(string)
	if created["object"] != "webhook" || !strings.HasPrefix(secret, "whsec_") {
		t.Errorf("created %v", created)
	}
	path := "/webhooks/" + id
	want := map[string]any{
		"object": "webhook", "id": id, "status": "enabled", "endpoint": "https://example.com/webhooks",
		"events": []any{"email.sent", "email.bounced"}, "disabled_reason": nil, "failing_since": nil, "signing_secret": secret,
	}
	read := func() map[string]any {
		got := s.do("GET", path, "").json(t)
		delete(got, "created_at")
		return got
	}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("webhook (-want +got):\n%s", diff)
	}

	reference := fmt.Sprintf("{\"object\":\"webhook\",\"id\":%q}\n", id)
	for body, change := range map[string]map[string]any{
		`{"endpoint":"https://example.com/v2","status":null}`: {"endpoint": "https://example.com/v2"},
		`{"events":["email.clicked"]}`:                        {"events": []any{"email.clicked"}},
		`{"status":"disabled"}`:                               {"status": "disabled", "disabled_reason": "request"},
	} {
		if a := s.do("PATCH", path, body); a.status != http.StatusOK || a.body != reference {
			t.Errorf("%s: answer %d %s", body, a.status, a.body)
		}
		maps.Copy(want, change)
		if diff := cmp.Diff(want, read()); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", body, diff)
		}
	}
	s.exec("UPDATE outbox.webhooks SET failing_since = now(), disabled_reason = 'failing'")
	s.do("PATCH", path, `{"status":"enabled"}`)
	want["status"], want["disabled_reason"] = "enabled", nil
	rotated := s.do("POST", path+"/signing-secret/rotate", "").json(t)
	if want["signing_secret"] = rotated["signing_secret"]; want["signing_secret"] == secret {
		t.Error("the secret is the old one")
	}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("enabled and rotated (-want +got):\n%s", diff)
	}

	if a := s.do("DELETE", path, ""); a.status != http.StatusOK || a.json(t)["deleted"] != true {
		t.Errorf("answer %d %s", a.status, a.body)
	}
	if a := s.do("GET", path, ""); a.status != http.StatusNotFound {
		t.Errorf("deleted: answer %d %s", a.status, a.body)
	}
}

func TestWebhookPages(t *testing.T) {
	t.Parallel()
	s := adminService(t)
	var ids []string
	for range 5 {
		ids = append(ids, s.newWebhook())
	}
	for query, want := range map[string]struct {
		ids  []string
		more bool
	}{
		"":                         {[]string{ids[4], ids[3], ids[2], ids[1], ids[0]}, false},
		"limit=2":                  {[]string{ids[4], ids[3]}, true},
		"limit=2&after=" + ids[3]:  {[]string{ids[2], ids[1]}, true},
		"limit=2&after=" + ids[1]:  {[]string{ids[0]}, false},
		"limit=2&before=" + ids[1]: {[]string{ids[3], ids[2]}, true},
		"limit=2&before=" + ids[3]: {[]string{ids[4]}, false},
	} {
		body := s.do("GET", "/webhooks?"+query, "").json(t)
		var got []string
		for _, item := range body["data"].([]any) {
			got = append(got, item.(map[string]any)["id"].(string))
			if _, shown := item.(map[string]any)["signing_secret"]; shown {
				t.Error("a list shows secrets")
			}
		}
		if diff := cmp.Diff(want.ids, got); diff != "" || body["has_more"] != want.more {
			t.Errorf("%q: more %v; (-want +got):\n%s", query, body["has_more"], diff)
		}
	}
}

func TestWebhookErrors(t *testing.T) {
	t.Parallel()
	s := adminService(t)
	webhook := s.newWebhook()
	for _, test := range []struct{ method, path, body, field string }{
		{"POST", "", `{"events":["email.sent"]}`, "endpoint"},
		{"POST", "", `{"endpoint":"https://example.com"}`, "events"},
		{"POST", "", `{"endpoint":"http://example.com","events":["email.sent"]}`, "endpoint"},
		{"POST", "", `{"endpoint":"https://127.0.0.1/","events":["email.sent"]}`, "endpoint"},
		{"POST", "", `{"endpoint":"https://example.com","events":["email.sent","contact.created"]}`, "events[1]"},
		{"POST", "", `{"endpoint":"https://example.com","events":["email.sent"],"name":"x"}`, "name"},
		{"PATCH", "/" + webhook, `{}`, ""},
		{"PATCH", "/" + webhook, `{"events":[]}`, "events"},
		{"PATCH", "/" + webhook, `{"status":"paused"}`, "status"},
		{"PATCH", "/" + webhook, `{"endpoint":"https://localhost/"}`, "endpoint"},
		{"POST", "/" + webhook + "/replay", `{}`, "since"},
		{"POST", "/" + webhook + "/replay", `{"since":"yesterday"}`, "since"},
		{"GET", "?limit=0", "", "limit"},
		{"GET", "?after=" + webhook + "&before=" + webhook, "", "before"},
		{"GET", "/" + webhook + "/events?before=" + webhook, "", "before"},
	} {
		a := s.do(test.method, "/webhooks"+test.path, test.body)
		fields, _ := a.json(t)["errors"].([]any)
		if a.status != http.StatusUnprocessableEntity || len(fields) != 1 || fields[0].(map[string]any)["field"] != test.field {
			t.Errorf("%s %s %s: answer %d %s", test.method, test.path, test.body, a.status, a.body)
		}
	}
	for range 19 {
		s.newWebhook()
	}
	if a := s.do("POST", "/webhooks", webhookBody); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "at most 20 webhooks") {
		t.Errorf("one too many: answer %d %s", a.status, a.body)
	}
}

// What is another org's is answered for like what is not there.
func TestWebhooksOfOthers(t *testing.T) {
	t.Parallel()
	s := adminService(t)
	webhook := s.newWebhook()
	message, other := s.newMessage(webhook), s.newWebhook()
	if _, err := api.CreateOrg(context.Background(), s.pool, api.Org{Name: "other"}); err != nil {
		t.Fatal(err)
	}
	token, err := api.CreateKey(context.Background(), s.pool, api.Key{Org: "other", Scopes: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	stranger := *s
	stranger.token = token
	const nobody = "019a0000-0000-7000-8000-000000000000"
	for _, request := range []struct{ method, path, body string }{
		{"GET", "/webhooks/%s", ""},
		{"PATCH", "/webhooks/%s", `{"status":"disabled"}`},
		{"DELETE", "/webhooks/%s", ""},
		{"POST", "/webhooks/%s/signing-secret/rotate", ""},
		{"POST", "/webhooks/%s/replay", `{"since":"2026-01-01T00:00:00Z"}`},
		{"GET", "/webhooks/%s/events", ""},
		{"GET", "/webhooks/%s/events/" + message, ""},
		{"POST", "/webhooks/%s/events/" + message + "/replay", ""},
	} {
		theirs := stranger.do(request.method, fmt.Sprintf(request.path, webhook), request.body)
		none := stranger.do(request.method, fmt.Sprintf(request.path, nobody), request.body)
		a, b := theirs.json(t), none.json(t)
		delete(a, "request_id")
		delete(b, "request_id")
		if diff := cmp.Diff(a, b); diff != "" || theirs.status != http.StatusNotFound {
			t.Errorf("%s %s: answer %d (-theirs +none):\n%s", request.method, request.path, theirs.status, diff)
		}
		if a := s.do(request.method, fmt.Sprintf(request.path, "x"), request.body); a.status != http.StatusNotFound {
			t.Errorf("%s %s with no id: answer %d", request.method, request.path, a.status)
		}
	}
	if a := stranger.do("GET", "/webhooks", ""); len(a.json(t)["data"].([]any)) != 0 {
		t.Errorf("another org sees %s", a.body)
	}
	for _, event := range []string{nobody, "x"} {
		for method, path := range map[string]string{"GET": "", "POST": "/replay"} {
			if a := s.do(method, "/webhooks/"+webhook+"/events/"+event+path, ""); a.status != http.StatusNotFound {
				t.Errorf("%s of event %s: answer %d", method, event, a.status)
			}
		}
	}
	if a := s.do("GET", "/webhooks/"+other+"/events/"+message, ""); a.status != http.StatusNotFound {
		t.Errorf("another webhook's message: answer %d", a.status)
	}
	if a := s.do("GET", "/webhooks/"+webhook, ""); a.json(t)["status"] != "enabled" {
		t.Errorf("the webhook is %s", a.body)
	}
}

func TestWebhookEvents(t *testing.T) {
	t.Parallel()
	s := adminService(t)
	webhook := s.newWebhook()
	states := map[string]string{
		"pending":    "",
		"attempting": "attempts = 2, last_status = 503, last_error = 'status'",
		"success":    "attempts = 1, last_status = 200, delivered_at = now()",
		"failed":     "attempts = 8, last_error = 'timeout', failed_at = now()",
	}
	ids := map[string]string{}
	for state, change := range states {
		ids[state] = s.newMessage(webhook)
		if change != "" {
			s.exec("UPDATE outbox.webhook_messages SET "+change+" WHERE id = $1", ids[state])
		}
	}
	path := "/webhooks/" + webhook + "/events"
	page := s.do("GET", path+"?limit=3", "").json(t)
	last := page["data"].([]any)[2].(map[string]any)["id"].(string)
	rest := s.do("GET", path+"?limit=3&after="+last, "").json(t)
	if n, m := len(page["data"].([]any)), len(rest["data"].([]any)); n != 3 || m != 1 || page["has_more"] != true || rest["has_more"] != false {
		t.Errorf("pages of %d and %d", n, m)
	}
	for state, id := range ids {
		a := s.do("GET", path+"/"+id, "")
		got := a.json(t)
		if got["object"] != "webhook_event" || got["status"] != state || got["payload"].(map[string]any)["type"] != "email.sent" {
			t.Errorf("%s: %s", state, a.body)
		}
		if due := got["next_attempt_at"] != nil; due != (state == "pending" || state == "attempting") {
			t.Errorf("%s: next attempt at %v", state, got["next_attempt_at"])
		}
	}
	jobs := func() (n int) {
		if err := s.pool.QueryRow(context.Background(), "SELECT count(*) FROM outbox.river_job WHERE kind = 'deliver_webhook'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	since := fmt.Sprintf(`{"since":%q}`, time.Now().Add(-time.Minute).Format(time.RFC3339))
	if a := s.do("POST", "/webhooks/"+webhook+"/replay", since); a.json(t)["replayed"] != 1.0 || a.json(t)["has_more"] != false || jobs() != 1 {
		t.Errorf("replay: %s, %d jobs", a.body, jobs())
	}
	if a := s.do("POST", path+"/"+ids["success"]+"/replay", ""); a.body != fmt.Sprintf("{\"object\":\"webhook_event\",\"id\":%q}\n", ids["success"]) || jobs() != 2 {
		t.Errorf("replay: %s, %d jobs", a.body, jobs())
	}
	for _, state := range []string{"failed", "success"} {
		if got := s.do("GET", path+"/"+ids[state], "").json(t); got["status"] != "pending" {
			t.Errorf("%s, replayed: %v", state, got)
		}
	}
}
