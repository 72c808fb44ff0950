package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// errorLab can make every error happen. Its servers share one database.
type errorLab struct {
	*service
	org uuid.UUID
	// failing meets a bug on its way, cutOff no database, small takes tiny
	// bodies only, and hasty does not wait for a key that another holds.
	failing, cutOff, small, hasty *service
}

func newErrorLab(t *testing.T) *errorLab {
	t.Helper()
	lab := &errorLab{service: newService(t, api.Org{}, api.Key{Scopes: []string{"send", "read", "admin"}})}
	if err := lab.pool.QueryRow(context.Background(), `SELECT id FROM outbox.orgs`).Scan(&lab.org); err != nil {
		t.Fatal(err)
	}
	hastyConfig := lab.pool.Config()
	hastyConfig.ConnConfig.RuntimeParams["lock_timeout"] = "50ms"
	lab.hasty = lab.server(api.Config{Pool: lab.pool, Outbox: newOutbox(t, openPool(t, hastyConfig))})
	lab.small = lab.server(api.Config{Pool: lab.pool, MaxBody: 8})
	lab.failing = lab.server(api.Config{Pool: lab.pool, Ready: func(*http.Request) error { panic("a bug") }})
	away := nowhere(t)
	lab.cutOff = lab.server(api.Config{
		Pool: away, Outbox: newOutbox(t, away), Ready: func(*http.Request) error { return errors.New("no database") },
	})
	return lab
}

// nowhere is a database that is away.
func nowhere(t *testing.T) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig("postgres://127.0.0.1:1/nowhere?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	return openPool(t, config)
}

