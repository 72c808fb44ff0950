package api_test

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/api"
)

// routeRule says who may use a route.
type routeRule struct {
	// scope is what it asks for besides admin; empty: no key at all.
	scope string
	// status is the answer to who may, and foreign the one to another org's key:
	// 404 where the path names what is the org's.
	status, foreign int
	body            string
}

// routeRules are all routes of the API. A route that is not here fails the test.
var routeRules = map[string]routeRule{
	"GET /healthz":             {"", 200, 200, ""},
	"GET /readyz":              {"", 200, 200, ""},
	"GET /openapi.json":        {"", 200, 200, ""},
	"GET /docs":                {"", 200, 200, ""},
	"POST /hooks/{provider}":   {"", 200, 200, ""},
	"GET /unsubscribe/{token}": {"", 404, 404, ""},

	"POST /unsubscribe/{token}": {"", 404, 404, ""},

	"POST /emails":              {"send", 202, 202, simple},
	"POST /emails/batch":        {"send", 202, 202, "[" + simple + "]"},
	"GET /emails":               {"read", 200, 200, ""},
	"GET /emails/{id}":          {"read", 200, 404, ""},
	"PATCH /emails/{id}":        {"send", 200, 404, `{"scheduled_at":""}`},
	"POST /emails/{id}/cancel":  {"send", 200, 404, ""},
	"POST /emails/{id}/retry":   {"admin", 200, 404, ""},
	"POST /emails/{id}/resolve": {"admin", 200, 404, `{"outcome":"accepted"}`},

	"GET /suppressions":              {"admin", 200, 200, ""},
	"POST /suppressions":             {"admin", 200, 200, `{"address":"new@example.org","reason":"manual"}`},
	"DELETE /suppressions/{address}": {"admin", 200, 404, ""},

	"POST /webhooks":                            {"admin", 201, 201, webhookBody},
	"GET /webhooks":                             {"admin", 200, 200, ""},
	"GET /webhooks/{id}":                        {"admin", 200, 404, ""},
	"PATCH /webhooks/{id}":                      {"admin", 200, 404, `{"status":"disabled"}`},
	"DELETE /webhooks/{id}":                     {"admin", 200, 404, ""},
	"POST /webhooks/{id}/signing-secret/rotate": {"admin", 200, 404, ""},
	"POST /webhooks/{id}/replay":                {"admin", 200, 404, `{"since":"2026-01-31T09:30:00Z"}`},
	"GET /webhooks/{id}/events":                 {"admin", 200, 404, ""},
	"GET /webhooks/{id}/events/{event}":         {"admin", 200, 404, ""},
	"POST /webhooks/{id}/events/{event}/replay": {"admin", 200, 404, ""},
}

// routeLab has a key of each kind, and another org.
type routeLab struct {
	*service
	keys  map[string]string
	other string
}

