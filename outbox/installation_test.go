package outbox_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// original is a database that workers of an installation have run on.
type original struct {
	*delivering
	url string
}

func newOriginal(t *testing.T, installation string) *original {
	t.Helper()
	o := &original{url: testdb.URL(t)}
	o.delivering = &delivering{t: t, org: uuid.New(), provider: providertest.NewHTTP(t, providertest.SendGrid)}
	o.open(o.url)
	o.deliverer = o.newDeliverer(newSendGrid(t, o.provider.URL()))
	stop := o.work(installation)
	stop()
	return o
}

func (d *delivering) open(url string) {
	d.t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(pool.Close)
	d.pool, d.client = pool, newClient(d.t, pool)
}

// work runs a worker until it is stopped.
func (d *delivering) work(installation string) (stop func()) {
	d.t.Helper()
	stop, err := d.tryWork(installation)
	if err != nil {
		d.t.Fatal(err)
	}
	return stop
}

func (d *delivering) tryWork(installation string) (stop func(), err error) {
	d.t.Helper()
	worker, err := outbox.NewWorker(d.pool, outbox.WorkerConfig{
		Providers: []providers.Provider{newSendGrid(d.t, d.provider.URL())}, Installation: installation,
		AllowPrivateWebhooks: true,
	})
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- worker.Run(ctx, func() { close(started) }) }()
	select {
	case <-started:
	case err := <-ended:
		cancel()
		return nil, err
	}
	return func() {
		d.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			d.t.Error(err)
		}
	}, nil
}

// copied returns what a copy of the database would be to its workers, who have the
// same provider. Nobody may be connected to the original.
func (o *original) copied() *delivering {
	o.t.Helper()
	if o.kill != nil {
		o.kill()
	}
	o.pool.Close()
	target := testdb.URL(o.t)
	conn, err := pgx.Connect(context.Background(), o.url)
	if err != nil {
		o.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	u, err := url.Parse(target)
	if err != nil {
		o.t.Fatal(err)
	}
	name := pgx.Identifier{strings.TrimPrefix(u.Path, "/")}.Sanitize()
	for _, sql := range []string{
		"DROP DATABASE " + name,
		"CREATE DATABASE " + name + " TEMPLATE " + pgx.Identifier{conn.Config().Database}.Sanitize(),
	} {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			o.t.Fatal(err)
		}
	}
	d := &delivering{t: o.t, org: o.org, provider: o.provider}
	d.open(target)
	return d
}

func (d *delivering) installation(name string) *outbox.Installation {
	d.t.Helper()
	in, err := outbox.ReadInstallation(context.Background(), d.pool, name)
	if err != nil {
		d.t.Fatal(err)
	}
	return in
}

