package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/api"
)

// list returns the subjects of a page, and whether there are more.
func (s *service) list(query string) (subjects []string, more bool) {
	s.t.Helper()
	a := s.do("GET", "/emails?"+query, "")
	if a.status != http.StatusOK {
		s.t.Fatalf("list %s: %d %s", query, a.status, a.body)
	}
	body := a.json(s.t)
	for _, item := range body["data"].([]any) {
		subjects = append(subjects, strings.TrimPrefix(item.(map[string]any)["subject"].(string), "Mail "))
	}
	return subjects, body["has_more"].(bool)
}

func (s *service) send(body string) string {
	s.t.Helper()
	a := s.do("POST", "/emails", body)
	if a.status != http.StatusAccepted {
		s.t.Fatalf("answer %d %s", a.status, a.body)
	}
	return a.json(s.t)["id"].(string)
}

func TestListPages(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	var ids []string
	for i := range 5 {
		ids = append(ids, s.send(numbered(i)))
	}
	if _, err := api.CreateOrg(context.Background(), s.pool, api.Org{Name: "other"}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		query string
		want  []string
		more  bool
	}{
		{"", []string{"4", "3", "2", "1", "0"}, false},
		{"limit=2", []string{"4", "3"}, true},
		{"limit=2&after=" + ids[3], []string{"2", "1"}, true},
		{"limit=2&after=" + ids[1], []string{"0"}, false},
		{"limit=2&before=" + ids[1], []string{"3", "2"}, true},
		{"limit=2&before=" + ids[3], []string{"4"}, false},
		{"limit=2&before=" + ids[4], nil, false},
	}
	for _, test := range tests {
		got, more := s.list(test.query)
		if diff := cmp.Diff(test.want, got); diff != "" || more != test.more {
			t.Errorf("%q: more %v, want %v; (-want +got):\n%s", test.query, more, test.more, diff)
		}
	}
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	with := func(n int, member string) string { return strings.TrimSuffix(numbered(n), "}") + "," + member + "}" }
	s.send(numbered(0))
	s.send(with(1, `"cc":"Ann <Ann@Example.com>"`))
	s.send(with(2, `"tags":[{"name":"kind","value":"receipt"},{"name":"shop","value":"7"}]`))
	s.send(with(3, `"scheduled_at":"`+time.Now().Add(time.Hour).Format(time.RFC3339)+`"`))
	first, err := time.Parse(time.RFC3339Nano, s.do("GET", "/emails?limit=100", "").json(t)["data"].([]any)[3].(map[string]any)["created_at"].(string))
	if err != nil {
		t.Fatal(err)
	}
	instant := func(d time.Duration) string { return url.QueryEscape(first.Add(d).Format(time.RFC3339Nano)) }
	tests := []struct {
		query string
		want  []string
	}{
		{"to=ann@example.com", []string{"1"}},
		{"to=nobody@example.com", nil},
		{"tag=kind", []string{"2"}},
		{"tag=kind:receipt", []string{"2"}},
		{"tag=kind:7", nil},
		{"tag=kind:", nil},
		{"tag=receipt", nil},
		{"tag=kind:receipt&to=jane@example.org", []string{"2"}},
		{"tag=kind:receipt&to=ann@example.com", nil},
		{"to=ANN@example.com&limit=1", []string{"1"}},
		{"status=scheduled", []string{"3"}},
		{"status=queued&to=jane@example.org", []string{"2", "1", "0"}},
		{"created_after=" + instant(0), []string{"3", "2", "1", "0"}},
		{"created_after=" + instant(time.Microsecond) + "&limit=100&created_before=" + instant(time.Hour), []string{"3", "2", "1"}},
		{"created_before=" + instant(0), nil},
	}
	for _, test := range tests {
		got, _ := s.list(test.query)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.query, diff)
		}
	}
}

