package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// walled is two orgs with something in every table, and a client whose pool is
// the API's.
type walled struct {
	t      *testing.T
	open   *pgxpool.Pool // sees all
	closed *pgxpool.Pool // sees nothing of itself
	client *outbox.Client
	a, b   tenant
}

// tenant names what an org has.
type tenant struct{ org, email, failed, doubtful, scheduled, webhook, message uuid.UUID }

// unknown names what nobody has.
func unknown(org uuid.UUID) tenant {
	return tenant{org, uuid.New(), uuid.New(), uuid.New(), uuid.New(), uuid.New(), uuid.New()}
}

func (x tenant) statements() map[string]outbox.Statement {
	return outbox.TenantStatements(outbox.NewNames(x.org, x.email, x.failed, x.doubtful, x.scheduled, x.webhook, x.message))
}

func newWalled(t *testing.T) *walled {
	t.Helper()
	w := &walled{t: t, open: testdb.New(t)}
	var above bool
	must(t, w.open.QueryRow(context.Background(),
		"SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user").Scan(&above))
	if above {
		t.Skip("row-level security does not hold for the role of DATABASE_URL: use an ordinary one")
	}
	w.closed = testdb.Reopen(t, w.open, outbox.OrgSetting, outbox.NoOrg)
	w.client = newClient(t, w.closed)
	w.a, w.b = w.newTenant(), w.newTenant()
	w.exec(`INSERT INTO outbox.stray_events (id, provider, provider_message_id, type, recipient, permanent, whole_message, detail, occurred_at)
		VALUES (gen_random_uuid(), 'p', 'm', 'delivered', 'a@example.org', false, false, '', now())`)
	return w
}

func (w *walled) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.open.Exec(context.Background(), sql, args...)
	must(w.t, err)
}

// newTenant makes what it can by the client, and so behind the wall.
func (w *walled) newTenant() tenant {
	w.t.Helper()
	ctx := context.Background()
	x := tenant{org: newOrg(w.t, w.open), message: uuid.Must(uuid.NewV7())}
	enqueue := func(key string, at time.Time) uuid.UUID {
		s := submission(x.org, key)
		s.Messages[0] = full()
		s.Messages[0].ScheduledAt, s.Messages[0].ExpiresAt, s.Messages[0].Provider = at, time.Time{}, ""
		s.Messages[0].Priority = ""
		receipt, err := w.client.Enqueue(ctx, s)
		must(w.t, err)
		return receipt.IDs[0]
	}
	x.email, x.failed, x.doubtful = enqueue("k", time.Time{}), enqueue("", time.Time{}), enqueue("", time.Time{})
	x.scheduled = enqueue("", time.Now().Add(48*time.Hour))
	webhook, err := w.client.CreateWebhook(ctx, x.org, "https://example.com/", outbox.WebhookEvents)
	must(w.t, err)
	x.webhook = webhook.ID
	_, err = w.client.Suppress(ctx, x.org, outbox.Suppression{Address: "gone@example.com", Reason: outbox.SuppressionManual})
	must(w.t, err)

	w.exec(`INSERT INTO outbox.api_keys (id, org_id, secret_hash, scopes) VALUES ($1::uuid::text, $1, 'x', '{read}')`, x.org)
	w.exec(`INSERT INTO outbox.attempts (email_id, number, provider, provider_key, worker, began_at, deadline, in_doubt_at, payload_sha256)
		SELECT id, 1, 'p', gen_random_uuid(), 'w', now(), now(), now(), 'x' FROM unnest($1::uuid[]) AS i (id)`, []uuid.UUID{x.email, x.doubtful})
	w.exec(`UPDATE outbox.emails SET status = 'unknown', attempts = 1 WHERE id = $1`, x.doubtful)
	w.exec(`INSERT INTO outbox.events (id, email_id, type, provider, occurred_at) VALUES (gen_random_uuid(), $1, 'opened', 'p', now())`, x.email)
	w.exec(`UPDATE outbox.emails SET status = 'failed', ended_at = now() WHERE id = $1`, x.failed)
	w.exec(`INSERT INTO outbox.webhook_messages (id, webhook_id, org_id, type, email_id, created_at, next_attempt_at, failed_at)
		VALUES ($1, $2, $3, 'email.sent', $4, now(), now(), now())`, x.message, x.webhook, x.org, x.email)
	return x
}

