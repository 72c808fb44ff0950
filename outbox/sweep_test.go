package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// running makes the email's job look as if that worker had fetched it.
func (d *delivering) running(id uuid.UUID, worker string) {
	d.t.Helper()
	d.exec(`UPDATE outbox.river_job SET state = 'running', attempt = 1, attempted_at = now(), attempted_by = ARRAY[$2]
		WHERE args @> jsonb_build_object('email_id', $1::uuid)`, id, worker)
}

type jobState struct {
	state  string
	errors int
	last   string
}

func (d *delivering) job(id uuid.UUID) (j jobState) {
	d.t.Helper()
	err := d.pool.QueryRow(context.Background(), `
		SELECT state::text, coalesce(array_length(errors, 1), 0), coalesce(errors[array_upper(errors, 1)] ->> 'error', '')
		FROM outbox.river_job WHERE args @> jsonb_build_object('email_id', $1::uuid) ORDER BY id DESC LIMIT 1`, id).
		Scan(&j.state, &j.errors, &j.last)
	if err != nil {
		d.t.Fatal(err)
	}
	return j
}

func (d *delivering) sweeper() *outbox.Sweeper {
	d.t.Helper()
	s, err := outbox.NewSweeper(d.deliverer)
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

func (d *delivering) sweep(s *outbox.Sweeper) {
	d.t.Helper()
	if err := s.Sweep(context.Background()); err != nil {
		d.t.Fatal(err)
	}
}

// I10, F10: a dead worker's job is available after two passes, and says why.
func TestSweepRecoversJobsOfTheDead(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	dead, kill := d.worker, d.kill
	id := d.enqueue()
	d.running(id, dead)
	d.exec(`INSERT INTO outbox.river_leader (leader_id, elected_at, expires_at) VALUES ($1, now(), now() + interval '15 seconds')`, dead)
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
	s := d.sweeper()

	d.sweep(s)
	d.sweep(s)
	if j := d.job(id); j.state != "running" {
		t.Fatalf("the job of a live worker became %s", j.state)
	}
	kill()
	d.awaitLocks(1)
	d.sweep(s)
	if j := d.job(id); j.state != "running" {
		t.Errorf("after one pass the job is %s: a restart of Postgres would make all look dead", j.state)
	}
	d.sweep(s)
	j := d.job(id)
	if j.state != "available" || j.errors != 1 || !strings.Contains(j.last, dead) {
		t.Errorf("job = %+v, want available, with the reason", j)
	}
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.river_leader"); n != 0 {
		t.Error("the dead worker still leads River")
	}
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.workers WHERE id = $1 AND ended_at IS NOT NULL", dead); n != 1 {
		t.Error("the dead worker is not marked as ended")
	}
	recoveries, err := outbox.ListRecoveries(context.Background(), d.pool, 9)
	if err != nil || len(recoveries) != 1 || recoveries[0].Jobs != 1 || recoveries[0].Reason != j.last || recoveries[0].At.IsZero() {
		t.Errorf("recoveries %+v, error %v", recoveries, err)
	}
	d.awaitLocks(1) // I11: none is held by the dead
}

// awaitLocks waits until that many advisory locks are held: Postgres releases
// those of a closed connection a moment later.
func (d *delivering) awaitLocks(n int) {
	d.t.Helper()
	const held = `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(30 * time.Second); count(d.t, d.pool, held) != n; {
		select {
		case <-tick.C:
		case <-timeout:
			d.t.Fatalf("%d advisory locks are held, want %d", count(d.t, d.pool, held), n)
		}
	}
}

// A job that an operator wanted cancelled is cancelled, not run again.
func TestSweepHonoursCancel(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.running(id, d.worker)
	d.exec(`UPDATE outbox.river_job SET metadata = '{"cancel_attempted_at": "2026-01-01T00:00:00Z"}'`)
	d.kill()
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
	d.awaitLocks(1)
	s := d.sweeper()
	d.sweep(s)
	d.sweep(s)
	if j := d.job(id); j.state != "cancelled" {
		t.Errorf("the job is %s", j.state)
	}
}

// Clients of River that hold no session are none of our business.
func TestSweepLeavesStrangersAlone(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.running(id, "some other program")
	s := d.sweeper()
	for range 3 {
		d.sweep(s)
	}
	if j := d.job(id); j.state != "running" {
		t.Errorf("the job became %s", j.state)
	}
}

// A worker that is paused for good keeps its lock; its attempt's time ends all
// the same.
func TestSweepFreesOverdueJobs(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"attempt past its deadline": `INSERT INTO outbox.attempts (email_id, number, provider, provider_key, worker, began_at, deadline, payload_sha256)
			SELECT id, 1, 'sendgrid', gen_random_uuid(), $1, now(), now() - interval '11 seconds', '' FROM outbox.emails`,
		"cut off after a doubt was recorded": `WITH run AS (UPDATE outbox.river_job SET attempted_at = now() - interval '16 seconds')
			INSERT INTO outbox.attempts
			(email_id, number, provider, provider_key, worker, began_at, deadline, in_doubt_at, payload_sha256)
			SELECT id, 1, 'sendgrid', gen_random_uuid(), $1, now() - interval '15 seconds', now(), now() - interval '11 seconds', '' FROM outbox.emails`,
		"paused before it began": `UPDATE outbox.river_job SET attempted_at = now() - interval '1 hour' WHERE attempted_by = ARRAY[$1]`,
	} {
		d := newDelivering(t)
		id := d.enqueue()
		d.running(id, d.worker)
		s := d.sweeper()
		d.sweep(s)
		if j := d.job(id); j.state != "running" {
			t.Fatalf("%s: the job became %s too early", name, j.state)
		}
		d.exec(sql, d.worker)
		d.sweep(s)
		if j := d.job(id); j.state != "available" || j.errors != 1 {
			t.Errorf("%s: job = %+v", name, j)
		}
	}
}

// F11, F27, F38: whatever was clicked in River UI, an email that is not over
// has a live job.
func TestOrphansGetAJob(t *testing.T) {
	t.Parallel()
	live := `SELECT count(*) FROM outbox.river_job WHERE state IN ('available', 'scheduled') AND kind = 'deliver_email'
		AND scheduled_at < now() + interval '1 minute'`
	for name, sql := range map[string]string{
		"deleted":   "DELETE FROM outbox.river_job",
		"discarded": "UPDATE outbox.river_job SET state = 'discarded', finalized_at = now()",
		"cancelled": "UPDATE outbox.river_job SET state = 'cancelled', finalized_at = now()",
		"completed": "UPDATE outbox.river_job SET state = 'completed', finalized_at = now()",
		// Left by a doubt that a paused worker has settled since.
		"far away": "UPDATE outbox.river_job SET state = 'scheduled', scheduled_at = now() + interval '15 minutes'",
	} {
		d := newDelivering(t)
		d.enqueue()
		ended := d.enqueue()
		d.exec("UPDATE outbox.emails SET created_at = now() - interval '1 minute'")
		d.exec("UPDATE outbox.emails SET status = 'canceled', ended_at = now() WHERE id = $1", ended)
		d.exec(sql)
		s := d.sweeper()
		for range 3 {
			d.sweep(s)
		}
		if n := count(t, d.pool, live); n != 1 {
			t.Errorf("%s: %d live jobs, want 1 for the email that is not over", name, n)
		}
	}
}
