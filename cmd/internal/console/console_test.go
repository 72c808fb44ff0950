package console_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/net/html/atom"

	"github.com/outboxd/outboxd/cmd/internal/console"
	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// desk is a console on a database with two orgs, and what they have.
type desk struct {
	t       *testing.T
	open    *pgxpool.Pool // sees all
	client  *outbox.Client
	console http.Handler
	config  console.Config
	log     bytes.Buffer
	acme    uuid.UUID
	zeta    uuid.UUID
	emails  map[string]uuid.UUID // by subject
}

// What no page shows.
const (
	bodySecret = "the-body-is-secret"
	linkSecret = "the-token-is-secret"
)

func newDesk(t *testing.T) *desk {
	t.Helper()
	open := testdb.New(t)
	d := newDeskOn(t, testdb.Reopen(t, open, outbox.OrgSetting, outbox.NoOrg)) // as the API's is
	d.open = open
	return d
}

// newDeskOn takes the pool of an api process.
func newDeskOn(t *testing.T, pool *pgxpool.Pool) *desk {
	t.Helper()
	d := &desk{t: t, emails: map[string]uuid.UUID{}}
	var err error
	if d.client, err = outbox.NewClient(pool, outbox.Config{}); err != nil {
		t.Fatal(err)
	}
	d.config = console.Config{
		Pool: pool, Outbox: d.client, RiverUI: "/riverui", Logger: slog.New(slog.NewJSONHandler(&d.log, nil)),
	}
	d.console = console.New(d.config)
	return d
}

func (d *desk) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.open.Exec(context.Background(), sql, args...); err != nil {
		d.t.Fatal(err)
	}
}

// org makes an org.
func (d *desk) org(name string) uuid.UUID {
	d.t.Helper()
	id := uuid.New()
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES ($1, $2)", id, name)
	return id
}