// walledTables are the tables that have a policy.
func (w *walled) walledTables() []string {
	w.t.Helper()
	rows, err := w.open.Query(context.Background(), `SELECT c.oid::regclass::text FROM pg_class c
		WHERE c.relnamespace = 'outbox'::regnamespace AND c.relrowsecurity ORDER BY 1`)
	must(w.t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(w.t, err)
	if len(tables) < 14 {
		w.t.Fatalf("only %v have a policy", tables)
	}
	return tables
}

// The API's pool shows nothing unless it is told whose; then that org's alone.
func TestWallIsClosedByDefault(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	ctx := context.Background()
	as := func(a outbox.Access, table string) (n int) {
		must(t, a.QueryRow(ctx, func(row pgx.Row) error { return row.Scan(&n) }, "SELECT count(*) FROM "+table))
		return n
	}
	for _, table := range w.walledTables() {
		all := count(t, w.open, "SELECT count(*) FROM "+table)
		none := count(t, w.closed, "SELECT count(*) FROM "+table)
		a, b := as(outbox.AsOrg(w.closed, w.a.org), table), as(outbox.AsOrg(w.closed, w.b.org), table)
		if across := as(outbox.AcrossOrgs(w.closed), table); all == 0 || none != 0 || across != all {
			t.Errorf("%s: %d rows, %d without an org, %d across orgs", table, all, none, across)
		}
		switch table {
		case "outbox.stray_events", "outbox.unsubscribe_secrets":
			if a+b != 0 {
				t.Errorf("%s: orgs see %d rows", table, a+b)
			}
		default:
			if a == 0 || a != b || a+b != all {
				t.Errorf("%s: the orgs see %d and %d of %d rows", table, a, b, all)
			}
		}
	}
	if n := count(t, w.closed, "SELECT count(*) FROM outbox.emails"); n != 0 {
		t.Errorf("a connection that was used for an org shows %d emails later", n)
	}
}

// What is another org's can neither be written.
func TestWallKeepsFromWriting(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	for table, sql := range map[string]string{
		"emails":       `INSERT INTO outbox.emails (id, org_id, status, created_at) VALUES (gen_random_uuid(), $1, 'queued', now())`,
		"suppressions": `INSERT INTO outbox.suppressions (org_id, address, reason) VALUES ($1, 'x@example.com', 'manual')`,
		"events": `INSERT INTO outbox.events (id, email_id, type, occurred_at)
			VALUES (gen_random_uuid(), nullif('` + w.a.email.String() + `', $1::uuid::text)::uuid, 'opened', now())`,
		"terms": `INSERT INTO outbox.email_terms (email_id, term) VALUES ('` + w.a.email.String() + `', $1)`,
	} {
		_, err := outbox.AsOrg(w.closed, w.b.org).Exec(context.Background(), sql, w.a.org)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != pgerrcode.InsufficientPrivilege {
			t.Errorf("%s: error %v, want that it is not allowed", table, err)
		}
		if _, err := outbox.AsOrg(w.closed, w.a.org).Exec(context.Background(), sql, w.a.org); err != nil {
			t.Errorf("%s: its own org: %v", table, err)
		}
	}
}

var orgCondition = regexp.MustCompile(`\b(\w+\.)?org_id = (\$\d+)`)

// The second wall alone is enough: a statement that forgot its condition sees and
// changes what is its org's.
func TestWallHoldsWithoutConditions(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	rollback := errors.New("roll back")
	run := func(as uuid.UUID, s outbox.Statement) (n int64) {
		t.Helper()
		err := outbox.AsOrg(w.closed, as).Begin(context.Background(), func(tx pgx.Tx) error {
			tag, err := tx.Exec(context.Background(), s.SQL, s.Args...)
			if err != nil {
				return err
			}
			n = tag.RowsAffected()
			return rollback
		})
		if !errors.Is(err, rollback) {
			t.Errorf("%s: %v", s.SQL, err)
		}
		return n
	}
	mutants := 0
	for name, s := range w.a.statements() {
		if strings.HasPrefix(strings.ToLower(strings.TrimSpace(s.SQL)), "select count") || strings.Contains(s.SQL, "SELECT count(*) FROM (") {
			continue // always one row
		}
		mutant := s
		mutant.SQL = orgCondition.ReplaceAllString(s.SQL, "$2::uuid IS NOT NULL")
		if mutant.SQL != s.SQL {
			mutants++
		}
		if n := run(w.a.org, s); n == 0 {
			t.Errorf("%s: the org's own things are not found", name)
		}
		if n := run(w.b.org, s); n != 0 {
			t.Errorf("%s: %d rows of another org", name, n)
		}
		other := run(w.b.org, mutant)
		switch name {
		case "list", "under", "webhooks", "suppressions", "suppressionsBefore", "suppression", "unsuppress":
			// These name nothing of the other org's, so they find their own.
			if own := run(w.b.org, w.b.statements()[name]); other != own {
				t.Errorf("%s without its condition: %d rows, want the org's own %d", name, other, own)
			}
		default:
			if other != 0 {
				t.Errorf("%s without its condition: %d rows of another org", name, other)
			}
		}
	}
	if mutants < 18 {
		t.Errorf("only %d statements have a condition on the org", mutants)
	}
}

// asTenant calls a method of the client as an org, on things that are named.
type asTenant func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error)

