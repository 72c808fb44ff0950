package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/api"
)

func (s *service) suppress(address, reason string) answer {
	s.t.Helper()
	body, err := json.Marshal(map[string]string{"address": address, "reason": reason})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.do("POST", "/suppressions", string(body))
}

// The address is stored as recipients are compared, and found however it is
// written.
func TestSuppressions(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Name: "desk", Scopes: []string{"admin"}})
	for address, want := range map[string]string{
		"Jane <JANE@Example.org>":   "jane@example.org",
		"ann@MÜLLER.example":        "ann@xn--mller-kva.example",
		"a/b+c%2F@example.org":      "a/b+c%2f@example.org",
		`"a b?#@x"@example.org`:     "",
		"jürgen@example.org":        "jürgen@example.org",
		"joe@example.org.":          "joe@example.org",
		"nobody":                    "",
		"":                          "",
		"x@example.org\r\nBcc: y@z": "",
	} {
		got := s.suppress(address, "")
		if want == "" {
			if got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, `"field":"address"`) {
				t.Errorf("%q: answer %d %s", address, got.status, got.body)
			}
			continue
		}
		body := got.json(t)
		if got.status != http.StatusOK || body["address"] != want || body["reason"] != "manual" || !strings.Contains(body["detail"].(string), "(desk)") {
			t.Errorf("%q: answer %d %s", address, got.status, got.body)
		}
		list := s.do("GET", "/suppressions?address="+url.QueryEscape(address), "").json(t)["data"].([]any)
		if len(list) != 1 || list[0].(map[string]any)["address"] != want {
			t.Errorf("%q is not found: %v", address, list)
		}
		for _, status := range []int{http.StatusOK, http.StatusNotFound} {
			if got := s.do("DELETE", "/suppressions/"+url.PathEscape(address), ""); got.status != status {
				t.Errorf("delete %q: answer %d %s, want %d", address, got.status, got.body, status)
			}
		}
	}
	if got := s.suppress("jane@example.org", "spite"); got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, `"field":"reason"`) {
		t.Errorf("answer %d %s", got.status, got.body)
	}
}

// The strongest reason stays, and repeating changes nothing.
func TestSuppressionKeepsTheStrongestReason(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Scopes: []string{"admin"}})
	for _, step := range []struct{ reason, want string }{
		{"hard_bounce", "hard_bounce"},
		{"manual", "manual"},
		{"hard_bounce", "manual"},
		{"unsubscribe", "unsubscribe"},
		{"manual", "unsubscribe"},
		{"complaint", "complaint"},
		{"unsubscribe", "complaint"},
		{"complaint", "complaint"},
	} {
		if got := s.suppress("jane@example.org", step.reason).json(t)["reason"]; got != step.want {
			t.Errorf("%s: reason %v, want %s", step.reason, got, step.want)
		}
	}
}

func TestSuppressionPages(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Scopes: []string{"admin"}})
	for _, name := range []string{"c", "a", "e", "b", "d"} {
		s.suppress(name+"@example.org", "manual")
	}
	for _, test := range []struct {
		query, want string
		more        bool
	}{
		{"", "abcde", false},
		{"limit=2", "ab", true},
		{"limit=2&after=b@example.org", "cd", true},
		{"limit=2&after=D@EXAMPLE.org", "e", false},
		{"limit=2&after=bb", "cd", true}, // need not be there
		{"limit=2&before=d@example.org", "bc", true},
		{"limit=2&before=b@example.org", "a", false},
		{"before=a@example.org", "", false},
		{"address=c@example.org", "c", false},
		{"address=nobody", "", false},
	} {
		body := s.do("GET", "/suppressions?"+test.query, "").json(t)
		got := ""
		for _, item := range body["data"].([]any) {
			got += item.(map[string]any)["address"].(string)[:1]
		}
		if got != test.want || body["has_more"] != test.more {
			t.Errorf("%q: %s, more %v; want %s, %v", test.query, got, body["has_more"], test.want, test.more)
		}
	}
	for _, query := range []string{"after=a&before=b", "limit=0", "to=a@example.org", "address=%00"} {
		if got := s.do("GET", "/suppressions?"+query, ""); got.status != http.StatusUnprocessableEntity {
			t.Errorf("%q: answer %d %s", query, got.status, got.body)
		}
	}
}