// submit submits an email to a recipient that is named as its subject.
func (d *desk) submit(org uuid.UUID, subject string) uuid.UUID {
	d.t.Helper()
	receipt, err := d.client.Enqueue(context.Background(), outbox.Submission{
		Org: org, IdempotencyKey: "order " + subject, Messages: []outbox.Message{{
			From: "Shop <shop@example.com>", To: []string{subject + "@example.org"}, Subject: subject,
			Text: bodySecret, HTML: bodySecret, Metadata: map[string]string{"token": bodySecret},
			Headers: map[string]string{"X-Token": bodySecret},
		}},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.emails[subject] = receipt.IDs[0]
	return receipt.IDs[0]
}

// attempt begins an attempt with a state of its own.
func (d *desk) attempt(id uuid.UUID, provider, stage, rest string, args ...any) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.attempts (email_id, number, provider, provider_key, worker, began_at, deadline, stage, payload_sha256)
		SELECT $1, attempts + 1, $2, gen_random_uuid(), 'host/1/w', now() - interval '3 seconds', now(), $3, 'x' FROM outbox.emails WHERE id = $1`,
		id, provider, stage)
	d.exec("UPDATE outbox.emails SET attempts = attempts + 1, created_at = created_at - interval '5 seconds' WHERE id = $1", id)
	d.exec("UPDATE outbox.attempts SET "+rest+" WHERE email_id = $1", append([]any{id}, args...)...)
}

// furnish makes an email of each kind.
func (d *desk) furnish() {
	d.t.Helper()
	d.acme, d.zeta = d.org("acme"), d.org("zeta")
	d.submit(d.acme, "waiting")
	doubtful := d.submit(d.acme, "doubtful")
	d.attempt(doubtful, "postmark", "sending", "in_doubt_at = began_at + interval '2 seconds'")
	d.exec("UPDATE outbox.emails SET status = 'unknown', reason = 'in_doubt' WHERE id = $1", doubtful)
	failed := d.submit(d.zeta, "failed")
	d.attempt(failed, "sendgrid", "rejected", "ended_at = began_at + interval '3 seconds', evidence = 'response', status_code = 400, code = 'bad_from', detail = 'no such sender'")
	d.exec("UPDATE outbox.emails SET status = 'failed', reason = 'rejected', ended_at = now() WHERE id = $1", failed)
	read := d.submit(d.zeta, "read")
	d.attempt(read, "sendgrid", "accepted", "ended_at = began_at + interval '3 seconds', evidence = 'response', status_code = 202, provider_message_id = '<1@sendgrid>', trace_id = '4bf92f'")
	d.exec("UPDATE outbox.emails SET status = 'delivered', ended_at = now() WHERE id = $1", read)
	d.exec(`INSERT INTO outbox.events (id, email_id, type, provider, recipient, occurred_at, received_at, detail) VALUES
		(gen_random_uuid(), $1, 'delivered', 'sendgrid', 'read@example.org', now(), now() + interval '5 minutes', ''),
		(gen_random_uuid(), $1, 'clicked', 'sendgrid', 'read@example.org', now() + interval '1 minute', now() + interval '1 minute', $2)`, read, "https://shop.example.com/reset?token="+linkSecret)
	purged := d.submit(d.zeta, "purged")
	d.exec("SELECT outbox.forget_terms(ARRAY[$1::uuid])", purged)
	d.exec("DELETE FROM outbox.email_contents WHERE email_id = $1", purged)

	d.exec(`INSERT INTO outbox.providers (name, reason, detail, out_since, probe_at) VALUES
		('postmark', 'misconfigured', 'it refuses our key', now() - interval '10 minutes', now() + interval '1 minute'), ('sendgrid', NULL, NULL, NULL, NULL)`)
	for _, org := range []uuid.UUID{d.acme, d.zeta} {
		if _, err := d.client.Suppress(context.Background(), org, outbox.Suppression{
			Address: "gone@example.org", Reason: outbox.SuppressionComplaint, Detail: "it said so", EmailID: d.emails["read"],
		}); err != nil {
			d.t.Fatal(err)
		}
	}
}

// everything is all that outboxd stores.
func (d *desk) everything() string {
	d.t.Helper()
	var all strings.Builder
	for _, table := range []string{"emails", "attempts", "events", "suppressions", "providers", "orgs", "river_job", "river_queue", "idempotency_keys"} {
		var rows string
		err := d.open.QueryRow(context.Background(),
			"SELECT coalesce(string_agg(t::text, E'\n' ORDER BY t::text), '') FROM outbox."+table+" t").Scan(&rows)
		if err != nil {
			d.t.Fatal(err)
		}
		all.WriteString(rows)
	}
	return all.String()
}

// Whatever is clicked, nothing changes without a form that is posted; every page
// can be used with any browser, and none shows a body or a secret.
func TestEveryPage(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.see("/console/").says("No worker has run on this database yet", "No org and no queue is paused")
	d.see("/console/emails?since=all").says("Nothing was submitted yet")
	d.see("/console/suppressions").says("There is no org yet")
	d.see("/console/stuck").says("No email is stuck.")
	d.see("/console/workers").says("No worker has run on this database yet")
	d.furnish()
	d.worker("host/7/alive", true)
	d.exec("UPDATE outbox.emails SET created_at = now() - interval '10 minutes'")
	before := d.everything()
	queue := []string{
		"/console/", "/console/emails?q=nothing", "/console/emails?q=gone@example.org", "/console/suppressions?org=acme",
		"/console/suppressions?address=gone@example.org", "/console/stuck?reason=hold", "/console/emails?status=expired", "/console/emails?q=%3Cscript%3E",
	}
	for _, id := range d.emails {
		queue = append(queue, "/console/emails/"+id.String())
	}
	seen := map[string]bool{}
	for len(queue) > 0 {
		target := queue[0]
		if queue = queue[1:]; seen[target] {
			continue
		}
		seen[target] = true
		page := d.see(target)
		page.accessible()
		page.hides(bodySecret, linkSecret, "<script>")
		queue = append(queue, page.links()...)
	}
	if len(seen) < 25 {
		t.Errorf("only %d pages", len(seen))
	}
	if d.everything() != before {
		t.Error("looking at pages changed something")
	}
	if css := d.do(http.MethodGet, "/console/style.css", nil); css.status != http.StatusOK || !strings.HasPrefix(css.header.Get("Content-Type"), "text/css") {
		t.Errorf("stylesheet: answer %d %s", css.status, css.header)
	}
	for target, want := range map[string]int{
		"/console/nothing": 404, "/console/emails/" + uuid.NewString(): 404, "/console/emails/x": 404,
		"/console/emails?q=%00": 400, "/console/emails?status=%00": 400, "/console/suppressions?address=%ff": 400, "/console/?%": 400,
		"/console/emails?org=nobody": 404, "/console/emails/" + d.emails["read"].String() + "/explode": 404,
		"/console/suppressions/remove?org=acme&address=nobody@example.org": 409,
	} {
		page := d.do(http.MethodGet, target, nil)
		if page.status != want {
			t.Errorf("%s: answer %d, want %d", target, page.status, want)
		}
		page.accessible()
	}
}

// The overview says in words what is in the way of mail.
func TestOverview(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.furnish()
	d.exec("INSERT INTO outbox.river_queue (name, paused_at) VALUES ('emails', now())")
	d.exec("UPDATE outbox.orgs SET paused_at = now(), paused_reason = 'unpaid' WHERE name = 'zeta'")
	d.exec(`UPDATE outbox.river_job SET metadata = '{"river:rescue_count": 1}', errors = ARRAY[jsonb_build_object('at', now(), 'attempt', 1,
		'error', 'worker host/1/w is gone: its session with the database has ended', 'trace', '')] WHERE args ->> 'email_id' = ANY ($1::text[])`,
		[]string{d.emails["waiting"].String(), d.emails["doubtful"].String()})
	d.worker("host/7/gone", false)
	d.exec("UPDATE outbox.emails SET created_at = now() - interval '10 minutes' WHERE id = $1", d.emails["purged"])
	page := d.see("/console/")
	page.says(
		"Look at this", "No worker is alive", "The queue emails is paused in River UI", "The provider postmark is taken out: misconfigured",
		"1 email is in doubt", "Queued 2", "it refuses our key", "org zeta", "unpaid", "outboxctl org resume zeta",
		"2 worker host/1/w is gone", "1 email is stuck.", "None. Start a worker", "org_paused 1",
	)
	page.hides("http-equiv")
	if html := d.see("/console/?every=10").html; !strings.Contains(html, `<meta http-equiv="refresh" content="10">`) {
		t.Error("it does not load itself again when asked to")
	}
	if rows := d.see(page.link("Emails in doubt")).rows(); len(rows) != 1 || !strings.HasPrefix(rows[0], "doubtful") {
		t.Errorf("the link to the emails in doubt shows %q", rows)
	}
}

// worker records one, and holds its session if it is alive.
func (d *desk) worker(id string, alive bool) {
	d.t.Helper()
	const namespace, key = 0x6f757462, 7
	d.exec("INSERT INTO outbox.workers (id, lock_key, host, pid, version) VALUES ($1, $2, 'host', 7, 'v1')", id, key)
	if !alive {
		return
	}
	conn, err := d.open.Acquire(context.Background())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(conn.Release)
	if _, err := conn.Exec(context.Background(), "SELECT pg_advisory_lock($1, $2)", namespace, key); err != nil {
		d.t.Fatal(err)
	}
}

// What is stuck is shown with why and with what to do, in the list and on the
// email's own page; and who is alive.
func TestStuckAndWorkers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.furnish()
	d.worker("host/7/alive", true)
	d.exec("UPDATE outbox.emails SET created_at = now() - interval '10 minutes' WHERE id = $1", d.emails["waiting"])
	d.exec("DELETE FROM outbox.river_job WHERE args ->> 'email_id' = $1::text", d.emails["waiting"].String())
	overview := d.see("/console/")
	overview.says("1 email is stuck.", "job_missing 1", "Workers alive 1", "host/7/alive")
	list := d.see(overview.link("job_missing"))
	list.says("No job comes for it", "acme")
	id := d.emails["waiting"].String()
	if rows := list.rows(); len(rows) != 1 || rows[0] != id {
		t.Fatalf("stuck: %q", rows)
	}
	d.see(list.link(id)).says("stuck job_missing", "No job comes for it")
	d.see("/console/stuck?reason=hold").says("No email is stuck that fits these filters.")
	if d.see("/console/stuck?org=zeta").rows() != nil {
		t.Error("the list of another org has it")
	}
	if text := d.see(d.path("purged")).text(); strings.Contains(text, "stuck") {
		t.Error("an email that was submitted just now is called stuck")
	}

	d.exec("UPDATE outbox.emails SET created_at = now() - interval '2 hours' WHERE id = $1", d.emails["doubtful"])
	d.exec("UPDATE outbox.emails SET on_unknown = 'hold' WHERE id = $1", d.emails["doubtful"])
	d.exec("UPDATE outbox.attempts SET in_doubt_at = now() - interval '1 hour', deadline = now() - interval '1 hour' WHERE email_id = $1", d.emails["doubtful"])
	page := d.see(d.path("doubtful"))
	page.says("stuck in_doubt", d.dossier("doubtful").Attempts[0].ProviderKey.String())
	if code := page.elements(atom.Code); !strings.HasPrefix(textOf(code[0]), "outboxctl emails resolve") {
		t.Errorf("the command is %q", textOf(code[0]))
	}

	d.exec("UPDATE outbox.river_job SET state = 'running', attempted_at = now(), attempted_by = '{host/7/alive}' WHERE args ->> 'email_id' = $1::text", d.emails["purged"].String())
	d.exec("INSERT INTO outbox.workers (id, lock_key, host, pid, version, ended_at) VALUES ('host/8/ended', 8, 'host', 8, 'v0', now())")
	workers := d.see("/console/workers")
	workers.says("host/7/alive", "alive", "host/8/ended", "ended")
	if rows := workers.rows(); len(rows) != 2 || rows[0] != "host/7/alive" {
		t.Errorf("workers %q", rows)
	}
	if rows := d.see("/console/").rows(); slices.Contains(rows, "host/8/ended") {
		t.Error("the overview lists one that has ended")
	}
}

// Lists narrow down, go on, and say what to do when they are empty.
func TestFilters(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.furnish()
	rows := func(query string, want ...string) {
		t.Helper()
		var got []string
		for _, row := range d.see("/console/emails?" + query).rows() {
			got = append(got, strings.Fields(row)[0])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	rows("", "(content", "read", "failed", "doubtful", "waiting")
	rows("org=acme", "doubtful", "waiting")
	rows("status=failed", "failed")
	rows("provider=sendgrid&org=zeta", "read", "failed")
	rows("status=failed&org=acme")
	rows("since=1h&status=unknown", "doubtful")

	// An email is as old as its id says.
	old := uuid.UUID{0x01, 0x90}
	d.exec("UPDATE outbox.emails SET id = $2 WHERE id = $1", d.emails["purged"], old)
	rows("", "read", "failed", "doubtful", "waiting")
	empty := d.see("/console/emails?status=queued&org=zeta")
	empty.says("No email of the last 24 hours fits these filters.")
	everything := d.see(empty.link("Look in all that is stored"))
	if got := everything.rows(); len(got) != 1 || !strings.Contains(got[0], old.String()) {
		t.Errorf("without a bound in time: %q", got)
	}

	for i := range 52 {
		d.submit(d.acme, fmt.Sprint("more", i))
	}
	first := d.see("/console/emails?org=acme&since=1h")
	second := d.see(first.link("Older"))
	if n := len(first.rows()); n != 50 {
		t.Errorf("the first page has %d emails", n)
	}
	if n := len(second.rows()); n != 4 || second.rows()[3] != "waiting to waiting@example.org" {
		t.Errorf("the second page has %q", second.rows())
	}
	second.says("There are no older ones.")
	if again := d.see(second.link("Newest")); again.rows()[0] != first.rows()[0] {
		t.Error("the link to the newest leads elsewhere")
	}
}

// One box finds an email by whatever somebody has in hand.
func TestSearch(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.furnish()
	for text, subject := range map[string]string{
		d.emails["failed"].String():     "failed",
		"  waiting@example.org ":        "waiting",
		"Waiting <WAITING@example.org>": "waiting",
		"order doubtful":                "doubtful",
		"order purged":                  "purged",
		"<1@sendgrid>":                  "read",
	} {
		s := d.do(http.MethodGet, "/console/emails?q="+url.QueryEscape(text), nil)
		if want := "/console/emails/" + d.emails[subject].String(); s.status != http.StatusSeeOther || s.header.Get("Location") != want {
			t.Errorf("%q: answer %d to %s, want %s", text, s.status, s.header.Get("Location"), want)
		}
	}
	d.submit(d.zeta, "waiting")
	several := d.see("/console/emails?q=waiting@example.org")
	several.says("2 emails have", "address")
	if n := len(several.rows()); n != 2 {
		t.Errorf("%d emails, want 2", n)
	}
	d.see("/console/emails?q=purged@example.org").says("No email was found by purged@example.org", "as long as the email's content is kept")
}