func only(err error) (any, error) { return nil, err }

// tenantMethods are all methods that take an org. Nil: it names nothing that could
// be another org's.
var tenantMethods = map[string]asTenant{
	"Enqueue": nil, "EnqueueTx": nil, "EnqueueManyTx": nil, "Suppress": nil, "CreateWebhook": nil,
	"Get": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		got, err := c.Get(ctx, org, x.email)
		return got == nil, err
	},
	"GetState": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		got, err := c.GetState(ctx, org, x.email)
		return got == nil, err
	},
	"List": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		list, more, err := c.List(ctx, outbox.Query{Org: org, Limit: 9, To: "only@" + x.org.String() + ".example", After: x.email})
		return fmt.Sprint(list, more), err
	},
	"Cancel": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		return only(c.Cancel(ctx, org, x.scheduled))
	},
	"CancelBy": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		return only(c.CancelBy(ctx, org, x.scheduled, "test"))
	},
	"Reschedule": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		return only(c.Reschedule(ctx, org, x.scheduled, time.Now().Add(time.Hour)))
	},
	"Resolve": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		return only(c.Resolve(ctx, org, x.doubtful, outbox.OutcomeNotAccepted, "test"))
	},
	"Retry": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		return only(c.Retry(ctx, org, x.failed, "test"))
	},
	"Unsuppress": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		return only(c.Unsuppress(ctx, org, "only@"+x.org.String()+".example"))
	},
	"Suppressions": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		list, more, err := c.Suppressions(ctx, outbox.SuppressionQuery{Org: org, Limit: 9, Address: "only@" + x.org.String() + ".example"})
		return fmt.Sprint(list, more), err
	},
	"ListWebhooks": func(ctx context.Context, c *outbox.Client, org uuid.UUID, _ tenant) (any, error) {
		list, err := c.ListWebhooks(ctx, org)
		return len(list), err
	},
	"GetWebhook": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		got, err := c.GetWebhook(ctx, org, x.webhook)
		return got == nil, err
	},
	"UpdateWebhook": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		return only(c.UpdateWebhook(ctx, org, x.webhook, outbox.WebhookChange{Status: outbox.WebhookDisabled}))
	},
	"DeleteWebhook": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		return only(c.DeleteWebhook(ctx, org, x.webhook))
	},
	"RotateWebhookSecret": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		return c.RotateWebhookSecret(ctx, org, x.webhook)
	},
	"ListWebhookMessages": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		list, more, err := c.ListWebhookMessages(ctx, org, x.webhook, uuid.Nil, 9)
		return fmt.Sprint(list, more), err
	},
	"GetWebhookMessage": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		got, err := c.GetWebhookMessage(ctx, org, x.webhook, x.message)
		return got == nil, err
	},
	"ReplayWebhook": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		n, more, err := c.ReplayWebhook(ctx, org, x.webhook, time.Time{})
		return fmt.Sprint(n, more), err
	},
	"ReplayWebhookMessage": func(ctx context.Context, c *outbox.Client, org uuid.UUID, x tenant) (any, error) {
		return only(c.ReplayWebhookMessage(ctx, org, x.webhook, x.message))
	},
}

