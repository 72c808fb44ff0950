package app

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func opsRequest(t *testing.T, cfg Config, method, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	ui := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	req := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	if change != nil {
		change(req)
	}
	rec := httptest.NewRecorder()
	cfg.opsHandler(func(*http.Request) error { return nil }, &adminPages{riverUI: ui, console: ui}, ui).ServeHTTP(rec, req)
	return rec
}

func asAdmin(r *http.Request) { r.SetBasicAuth("admin", "secret") }

func TestOpsPagesNeedThePassword(t *testing.T) {
	t.Parallel()
	closed, open := Config{AdminUser: "admin"}, Config{AdminUser: "admin", AdminPassword: "secret"}
	watched := Config{AdminUser: "admin", AdminPassword: "secret", AdminReadOnly: true}
	bad := func(r *http.Request) { r.SetBasicAuth("admin", "") }
	crossSite := func(r *http.Request) {
		asAdmin(r)
		r.Header.Set("Sec-Fetch-Site", "cross-site")
	}
	tests := []struct {
		name   string
		cfg    Config
		method string
		path   string
		change func(*http.Request)
		want   int
	}{
		{"health is open", open, "GET", "/healthz", nil, 200},
		{"metrics are open", open, "GET", "/metrics", nil, 200},
		{"metrics without a password configured", closed, "GET", "/metrics", nil, 200},
		{"metrics change nothing", open, "POST", "/metrics", nil, 405},
		{"no password is configured", closed, "GET", "/riverui/", nil, 404},
		{"no password is configured, an empty one is given", closed, "GET", "/riverui/", bad, 404},
		{"the console without a password configured", closed, "GET", "/console/", nil, 404},
		{"the console, no password is given", open, "GET", "/console/", nil, 401},
		{"the console, another password", open, "GET", "/console/emails?q=a", bad, 401},
		{"the console, the password", open, "GET", "/console/", asAdmin, 200},
		{"the console, a post", open, "POST", "/console/suppressions/remove", asAdmin, 200},
		{"the console, a post from another site", open, "POST", "/console/suppressions/remove", crossSite, 403},
		{"the console, read-only, looking", watched, "GET", "/console/emails", asAdmin, 200},
		{"the console, read-only, a post", watched, "POST", "/console/suppressions/remove", asAdmin, 403},
		{"no password is given", open, "GET", "/riverui/", nil, 401},
		{"another password", open, "GET", "/riverui/api/jobs", bad, 401},
		{"the password", open, "GET", "/riverui/api/jobs", asAdmin, 200},
		{"pprof without", open, "GET", "/debug/pprof/", nil, 401},
		{"pprof with", open, "GET", "/debug/pprof/", asAdmin, 200},
		{"the path that River UI's own program leaves open", open, "GET", "/riverui/api/health-checks/complete", nil, 401},
		{"a post", open, "POST", "/riverui/api/jobs/cancel", asAdmin, 200},
		{"a post from another site", open, "POST", "/riverui/api/jobs/cancel", crossSite, 403},
		{"read-only, looking", watched, "GET", "/riverui/api/jobs", asAdmin, 200},
		{"read-only, a post", watched, "POST", "/riverui/api/jobs/cancel", asAdmin, 403},
		{"read-only, a put", watched, "PUT", "/riverui/api/queues/emails/pause", asAdmin, 403},
		{"read-only, without the password", watched, "POST", "/riverui/api/jobs/cancel", nil, 401},
	}
	for _, test := range tests {
		if got := opsRequest(t, test.cfg, test.method, test.path, test.change).Code; got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// What a page may do holds for all that a browser can be shown here.
func TestOpsPagesSayWhatTheyMayDo(t *testing.T) {
	t.Parallel()
	cfg := Config{AdminUser: "admin", AdminPassword: "secret"}
	for _, path := range []string{"/console/", "/riverui/", "/riverui/api/jobs", "/debug/pprof/"} {
		got := opsRequest(t, cfg, http.MethodGet, path, asAdmin).Header()
		for name, want := range map[string]string{
			"Content-Security-Policy": pagePolicy, "X-Frame-Options": "DENY",
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
		} {
			if got.Get(name) != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got.Get(name), want)
			}
		}
	}
}
