package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/api"
)

// Whoever settles a doubt or retries is kept with the email.
func TestResolveAndRetryAreRecorded(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Name: "on call", Scopes: []string{"admin"}})
	for _, test := range []struct{ action, body, status, event string }{
		{"resolve", `{"outcome":"accepted"}`, "sent", "resolved"},
		{"resolve", `{"outcome":"not_accepted"}`, "queued", "resolved"},
		{"retry", "", "queued", "retried"},
	} {
		id := s.newEmailFor(described{path: "/emails/{id}/" + test.action})
		if a := s.do("POST", "/emails/"+id+"/"+test.action, test.body); a.status != http.StatusOK {
			t.Fatalf("%s: answer %d %s", test.action, a.status, a.body)
		}
		email := s.do("GET", "/emails/"+id, "").json(t)
		events := email["events"].([]any)
		if email["status"] != test.status || len(events) != 1 {
			t.Fatalf("%s %s: status %v, events %v", test.action, test.body, email["status"], events)
		}
		event := events[0].(map[string]any)
		if detail := event["detail"].(string); event["type"] != test.event || !strings.Contains(detail, "(on call)") {
			t.Errorf("event = %v", event)
		}
	}
	id := s.newEmailFor(described{path: "/resolve"})
	if a := s.do("POST", "/emails/"+id+"/resolve", `{"outcome":"maybe"}`); a.status != 422 {
		t.Errorf("answer %d %s", a.status, a.body)
	}
}