func TestListErrors(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	id := s.send(numbered(0))
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=101": "limit", "limit=x": "limit", "after=x": "after",
		"after=" + id + "&before=" + id: "before", "status=gone": "status",
		"created_after=yesterday": "created_after", "subject=x": "subject", "to=a&to=b": "to", "tag=%00": "tag",
	} {
		a := s.do("GET", "/emails?"+query, "")
		fields, _ := a.json(t)["errors"].([]any)
		if a.status != 422 || len(fields) != 1 || fields[0].(map[string]any)["field"] != field {
			t.Errorf("%q: answer %d %s", query, a.status, a.body)
		}
	}
}

// scheduled submits an email for the time and returns its id.
func (s *service) scheduled(at time.Time) string {
	s.t.Helper()
	return s.send(fmt.Sprintf(`{"from":"a@example.com","to":"b@example.com","subject":"Later","text":"x","scheduled_at":%q}`,
		at.Format(time.RFC3339Nano)))
}

func (s *service) jobs() int {
	s.t.Helper()
	var n int
	if err := s.pool.QueryRow(context.Background(), "SELECT count(*) FROM outbox.river_job").Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestReschedule(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	now := time.Now().Truncate(time.Second).UTC()
	id := s.scheduled(now.Add(time.Hour))
	patch := func(id string, at time.Time) answer {
		return s.do("PATCH", "/emails/"+id, fmt.Sprintf(`{"id":%q,"scheduled_at":%q}`, id, at.Format(time.RFC3339)))
	}
	for _, at := range []time.Time{now.Add(2 * time.Hour), now.Add(time.Minute)} {
		if a := patch(id, at); a.status != http.StatusOK || a.body != fmt.Sprintf("{\"object\":\"email\",\"id\":%q}\n", id) {
			t.Fatalf("answer %d %s", a.status, a.body)
		}
		if got := s.do("GET", "/emails/"+id, "").json(t)["scheduled_at"]; got != at.Format(time.RFC3339) {
			t.Errorf("scheduled_at = %v, want %v", got, at)
		}
	}
	// The first move is later, so the job may come at the old time and wait;
	// the second is earlier and needs a job of its own.
	if n := s.jobs(); n != 2 {
		t.Errorf("%d jobs, want 2", n)
	}
	if a := patch(id, now.Add(-time.Minute)); a.status != 422 {
		t.Errorf("into the past: answer %d %s", a.status, a.body)
	}
	if a := s.do("PATCH", "/emails/"+id, `{}`); a.status != 422 {
		t.Errorf("without a time: answer %d %s", a.status, a.body)
	}
	if a := patch(s.send(numbered(1)), now.Add(time.Hour)); a.status != 409 || a.json(t)["name"] != "not_scheduled" {
		t.Errorf("not scheduled: answer %d %s", a.status, a.body)
	}
	if a := patch("019a0000-0000-7000-8000-000000000000", now.Add(time.Hour)); a.status != 404 {
		t.Errorf("unknown: answer %d %s", a.status, a.body)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	for _, id := range []string{s.send(numbered(0)), s.scheduled(time.Now().Add(time.Hour))} {
		for range 2 { // again is no error
			if a := s.do("POST", "/emails/"+id+"/cancel", ""); a.status != http.StatusOK || a.json(t)["id"] != id {
				t.Errorf("answer %d %s", a.status, a.body)
			}
		}
		if got := s.do("GET", "/emails/"+id, "").json(t); got["status"] != "canceled" || got["last_event"] != "canceled" {
			t.Errorf("status %v, last event %v", got["status"], got["last_event"])
		}
	}
	id := s.send(numbered(1))
	if _, err := s.pool.Exec(context.Background(), "UPDATE outbox.emails SET status = 'sending', attempts = 1 WHERE id = $1", id); err != nil {
		t.Fatal(err)
	}
	if a := s.do("POST", "/emails/"+id+"/cancel", ""); a.status != 409 || a.json(t)["name"] != "not_cancelable" {
		t.Errorf("answer %d %s", a.status, a.body)
	}
}
