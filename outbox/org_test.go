package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers/providertest"
)

// newAcme is a bench whose org has a row, and the name acme.
func newAcme(t *testing.T) *delivering {
	t.Helper()
	d := newDelivering(t)
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES ($1, 'acme')", d.org)
	return d
}

func (d *delivering) pause() {
	d.t.Helper()
	must(d.t, outbox.PauseOrg(context.Background(), d.pool, "acme", "wrong prices"))
}

func (d *delivering) resume(want int) {
	d.t.Helper()
	n, err := d.client.ResumeOrg(context.Background(), "acme", nil)
	must(d.t, err)
	if n != want {
		d.t.Errorf("%d emails go on, want %d", n, want)
	}
}

func (d *delivering) count(sql string, args ...any) (n int) {
	d.t.Helper()
	must(d.t, d.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

const liveJobsSQL = `SELECT count(*) FROM outbox.river_job
	WHERE args ->> 'email_id' = $1::text AND state = 'available' AND kind = 'deliver_email'`

// The emails of a paused org wait without an attempt and keep their jobs; another
// org's leave. Once it is resumed they leave at once, however long that took.
func TestPausedOrgSendsNothing(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	id := d.enqueue()
	d.pause()
	d.waits(id, time.Hour, "org_paused")
	d.exec("DELETE FROM outbox.river_job WHERE args ->> 'email_id' = $1::text", id)
	d.exec(`INSERT INTO outbox.river_job (args, kind, max_attempts, queue, scheduled_at, state)
		SELECT jsonb_build_object('email_id', id), 'deliver_email', 3, 'emails', next_attempt_at, 'scheduled' FROM outbox.emails`)
	d.exec("UPDATE outbox.emails SET created_at = now() - interval '2 days'")
	d.sweep(d.sweeper())
	if n := d.count(liveJobsSQL, id); n != 0 {
		t.Errorf("the sweep takes a held email for forgotten: %d jobs", n)
	}
	other := *d
	other.org = uuid.New()
	other.deliver(other.enqueue())
	if n := d.provider.Requests(); n != 1 {
		t.Errorf("%d requests, want the other org's", n)
	}

	d.resume(1)
	if n := d.count(liveJobsSQL, id); n != 1 {
		t.Errorf("%d jobs come for the email, want 1", n)
	}
	d.provider.Respond(always(providertest.Reply(429, "")))
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusQueued || len(email.Attempts) != 1 {
		t.Errorf("status %s (%s) after a temporary failure: the pause counted against giving up", email.Status, email.Reason)
	}
}

// A submission is refused, a replay is answered: by the library, over SQL alike.
func TestPausedOrgTakesNothingNew(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	before, err := d.client.Enqueue(context.Background(), submission(d.org, "before"))
	must(t, err)
	d.pause()
	d.client = newClient(t, d.pool) // one that knows nothing of the org yet

	if _, err := d.client.Enqueue(context.Background(), submission(d.org, "new")); !errors.Is(err, outbox.ErrOrgPaused) {
		t.Errorf("library: %v, want ErrOrgPaused", err)
	}
	if _, err := enqueueSQL(t, d.pool, submission(d.org, "new")); nameOf(err) != "org_paused" {
		t.Errorf("SQL: %v, want org_paused", err)
	}
	again, err := d.client.Enqueue(context.Background(), submission(d.org, "before"))
	if err != nil || !again.Replayed || again.IDs[0] != before.IDs[0] {
		t.Errorf("library: replay %+v, %v", again, err)
	}
	if id, err := enqueueSQL(t, d.pool, submission(d.org, "before")); err != nil || id != before.IDs[0] {
		t.Errorf("SQL: replay %s, %v", id, err)
	}
	if n := d.count("SELECT count(*) FROM outbox.idempotency_keys"); n != 1 {
		t.Errorf("%d keys are taken, want 1", n)
	}
	d.resume(0)
	if _, err := enqueueSQL(t, d.pool, submission(d.org, "new")); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

// An email in doubt is not sent again during a pause. Evidence ends the doubt all
// the same; without, it goes on as it was.
func TestPausedOrgInDoubt(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	doubt := d.inDoubtAt(providertest.NewHTTP(t, providertest.Resend))
	d.pause()
	d.deliverer.LookAgain()
	if wait := d.deliver(doubt.id); wait < time.Hour || doubt.provider.Requests() != 1 {
		t.Errorf("wait %v, %d requests", wait, doubt.provider.Requests())
	}
	if email := d.get(doubt.id); email.Status != outbox.StatusUnknown || email.Reason != "org_paused" {
		t.Errorf("status %s (%s)", email.Status, email.Reason)
	}
	d.resume(1)
	doubt.provider.Respond(nil)
	d.deliver(doubt.id)
	if email := d.get(doubt.id); email.Status != outbox.StatusSent || len(email.Attempts) != 1 {
		t.Errorf("status %s, %d attempts; want sent by a replay", email.Status, len(email.Attempts))
	}
}

type doubtful struct {
	id       uuid.UUID
	provider *providertest.HTTP
}

func (d *delivering) inDoubtAt(p *providertest.HTTP) doubtful {
	d.t.Helper()
	d.deliverer = d.newDeliverer(newResend(d.t, p.URL()))
	p.Respond(always(providertest.Accept().Then(providertest.Reset())))
	id := d.enqueue()
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusUnknown {
		d.t.Fatalf("status %s, want unknown", email.Status)
	}
	return doubtful{id, p}
}

// A login code is worthless an hour late, pause or not.
func TestPausedOrgLetsEmailsExpire(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	id := d.enqueue(func(m *outbox.Message) { m.ExpiresAt = time.Now().Add(time.Minute) })
	d.pause()
	if wait := d.deliver(id); wait > time.Minute {
		t.Errorf("wait %v, longer than the email lives", wait)
	}
	d.exec("UPDATE outbox.emails SET expires_at = now(), next_attempt_at = now()")
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusExpired {
		t.Errorf("status %s, want expired", email.Status)
	}
	d.resume(0)
}

// A pause that commits while a worker decides to hold an email is resumed with it:
// none is left behind.
func TestResumeWinsAgainstHold(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	ids := []uuid.UUID{d.enqueue(), d.enqueue(), d.enqueue()}
	for range 20 {
		d.pause()
		done := make(chan error, len(ids))
		for _, id := range ids {
			go func() { _, err := d.deliverer.Deliver(context.Background(), id); done <- err }()
		}
		_, err := d.client.ResumeOrg(context.Background(), "acme", nil)
		must(t, err)
		for range ids {
			must(t, <-done)
		}
		if n := d.count("SELECT count(*) FROM outbox.emails WHERE reason = 'org_paused'"); n != 0 {
			t.Fatalf("%d emails are held in an org that is not paused", n)
		}
	}
}

// Pausing twice keeps the first time; what is not there is said to be.
func TestPauseAgain(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	d.pause()
	d.exec("UPDATE outbox.orgs SET paused_at = now() - interval '1 day'")
	must(t, outbox.PauseOrg(context.Background(), d.pool, "acme", ""))
	orgs, err := outbox.ListOrgs(context.Background(), d.pool)
	must(t, err)
	if len(orgs) != 1 || orgs[0].State != outbox.OrgPaused || orgs[0].PausedReason != "wrong prices" ||
		d.count("SELECT count(*) FROM outbox.orgs WHERE paused_at < now() - interval '23 hours'") != 1 {
		t.Errorf("orgs %+v", orgs)
	}
	if err := outbox.PauseOrg(context.Background(), d.pool, "acne", ""); !errors.Is(err, outbox.ErrNoOrg) {
		t.Errorf("pause: %v", err)
	}
	if _, err := d.client.ResumeOrg(context.Background(), "acne", nil); !errors.Is(err, outbox.ErrNoOrg) {
		t.Errorf("resume: %v", err)
	}
}
