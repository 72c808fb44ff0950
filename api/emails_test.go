package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// service is the API on a database of its own, with one org and key.
type service struct {
	t     *testing.T
	pool  *pgxpool.Pool
	url   string
	token string
}

// relay is the provider of these tests. It carries what the API takes, whatever
// that is, and nothing is sent.
type relay struct{ providers.Provider }

func (relay) Name() string { return "smtp" }

func (relay) Capabilities() providers.Capabilities { return providers.Capabilities{} }

func (relay) Render(providers.Request) ([]byte, error) { return nil, nil }

// publicURL is where recipients reach the API of these tests.
const publicURL = "https://mail.example.com/"

func newService(t *testing.T, org api.Org, key api.Key) *service {
	return newSealedService(t, org, key, nil)
}

// newSealedService has keys for content.
func newSealedService(t *testing.T, org api.Org, key api.Key, keys *outbox.KeyRing) *service {
	t.Helper()
	pool := testdb.New(t)
	walled := testdb.Reopen(t, pool, outbox.OrgSetting, outbox.NoOrg) // as the API's
	client, err := outbox.NewClient(walled, outbox.Config{Providers: []providers.Provider{relay{}}, PublicURL: publicURL, Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(conforming(t, api.New(api.Config{Pool: walled, Outbox: client, Hooks: map[string]providers.Hook{"lab": labHook{}}})))
	t.Cleanup(server.Close)

	org.Name, key.Org = "acme", "acme"
	if _, err := api.CreateOrg(context.Background(), pool, org); err != nil {
		t.Fatal(err)
	}
	token, err := api.CreateKey(context.Background(), pool, key)
	if err != nil {
		t.Fatal(err)
	}
	return &service{t: t, pool: pool, url: server.URL, token: token}
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return v
}

// do sends a request; headers are name and value in turn.
func (s *service) do(method, path, body string, headers ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
			continue
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

func (s *service) emails() int {
	s.t.Helper()
	var n int
	err := s.pool.QueryRow(context.Background(),
		`SELECT (SELECT count(*) FROM outbox.emails) + (SELECT count(*) FROM outbox.river_job) + (SELECT count(*) FROM outbox.idempotency_keys)`).Scan(&n)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

const simple = `{"from":"Shop <shop@example.com>","to":"jane@example.org","subject":"Hello","text":"Hi"}`

func TestSendAndRead(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	sent := s.do("POST", "/emails", `{
		"from": "Shop <shop@example.com>", "to": ["jane@example.org"], "cc": "joe@example.org",
		"subject": "Grüße", "html": "<p>Hi</p>", "text": "Hi", "reply_to": "help@example.com",
		"headers": {"X-Order": "7"}, "tags": [{"name": "kind", "value": "receipt"}], "metadata": {"order": "7"},
		"attachments": [{"filename": "a.txt", "content": "aGk="}], "on_unknown": "hold", "priority": "high", "provider": "smtp"
	}`)
	if sent.status != http.StatusAccepted {
		t.Fatalf("status %d: %s", sent.status, sent.body)
	}
	id := sent.json(t)["id"].(string)
	if want := `{"id":"` + id + `","object":"email","status":"queued"}`; sent.body != want {
		t.Errorf("body = %s, want %s", sent.body, want)
	}
	if got := sent.header.Get("Location"); got != "/emails/"+id {
		t.Errorf("Location = %q", got)
	}

	read := s.do("GET", "/emails/"+id, "")
	got := read.json(t)
	delete(got, "created_at")
	want := map[string]any{
		"object": "email", "id": id, "from": "Shop <shop@example.com>",
		"to": []any{"jane@example.org"}, "cc": []any{"joe@example.org"}, "bcc": []any{}, "reply_to": []any{"help@example.com"},
		"subject": "Grüße", "html": "<p>Hi</p>", "text": "Hi", "scheduled_at": nil, "last_event": "queued",
		"tags": []any{map[string]any{"name": "kind", "value": "receipt"}}, "metadata": map[string]any{"order": "7"},
		"status": "queued", "reason": nil, "reason_detail": nil, "possible_duplicate": false,
		"on_unknown": "hold", "priority": "high", "provider": "smtp", "expires_at": nil, "next_attempt_at": nil,
		"list_unsubscribe": false, "repeated_recipients": []any{}, "suppressed_recipients": []any{},
		"ended_at": nil, "content_purged_at": nil, "message_id": nil, "attempts": []any{}, "events": []any{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("email (-want +got):\n%s", diff)
	}
}

// Every error has one shape, and nothing is written.
func TestSendErrors(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{FromDomains: []string{"example.com"}}, api.Key{})
	with := func(member string) string { return strings.TrimSuffix(simple, "}") + "," + member + "}" }
	tests := []struct {
		name    string
		body    string
		headers []string
		status  int
		error   string
		field   string
	}{
		{"no key", simple, []string{"Authorization", ""}, 401, "missing_api_key", ""},
		{"wrong scheme", simple, []string{"Authorization", "", "Authorization", "Basic abc"}, 401, "missing_api_key", ""},
		{"unknown key", simple, []string{"Authorization", "", "Authorization", "Bearer ob_nobody_" + strings.Repeat("a", 32)}, 401, "invalid_api_key", ""},
		{"wrong secret", simple, []string{"Authorization", "", "Authorization", "Bearer " + s.token[:len(s.token)-3] + "000"}, 401, "invalid_api_key", ""},
		{"other domain", strings.Replace(simple, "shop@example.com", "shop@example.net", 1), nil, 403, "invalid_from_address", ""},
		{"empty body", "", nil, 400, "invalid_json", ""},
		{"cut short", simple[:30], nil, 400, "invalid_json", ""},
		{"trailing data", simple + "{}", nil, 400, "invalid_json", ""},
		{"hard input 25: duplicate key", with(`"subject":"again"`), nil, 400, "invalid_json", ""},
		{"hard input 24: lone surrogate", with(`"html":"\ud800"`), nil, 400, "invalid_json", ""},
		{"hard input 24: invalid UTF-8", with("\"html\":\"\xff\""), nil, 400, "invalid_json", ""},
		{"hard input 23: U+0000", with(`"html":"a\u0000"`), nil, 422, "validation_error", "html"},
		{"array", "[]", nil, 422, "validation_error", ""},
		{"unknown field", with(`"replyTo":"a@example.com"`), nil, 422, "validation_error", "replyTo"},
		{"name in another case", with(`"HTML":"x"`), nil, 422, "validation_error", "HTML"},
		{"wrong type", with(`"html":7`), nil, 422, "validation_error", "html"},
		{"wrong type in a list", with(`"cc":["a@example.com",7]`), nil, 422, "validation_error", "cc[1]"},
		{"wrong type in a map", with(`"headers":{"X-A":1}`), nil, 422, "validation_error", "headers.X-A"},
		{"missing field", `{"from":"a@example.com","to":"b@example.com","text":"x"}`, nil, 422, "validation_error", "subject"},
		{"control character", strings.Replace(simple, "Hello", `Hello\nBcc: x@example.com`, 1), nil, 422, "validation_error", "subject"},
		{"attachment by URL", with(`"attachments":[{"path":"https://example.com/a"}]`), nil, 422, "validation_error", "attachments[0].path"},
		{"attachment without content", with(`"attachments":[{"filename":"a"}]`), nil, 422, "validation_error", "attachments[0].content"},
		{"bad base64", with(`"attachments":[{"filename":"a","content":"%%"}]`), nil, 422, "validation_error", "attachments[0].content"},
		{"bad byte", with(`"attachments":[{"filename":"a","content":[256]}]`), nil, 422, "validation_error", "attachments[0].content"},
		{"natural language time", with(`"scheduled_at":"in 1 min"`), nil, 422, "validation_error", "scheduled_at"},
		{"unknown provider", with(`"provider":"pigeon"`), nil, 422, "validation_error", "provider"},
		{"form", "a=b", []string{"Content-Type", "", "Content-Type", "application/x-www-form-urlencoded"}, 415, "unsupported_media_type", ""},
		{"compressed", simple, []string{"Content-Encoding", "gzip"}, 415, "unsupported_media_type", ""},
		{"empty idempotency key", simple, []string{"Idempotency-Key", " "}, 400, "invalid_idempotency_key", ""},
		{"long idempotency key", simple, []string{"Idempotency-Key", strings.Repeat("k", 256)}, 400, "invalid_idempotency_key", ""},
		{"half a quoted key", simple, []string{"Idempotency-Key", `"k`}, 400, "invalid_idempotency_key", ""},
		{"two keys", simple, []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, 400, "invalid_idempotency_key", ""},
		{"20 MB", `{"text":"` + strings.Repeat("x", 20<<20) + `"}`, nil, 413, "payload_too_large", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := s.do("POST", "/emails", test.body, test.headers...)
			body := got.json(t)
			if got.status != test.status || body["name"] != test.error {
				t.Fatalf("answer %d %s, want %d %s", got.status, got.body, test.status, test.error)
			}
			for _, member := range []string{"statusCode", "message", "type", "title", "status", "detail", "request_id"} {
				if body[member] == nil || body[member] == "" {
					t.Errorf("member %s is missing in %s", member, got.body)
				}
			}
			if test.field != "" {
				fields, _ := body["errors"].([]any)
				if len(fields) != 1 || fields[0].(map[string]any)["field"] != test.field {
					t.Errorf("errors = %v, want one about %s", body["errors"], test.field)
				}
			}
			if n := s.emails(); n != 0 {
				t.Errorf("%d rows were written", n)
			}
		})
	}
}

func TestIdempotentReplay(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	first := s.do("POST", "/emails", simple, "Idempotency-Key", "order-1")
	if first.status != http.StatusAccepted || first.header.Get("Idempotent-Replayed") != "" {
		t.Fatalf("answer %d, replayed %q", first.status, first.header.Get("Idempotent-Replayed"))
	}
	// Another order of members, other white space, a list for a string, the
	// quoted form of the key: the same request.
	same := `{"text":"Hi", "subject":"Hello", "to":["jane@example.org"], "cc":[], "html":null, "from":"Shop <shop@example.com>"}`
	for _, key := range []string{"order-1", `"order-1"`} {
		again := s.do("POST", "/emails", same, "Idempotency-Key", key)
		if again.status != first.status || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("answer %d %s, replayed %q; want %s", again.status, again.body, again.header.Get("Idempotent-Replayed"), first.body)
		}
	}
	other := s.do("POST", "/emails", strings.Replace(simple, "Hello", "Bye", 1), "Idempotency-Key", "order-1")
	if other.status != 422 || other.json(t)["name"] != "invalid_idempotent_request" {
		t.Errorf("answer %d %s", other.status, other.body)
	}
	if n := s.emails(); n != 3 {
		t.Errorf("%d rows, want an email, a job and a key", n)
	}
}

func TestRequiredIdempotencyKey(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*service{
		"by the org": newService(t, api.Org{RequireIdempotencyKey: true}, api.Key{}),
		"by the key": newService(t, api.Org{}, api.Key{RequireIdempotencyKey: true}),
	} {
		got := s.do("POST", "/emails", simple)
		if got.status != 400 || got.json(t)["name"] != "missing_idempotency_key" {
			t.Errorf("%s: answer %d %s", name, got.status, got.body)
		}
	}
}

func TestScopes(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Scopes: []string{"read"}})
	got := s.do("POST", "/emails", simple)
	if got.status != 403 || got.json(t)["name"] != "restricted_api_key" {
		t.Errorf("answer %d %s", got.status, got.body)
	}
}