// One org's suppressions are nothing to another.
func TestSuppressionsAreTheOrgs(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Scopes: []string{"admin"}})
	s.suppress("jane@example.org", "manual")
	if _, err := api.CreateOrg(context.Background(), s.pool, api.Org{Name: "other"}); err != nil {
		t.Fatal(err)
	}
	token, err := api.CreateKey(context.Background(), s.pool, api.Key{Org: "other", Scopes: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	stranger := &service{t: t, pool: s.pool, url: s.url, token: token}
	if list := stranger.suppressed(); list != nil {
		t.Errorf("another org sees %v", list)
	}
	if got := stranger.do("DELETE", "/suppressions/jane@example.org", ""); got.status != http.StatusNotFound {
		t.Errorf("answer %d %s", got.status, got.body)
	}
	stranger.suppress("jane@example.org", "complaint")
	if diff := cmp.Diff([]string{"jane@example.org manual"}, s.suppressed()); diff != "" {
		t.Errorf("suppressed (-want +got):\n%s", diff)
	}
}

// list_unsubscribe is for one recipient, without a link of the sender's own, and
// for an installation that recipients can reach.
func TestListUnsubscribeIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	option := added("list_unsubscribe", "true")
	with := func(member string) string { return strings.TrimSuffix(option, "}") + "," + member + "}" }
	for name, body := range map[string]string{
		"two in to":      strings.Replace(option, `"jane@example.org"`, `["jane@example.org","joe@example.org"]`, 1),
		"one in cc":      with(`"cc":"joe@example.org"`),
		"one in bcc":     with(`"bcc":["joe@example.org"]`),
		"own link":       with(`"headers":{"list-unsubscribe":"<https://example.com/u>"}`),
		"own post":       with(`"headers":{"List-Unsubscribe-Post":"List-Unsubscribe=One-Click"}`),
		"not a boolean":  added("list_unsubscribe", `"true"`),
		"not 1":          added("list_unsubscribe", `1`),
		"both, in batch": "[" + simple + "," + with(`"cc":"joe@example.org"`) + "]",
	} {
		path := "/emails"
		if body[0] == '[' {
			path = "/emails/batch"
		}
		if got := s.do("POST", path, body); got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, "list_unsubscribe") {
			t.Errorf("%s: answer %d %s", name, got.status, got.body)
		}
	}
	if n := s.emails(); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
	for _, body := range []string{
		option, added("list_unsubscribe", "false"), added("list_unsubscribe", "null"),
		strings.TrimSuffix(added("list_unsubscribe", "false"), "}") + `,"headers":{"List-Unsubscribe":"<https://example.com/u>"}}`,
	} {
		id := s.send(body)
		if got := s.do("GET", "/emails/"+id, "").json(t)["list_unsubscribe"]; got != (body == option) {
			t.Errorf("%s: list_unsubscribe is %v", body, got)
		}
	}

	nowhere := (&errorLab{service: s}).server(api.Config{Pool: s.pool, Outbox: newOutboxAt(t, s.pool, "")})
	if got := nowhere.do("POST", "/emails", option); got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, "OUTBOXD_PUBLIC_URL") {
		t.Errorf("without a public address: answer %d %s", got.status, got.body)
	}
}

// A key that was stored without the field still replays, and the field is part of
// the request.
func TestListUnsubscribeIsPartOfTheRequest(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	first := s.do("POST", "/emails", simple, "Idempotency-Key", "k")
	if again := s.do("POST", "/emails", added("list_unsubscribe", "false"), "Idempotency-Key", "k"); again.body != first.body {
		t.Errorf("answer %d %s", again.status, again.body)
	}
	if other := s.do("POST", "/emails", added("list_unsubscribe", "true"), "Idempotency-Key", "k"); !strings.Contains(other.body, "invalid_idempotent_request") {
		t.Errorf("answer %d %s", other.status, other.body)
	}
}