// aboveOrgs are methods that serve no tenant, and whom they serve.
var aboveOrgs = map[string]string{
	"OrgOf":      "for tools that stand above orgs",
	"Browse":     "for operators, with an org to narrow it down",
	"Dossier":    "for operators",
	"PurgeOrg":   "for operators and workers",
	"Release":    "for operators, with an org to narrow it down",
	"CancelHeld": "for operators, with an org to narrow it down",
}

// Through no method does an org reach what is another's: the answer is that of
// something that never was, and nothing changes.
func TestNoMethodReachesAnotherOrg(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	ctx := context.Background()
	for _, org := range []uuid.UUID{w.a.org} {
		_, err := w.client.Suppress(ctx, org, outbox.Suppression{Address: "only@" + org.String() + ".example", Reason: outbox.SuppressionManual})
		must(t, err)
	}
	before := w.everything()
	for _, name := range methodsWithOrg() {
		call, known := tenantMethods[name]
		if _, above := aboveOrgs[name]; !known && !above {
			t.Errorf("Client.%s takes an org or an id: add it to tenantMethods", name)
		}
		if call == nil {
			continue
		}
		got, gotErr := call(ctx, w.client, w.b.org, w.a)
		want, wantErr := call(ctx, w.client, w.b.org, unknown(uuid.New()))
		if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("Client.%s: %v, error %v for another org's; %v, error %v for nothing", name, got, gotErr, want, wantErr)
		}
	}
	if after := w.everything(); after != before {
		t.Errorf("something changed: %s\nthen %s", before, after)
	}
}

// methodsWithOrg are the client's methods that take a UUID or something with an org.
func methodsWithOrg() (names []string) {
	id := reflect.TypeFor[uuid.UUID]()
	client := reflect.TypeFor[*outbox.Client]()
	for method := range client.Methods() {
		for in := range method.Type.Ins() {
			if in.Kind() == reflect.Slice && in != id {
				in = in.Elem()
			}
			named := in == id
			if in.Kind() == reflect.Struct {
				_, named = in.FieldByName("Org")
			}
			if named {
				names = append(names, method.Name)
				break
			}
		}
	}
	return names
}

// everything is all rows behind the wall, and the jobs.
func (w *walled) everything() string {
	w.t.Helper()
	var all strings.Builder
	for _, table := range append(w.walledTables(), "outbox.river_job") {
		var rows string
		must(w.t, w.open.QueryRow(context.Background(),
			"SELECT coalesce(string_agg(t::text, E'\n' ORDER BY t::text), '') FROM "+table+" t").Scan(&rows))
		fmt.Fprintf(&all, "%s\n%s\n", table, rows)
	}
	return all.String()
}