func TestNotFoundHasOneShape(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	id := s.do("POST", "/emails", simple).json(t)["id"].(string)
	ctx := context.Background()
	if _, err := api.CreateOrg(ctx, s.pool, api.Org{Name: "other"}); err != nil {
		t.Fatal(err)
	}
	stranger, err := api.CreateKey(ctx, s.pool, api.Key{Org: "other"})
	if err != nil {
		t.Fatal(err)
	}
	var shapes []string
	for _, got := range []answer{
		s.do("GET", "/emails/"+id, "", "Authorization", "", "Authorization", "Bearer "+stranger),
		s.do("GET", "/emails/019a0000-0000-7000-8000-000000000000", ""),
		s.do("GET", "/emails/nonsense", ""),
	} {
		body := got.json(t)
		delete(body, "request_id")
		shape, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		shapes = append(shapes, string(shape))
		if got.status != 404 || body["name"] != "not_found" {
			t.Errorf("answer %d %s", got.status, got.body)
		}
	}
	if shapes[0] != shapes[1] || shapes[1] != shapes[2] {
		t.Errorf("another org's id can be told from one that does not exist: %v", shapes)
	}
}

func TestProblemJSONOnlyOnRequest(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	if got := s.do("POST", "/emails", "{").header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type = %q", got)
	}
	if got := s.do("POST", "/emails", "{", "Accept", "application/problem+json").header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type = %q", got)
	}
}

// What SDKs make of a base URL that ends in a slash or has a path.
func TestTolerantPaths(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	id := s.do("POST", "/emails", simple).json(t)["id"].(string)
	for _, path := range []string{"//emails/", "/v1/emails/", "/v1//emails/", "/api/v1/emails/", "/outboxd/emails/"} {
		if got := s.do("GET", path+id, ""); got.status != http.StatusOK {
			t.Errorf("%s: answer %d %s", path, got.status, got.body)
		}
	}
	if got := s.do("PUT", "/v1/emails", ""); got.status != http.StatusMethodNotAllowed {
		t.Errorf("another method behind a prefix: answer %d %s", got.status, got.body)
	}
	// A path that begins like a route is not another one's prefix, and a
	// segment is compared as a whole.
	for _, path := range []string{"/emails/x/emails/" + id, "/emails/x/healthz", "/v1/xemails/" + id, "/v1", "/", ""} {
		if got := s.do("GET", path, ""); got.status != http.StatusNotFound || got.json(t)["name"] != "not_found" {
			t.Errorf("%s: answer %d %s", path, got.status, got.body)
		}
	}
}