func (d *delivering) release(scope outbox.HeldScope) int {
	d.t.Helper()
	n, err := d.client.Release(context.Background(), scope, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

func (d *delivering) endHold(name string) bool {
	d.t.Helper()
	ended, err := d.client.EndHold(context.Background(), name)
	if err != nil {
		d.t.Fatal(err)
	}
	return ended
}

const awaitAllHeld = `SELECT count(*) = 0 FROM outbox.emails WHERE ended_at IS NULL AND reason IS DISTINCT FROM 'restored'
	AND coalesce(released_at, created_at) < (SELECT held_before FROM outbox.installation)`

// F18: a snapshot that was restored elsewhere sent everything again. In a copy of
// a database nothing is sent that came with it, until a person releases it; a
// release sends exactly that, also while workers are looking at it. What is
// submitted in the copy is sent.
func TestF18CopiedDatabaseSendsNothingByItself(t *testing.T) {
	t.Parallel()
	const old, young = 60, 40
	o := newOriginal(t, "")
	doubt := o.enqueue()
	o.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reset() })
	o.deliver(doubt)
	for range old {
		o.enqueue()
	}
	o.exec("UPDATE outbox.emails SET created_at = created_at - interval '2 hours'")
	for range young {
		o.enqueue()
	}
	o.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Accept() })
	before := o.provider.Requests()

	d := o.copied()
	if in := d.installation(""); !strings.Contains(in.Differs, "copy") || !in.HeldBefore.IsZero() {
		t.Errorf("before a worker runs: %+v", in)
	}
	defer d.work("")()
	fresh := d.enqueue()
	if n := d.release(outbox.HeldScope{YoungerThan: time.Hour}); n != young {
		t.Errorf("released %d, want %d", n, young)
	}
	d.await("SELECT count(*) = 41 FROM outbox.emails WHERE status = 'sent'")
	d.await(awaitAllHeld)
	if n := d.provider.Requests() - before; n != young+1 {
		t.Errorf("the provider got %d requests, want %d", n, young+1)
	}
	if e := d.get(fresh); e.Status != outbox.StatusSent {
		t.Errorf("submitted in the copy: %s", e.Status)
	}
	if e := d.get(doubt); e.Status != outbox.StatusUnknown || e.Reason != "restored" {
		t.Errorf("in doubt: %s (%s)", e.Status, e.Reason)
	}
	held, err := outbox.ListHeld(t.Context(), d.pool)
	if err != nil || len(held) != 1 || held[0].Emails != old+1 {
		t.Errorf("held: %+v, %v", held, err)
	}
	if d.endHold("") {
		t.Error("the hold ended while emails are held")
	}
	if n := d.release(outbox.HeldScope{}); n != old+1 {
		t.Errorf("released %d, want %d", n, old+1)
	}
	d.await("SELECT count(*) = 101 FROM outbox.emails WHERE status = 'sent'")
	if e := d.get(doubt); e.Status != outbox.StatusUnknown || e.Reason != "in_doubt" {
		t.Errorf("in doubt, after the release: %s (%s)", e.Status, e.Reason)
	}
	if n := d.provider.Requests() - before; n != 101 {
		t.Errorf("the provider got %d requests, want 101", n)
	}
	if !d.endHold("") {
		t.Error("the hold goes on")
	}
	if in := d.installation(""); in.Differs != "" || !in.HeldBefore.IsZero() {
		t.Errorf("afterwards: %+v", in)
	}
}

// F18: a disk snapshot keeps all that Postgres tells databases by; the name of the
// installation tells it. What is canceled is told to nobody.
func TestF18AnotherInstallationsDatabase(t *testing.T) {
	t.Parallel()
	d := newOriginal(t, "production")
	endpoint := newReceiver(t, status(http.StatusOK))
	client, err := outbox.NewClient(d.pool, outbox.Config{AllowPrivateWebhooks: true})
	if err != nil {
		t.Fatal(err)
	}
	d.client = client
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES ($1, 'acme')", d.org)
	telling{d.delivering}.webhook(endpoint.server.URL, outbox.WebhookFailed, outbox.WebhookUnknown)
	doubt, waiting := d.enqueue(), d.enqueue()
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reset() })
	d.deliver(doubt)
	before := d.provider.Requests()
	d.kill()

	stop := d.work("staging")
	d.await(awaitAllHeld)
	d.await("SELECT count(*) = 0 FROM outbox.river_job WHERE kind = 'deliver_webhook' AND state IN ('available', 'running')")
	if n := d.provider.Requests() - before; n != 0 {
		t.Errorf("the provider got %d requests", n)
	}
	if in := d.installation("staging"); !strings.Contains(in.HeldBecause, `"production"`) || !strings.Contains(in.Differs, `"staging"`) {
		t.Errorf("installation: %+v", in)
	}
	n, err := d.client.CancelHeld(t.Context(), outbox.HeldScope{}, "a person", nil)
	if err != nil || n != 2 || !d.endHold("staging") {
		t.Errorf("canceled %d, %v", n, err)
	}
	stop()
	if e := d.get(waiting); e.Status != outbox.StatusCanceled || e.Reason != "restored" {
		t.Errorf("waiting: %s (%s)", e.Status, e.Reason)
	}
	if e := d.get(doubt); e.Status != outbox.StatusFailed || e.Reason != "outcome_unknown" || e.Attempts[0].Stage != outbox.StageUnknown {
		t.Errorf("in doubt: %s (%s)", e.Status, e.Reason)
	}
	if told := endpoint.ids(); len(told) != 0 {
		t.Errorf("the endpoint was told %v", told)
	}
	if open := count(t, d.pool, "SELECT count(*) FROM outbox.webhook_messages WHERE failed_at IS NULL"); open != 0 {
		t.Errorf("%d webhook messages are open", open)
	}
}