func openPool(t *testing.T, config *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newOutbox(t *testing.T, pool *pgxpool.Pool) *outbox.Client {
	t.Helper()
	return newOutboxAt(t, pool, publicURL)
}

// newOutboxAt is one whose recipients reach the API at the address; empty: they
// do not.
func newOutboxAt(t *testing.T, pool *pgxpool.Pool, address string) *outbox.Client {
	t.Helper()
	client, err := outbox.NewClient(pool, outbox.Config{Providers: []providers.Provider{relay{}}, PublicURL: address})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// labHook is the hook of a provider that says in a header what it thinks.
type labHook struct{}

func (labHook) ParseEvents(_ context.Context, h http.Header, _ []byte, now time.Time) ([]providers.Event, error) {
	switch h.Get("X-Lab") {
	case "unverified":
		return nil, fmt.Errorf("%w: no signature", providers.ErrUnverified)
	case "garbled":
		return nil, errors.New("no events")
	}
	return []providers.Event{{Type: providers.EventDelivered, Reference: uuid.NewString(), OccurredAt: now}}, nil
}

func (l *errorLab) server(cfg api.Config) *service {
	cfg.Hooks = map[string]providers.Hook{"lab": labHook{}}
	server := httptest.NewServer(conforming(l.t, api.New(cfg)))
	l.t.Cleanup(server.Close)
	return &service{t: l.t, pool: l.pool, url: server.URL, token: l.token}
}

func (l *errorLab) newKey(key api.Key) (token string) {
	l.t.Helper()
	key.Org = "acme"
	token, err := api.CreateKey(context.Background(), l.pool, key)
	if err != nil {
		l.t.Fatal(err)
	}
	return token
}

// request is an operation's request that would succeed.
type request struct {
	described
	id, path, body string
}

func (l *errorLab) request(op described) request {
	r := request{described: op}
	r.path, r.id = l.pathFor(op)
	for _, name := range []string{"short", "two", "later", "accepted", "asked", "webhook", "moved", "since"} {
		if body, ok := op.bodies(l.t)[name]; ok {
			r.body = body
		}
	}
	return r
}

// scope is what the operation asks for, by the description.
func (r request) scope() string {
	for _, alternative := range r.node.list("security") {
		return strings.Join(node(alternative.(map[string]any)).strings("apiKey"), ",")
	}
	return ""
}

func (r request) send(s *service, headers ...string) answer {
	return s.do(strings.ToUpper(r.method), r.path, r.body, headers...)
}

func bearer(token string) []string {
	return []string{"Authorization", "", "Authorization", "Bearer " + token}
}

// provocations make an error happen in every operation that can have it.
var provocations = map[string]func(l *errorLab, r request) answer{
	"missing_api_key": func(l *errorLab, r request) answer { return r.send(l.service, "Authorization", "") },
	"invalid_api_key": func(l *errorLab, r request) answer {
		return r.send(l.service, bearer("ob_nobody_"+strings.Repeat("a", 32))...)
	},
	"restricted_api_key": func(l *errorLab, r request) answer {
		others := slices.DeleteFunc([]string{"send", "read"}, func(s string) bool { return s == r.scope() })
		return r.send(l.service, bearer(l.newKey(api.Key{Scopes: others}))...)
	},
	"invalid_from_address": func(l *errorLab, r request) answer {
		return r.send(l.service, bearer(l.newKey(api.Key{FromDomains: []string{"example.net"}}))...)
	},
	"org_paused": func(l *errorLab, r request) answer {
		l.exec("UPDATE outbox.orgs SET paused_at = now() WHERE id = $1", l.org)
		defer l.exec("UPDATE outbox.orgs SET paused_at = NULL WHERE id = $1", l.org)
		return r.send(l.server(api.Config{Pool: l.pool, Outbox: newOutbox(l.t, l.pool)}))
	},
	"invalid_json": func(l *errorLab, r request) answer {
		r.body = r.body[:max(len(r.body)-1, 0)]
		return r.send(l.service)
	},
	"unsupported_media_type": func(l *errorLab, r request) answer {
		return r.send(l.service, "Content-Type", "", "Content-Type", "text/plain")
	},
	"payload_too_large":       func(l *errorLab, r request) answer { return r.send(l.small) },
	"invalid_idempotency_key": func(l *errorLab, r request) answer { return r.send(l.service, "Idempotency-Key", "\u00e9") },
	"missing_idempotency_key": func(l *errorLab, r request) answer {
		return r.send(l.service, bearer(l.newKey(api.Key{RequireIdempotencyKey: true}))...)
	},
	"validation_error": func(l *errorLab, r request) answer {
		r.path += "?limit=0"
		if r.body != "" {
			r.body = strings.NewReplacer("shop@example.com", "nobody", "scheduled_at", "scheduledAt", "outcome", "result", `"address"`, `"addr"`,
				"endpoint", "end_point", "since", "from").Replace(r.body)
		}
		return r.send(l.service)
	},
	"invalid_idempotent_request": func(l *errorLab, r request) answer {
		r.send(l.service, "Idempotency-Key", "reused")
		r.body = strings.ReplaceAll(r.body, "Your order", "My order")
		return r.send(l.service, "Idempotency-Key", "reused")
	},
	"concurrent_idempotent_requests": func(l *errorLab, r request) answer {
		l.t.Helper()
		tx, err := l.pool.Begin(context.Background())
		if err != nil {
			l.t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		for _, batch := range []bool{false, true} {
			_, err := newOutbox(l.t, l.pool).EnqueueTx(context.Background(), tx, outbox.Submission{
				Org: l.org, IdempotencyKey: "held", Batch: batch,
				Messages: []outbox.Message{{From: "a@example.com", To: []string{"b@example.com"}, Subject: "s", Text: "t"}},
			})
			if err != nil {
				l.t.Fatal(err)
			}
		}
		return r.send(l.hasty, "Idempotency-Key", "held")
	},
	"not_found": func(l *errorLab, r request) answer {
		r.path = strings.NewReplacer(r.id, "019a0000-0000-7000-8000-000000000000", "jane@", "nobody@", "/lab", "/nobody").Replace(r.path)
		r.body = strings.ReplaceAll(r.body, r.id, "019a0000-0000-7000-8000-000000000000")
		return r.send(l.service)
	},
	"not_cancelable": sendToEnded,
	"not_scheduled":  sendToEnded,
	"not_failed":     sendToEnded,
	"content_purged": func(l *errorLab, r request) answer {
		l.exec(`UPDATE outbox.emails SET content_purged_at = now() WHERE id = $1`, r.id)
		return r.send(l.service)
	},
	"not_in_doubt": sendToEnded,
	"webhook_disabled": func(l *errorLab, r request) answer {
		l.exec("UPDATE outbox.webhooks SET status = 'disabled', disabled_reason = 'request'")
		return r.send(l.service)
	},
	"invalid_signature": func(l *errorLab, r request) answer { return r.send(l.service, "X-Lab", "unverified") },
	"invalid_event":     func(l *errorLab, r request) answer { return r.send(l.service, "X-Lab", "garbled") },
	"rate_limit_exceeded": func(l *errorLab, r request) answer {
		limited := l.server(api.Config{Pool: l.pool, Outbox: newOutbox(l.t, l.pool), KeyRate: api.Rate{Count: 1, Per: time.Hour}})
		r.send(limited)
		return r.send(limited)
	},
	"queue_quota_exceeded": func(l *errorLab, r request) answer {
		client, err := outbox.NewClient(l.pool, outbox.Config{Providers: []providers.Provider{relay{}}, PublicURL: publicURL, MaxQueued: 1})
		if err != nil {
			l.t.Fatal(err)
		}
		full := l.server(api.Config{Pool: l.pool, Outbox: client})
		r.send(full)
		return r.send(full)
	},
	"internal_server_error": func(l *errorLab, r request) answer {
		return r.send(l.failing)
	},
	"service_unavailable": func(l *errorLab, r request) answer { return r.send(l.cutOff) },
}

func (l *errorLab) exec(sql string, args ...any) {
	l.t.Helper()
	if _, err := l.pool.Exec(context.Background(), sql, args...); err != nil {
		l.t.Fatal(err)
	}
}

func sendToEnded(l *errorLab, r request) answer {
	l.t.Helper()
	l.exec(`UPDATE outbox.emails SET status = 'sent', ended_at = now() WHERE id = $1`, r.id)
	return r.send(l.service)
}

// Every error is provoked in every operation: it happens where it is
// documented and nowhere else.
func TestOpenAPIErrors(t *testing.T) {
	t.Parallel()
	c, lab := openAPIContract(t), newErrorLab(t)
	for _, op := range c.operations() {
		documented := c.errorNamesOf(op)
		if r := lab.request(op); r.scope() != "" {
			if got := r.send(lab.service, bearer(lab.newKey(api.Key{Scopes: []string{r.scope()}}))...); got.status >= 300 {
				t.Errorf("%s with no scope but %s: answer %d %s", op, r.scope(), got.status, got.body)
			}
		}
		for name, provoke := range provocations {
			got := provoke(lab, lab.request(op))
			if happened := strings.Contains(got.body, fmt.Sprintf(`"name":%q`, name)); happened != slices.Contains(documented, name) {
				t.Errorf("%s, %s: documented %v, answer %d %s", op, name, !happened, got.status, got.body)
			}
		}
	}
	for _, name := range c.errorNames() {
		if provocations[name] == nil && name != "method_not_allowed" {
			t.Errorf("nothing provokes %s", name)
		}
	}
	if got := lab.do("DELETE", "/emails", ""); got.status != http.StatusMethodNotAllowed || got.json(t)["name"] != "method_not_allowed" {
		t.Errorf("answer %d %s", got.status, got.body)
	}
}

func (c *contract) errorNamesOf(op described) []string {
	var names []string
	for status := range op.node.at("responses") {
		var code int
		if _, err := fmt.Sscan(status, &code); err != nil {
			continue
		}
		response, _ := c.response(op.method, op.path, code)
		names = append(names, response.at("content", "application/json", "schema", "properties", "name").strings("enum")...)
	}
	return names
}