func newRouteLab(t *testing.T) *routeLab {
	t.Helper()
	lab := &routeLab{service: adminService(t), keys: map[string]string{}}
	newKey := func(org, scope string) string {
		token, err := api.CreateKey(context.Background(), lab.pool, api.Key{Org: org, Scopes: []string{scope}})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	for _, scope := range []string{"send", "read", "admin"} {
		lab.keys[scope] = newKey("acme", scope)
	}
	if _, err := api.CreateOrg(context.Background(), lab.pool, api.Org{Name: "other"}); err != nil {
		t.Fatal(err)
	}
	lab.other = newKey("other", "admin")
	return lab
}

// paths returns the path of a route to something fresh of the org's, and to what
// never existed.
func (l *routeLab) paths(route string) (own, never string) {
	l.t.Helper()
	method, pattern, _ := strings.Cut(route, " ")
	fill := func(id, event, address string) string {
		return strings.NewReplacer("{id}", id, "{event}", event, "{address}", address,
			"{provider}", "lab", "{token}", "none").Replace(pattern)
	}
	never = fill(uuid.NewString(), uuid.NewString(), "nobody@example.org")
	switch {
	case strings.HasPrefix(pattern, "/emails/{id}"):
		return fill(l.newEmailFor(described{method: strings.ToLower(method), path: pattern}), "", ""), never
	case strings.HasPrefix(pattern, "/webhooks/{id}"):
		l.exec("DELETE FROM outbox.webhooks")
		webhook := l.newWebhook()
		return fill(webhook, l.newMessage(webhook), ""), never
	case strings.Contains(pattern, "{address}"):
		l.suppress("gone@example.org", "manual")
		return fill("", "", "gone@example.org"), never
	}
	return fill("", "", ""), never
}

func (l *routeLab) send(route, path, token string) answer {
	l.t.Helper()
	method, _, _ := strings.Cut(route, " ")
	rule := routeRules[route]
	header := "Bearer " + token
	if token == "" {
		header = ""
	}
	return l.doAs(header, method, path, inTime(rule.body))
}

// doAs sends a request with a header Authorization; empty: none.
func (s *service) doAs(authorization, method, path, body string, headers ...string) answer {
	s.t.Helper()
	as := *s
	as.token = strings.TrimPrefix(authorization, "Bearer ")
	if authorization == "" {
		headers = append(headers, "Authorization", "")
	}
	return as.do(method, path, body, headers...)
}

// Every route by every kind of key. Another org's key gets what it would get of an
// id that never existed, to the byte, and changes nothing.
func TestEveryRouteByEveryKey(t *testing.T) {
	t.Parallel()
	lab := newRouteLab(t)
	for _, route := range allRoutes(t) {
		rule, known := routeRules[route]
		if !known {
			t.Errorf("%s is not in routeRules: say who may use it", route)
			continue
		}
		for name, token := range map[string]string{"no key": "", "send": lab.keys["send"], "read": lab.keys["read"], "admin": lab.keys["admin"]} {
			want := rule.status
			switch {
			case rule.scope == "", name == "admin", name == rule.scope:
			case name == "no key":
				want = http.StatusUnauthorized
			default:
				want = http.StatusForbidden
			}
			own, _ := lab.paths(route)
			if got := lab.send(route, own, token); got.status != want {
				t.Errorf("%s with %s: answer %d %s, want %d", route, name, got.status, got.body, want)
			}
		}
		lab.tryOtherOrg(route, rule)
	}
	for route := range routeRules {
		if !slices.Contains(allRoutes(t), route) {
			t.Errorf("there is no route %s", route)
		}
	}
}

// requestID is the one member of an answer that differs between two.
var requestID = regexp.MustCompile(`"request_id":"[^"]*"`)

func (l *routeLab) tryOtherOrg(route string, rule routeRule) {
	l.t.Helper()
	own, never := l.paths(route)
	before := l.ownRows()
	got := l.send(route, own, l.other)
	if got.status != rule.foreign {
		l.t.Errorf("%s with another org's key: answer %d %s, want %d", route, got.status, got.body, rule.foreign)
	}
	if rule.foreign != http.StatusNotFound {
		return
	}
	want := l.send(route, never, l.other)
	if requestID.ReplaceAllString(got.body, "") != requestID.ReplaceAllString(want.body, "") || got.status != want.status ||
		got.header.Get("Content-Type") != want.header.Get("Content-Type") {
		l.t.Errorf("%s: %d %s for another org's, %d %s for nothing", route, got.status, got.body, want.status, want.body)
	}
	if after := l.ownRows(); after != before {
		l.t.Errorf("%s with another org's key changed\n%s\nto\n%s", route, before, after)
	}
}

// ownRows is what the org of the lab has.
func (l *routeLab) ownRows() (rows string) {
	l.t.Helper()
	const query = `
SELECT concat((SELECT string_agg(e::text, E'\n' ORDER BY id) FROM outbox.emails e),
    (SELECT string_agg(v::text, E'\n' ORDER BY id) FROM outbox.events v),
    (SELECT string_agg(s::text, E'\n' ORDER BY address) FROM outbox.suppressions s),
    (SELECT string_agg(w::text, E'\n' ORDER BY id) FROM outbox.webhooks w),
    (SELECT string_agg(m::text, E'\n' ORDER BY id) FROM outbox.webhook_messages m),
    (SELECT count(*) FROM outbox.river_job))`
	if err := l.pool.QueryRow(context.Background(), query).Scan(&rows); err != nil {
		l.t.Fatal(err)
	}
	return rows
}

func allRoutes(t *testing.T) (routes []string) {
	t.Helper()
	err := chi.Walk(api.New(api.Config{}).Handler.(chi.Routes), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		routes = append(routes, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return routes
}

// The description asks for the scopes that the routes do.
func TestDescriptionHasTheScopesOfTheRoutes(t *testing.T) {
	t.Parallel()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range c.operations() {
		route := strings.ToUpper(op.method) + " " + op.path
		if got, want := (request{described: op}).scope(), routeRules[route].scope; got != want {
			t.Errorf("%s: scope %q in openapi.json, %q in the table", route, got, want)
		}
	}
}