// A process of another name beside workers at work is wrong itself: it does not
// start, and holds up nobody.
func TestForeignWorkerBesideOthersRefuses(t *testing.T) {
	t.Parallel()
	d := newOriginal(t, "production")
	d.kill()
	defer d.work("production")()
	if stop, err := d.tryWork("staging"); err == nil || !strings.Contains(err.Error(), "OUTBOXD_INSTALLATION") {
		if err == nil {
			stop()
		}
		t.Errorf("error %v", err)
	}
	if in := d.installation("production"); !in.HeldBefore.IsZero() {
		t.Errorf("installation: %+v", in)
	}
}

// F18: the same database holds nothing, however often workers start, when it was
// renamed in its place, and when a name or the right to read the cluster's
// identifier comes later.
func TestF18SameDatabaseHoldsNothing(t *testing.T) {
	t.Parallel()
	d := newOriginal(t, "")
	d.exec("UPDATE outbox.installation SET database_name = 'before', system_identifier = system_identifier")
	id := d.enqueue()
	d.kill()
	for _, name := range []string{"", "production", "production"} {
		d.work(name)()
		if in := d.installation(name); in.Differs != "" || !in.HeldBefore.IsZero() || in.Name != name {
			t.Errorf("installation %q: %+v", name, in)
		}
	}
	defer d.work("production")()
	d.await("SELECT status = 'sent' FROM outbox.emails")
	if e := d.get(id); e.Reason != "" {
		t.Errorf("reason %q", e.Reason)
	}
}

// F18: where the cluster's identifier is known, another one is another database;
// where it is not, the database's name and number decide.
func TestF18Identity(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change string
		want   string
	}{
		"another cluster":    {"system_identifier = 1", "another database cluster"},
		"not known, renamed": {"system_identifier = NULL, database_name = 'before'", "copy"},
		"not known":          {"system_identifier = NULL", ""},
		"another number":     {"database_oid = 1", "copy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newOriginal(t, "")
			d.exec("UPDATE outbox.installation SET " + test.change)
			got := d.installation("").Differs
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("differs: %q, want %q", got, test.want)
			}
		})
	}
}

// A person who asks for one email vouches for it, held or not.
func TestRetryReleases(t *testing.T) {
	t.Parallel()
	d := newOriginal(t, "")
	id := d.enqueue()
	d.exec("UPDATE outbox.emails SET status = 'failed', ended_at = now()")
	d.exec("UPDATE outbox.installation SET held_before = now() + interval '1 minute', held_because = 'a test'")
	if err := d.client.Retry(t.Context(), d.org, id, "a person"); err != nil {
		t.Fatal(err)
	}
	if d.deliver(id); d.get(id).Status != outbox.StatusSent {
		t.Errorf("status %s (%s)", d.get(id).Status, d.get(id).Reason)
	}
}

// A release and a worker that has just found the email held compete for its row. The
// release wins: the email is not put off again, and its job looks at once.
func TestReleaseWinsAgainstHold(t *testing.T) {
	t.Parallel()
	for name, inDoubt := range map[string]bool{"waiting": false, "in doubt": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newOriginal(t, "")
			id := d.enqueue()
			if inDoubt {
				d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reset() })
				d.deliver(id)
			}
			d.exec("UPDATE outbox.installation SET held_before = now() + interval '1 minute', held_because = 'a test'")
			tx, err := d.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
			if _, err := tx.Exec(t.Context(), "UPDATE outbox.emails SET released_at = now() + interval '1 hour' WHERE id = $1", id); err != nil {
				t.Fatal(err)
			}
			looked := make(chan time.Duration)
			go func() {
				wait, err := d.deliverer.Deliver(context.Background(), id)
				if err != nil {
					t.Error(err)
				}
				looked <- wait
			}()
			d.await(`SELECT count(*) = 1 FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%held_before%'`)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if wait := <-looked; wait != time.Second {
				t.Errorf("the next look is in %v", wait)
			}
			if e := d.get(id); e.Reason == "restored" || !e.NextAttemptAt.IsZero() {
				t.Errorf("%s (%s), next attempt at %v", e.Status, e.Reason, e.NextAttemptAt)
			}
		})
	}
}
