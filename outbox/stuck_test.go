package outbox_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers/providertest"
)

// late makes an email, its attempts and its job older.
func (d *delivering) late(id uuid.UUID, by time.Duration) uuid.UUID {
	d.t.Helper()
	d.exec(`UPDATE outbox.emails SET created_at = created_at - $2::interval, scheduled_at = scheduled_at - $2::interval,
		next_attempt_at = next_attempt_at - $2::interval WHERE id = $1`, id, by)
	d.exec(`UPDATE outbox.attempts SET began_at = began_at - $2::interval, deadline = deadline - $2::interval,
		in_doubt_at = in_doubt_at - $2::interval, ended_at = ended_at - $2::interval WHERE email_id = $1`, id, by)
	d.exec(`UPDATE outbox.river_job SET scheduled_at = scheduled_at - $2::interval, attempted_at = attempted_at - $2::interval
		WHERE args ->> 'email_id' = $1::uuid::text`, id, by)
	return id
}

// setJob changes the email's job.
func (d *delivering) setJob(id uuid.UUID, set string) {
	d.t.Helper()
	d.exec("UPDATE outbox.river_job SET "+set+" WHERE args ->> 'email_id' = $1::uuid::text", id)
}

func (d *delivering) setEmail(id uuid.UUID, set string) {
	d.t.Helper()
	d.exec("UPDATE outbox.emails SET "+set+" WHERE id = $1", id)
}

// inOrg makes an org and enqueues an email of it.
func (d *delivering) inOrg(name string) (id uuid.UUID) {
	d.t.Helper()
	own := d.org
	defer func() { d.org = own }()
	d.org = uuid.New()
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES ($1, $2)", d.org, name)
	return d.enqueue()
}

func (d *delivering) respond(r providertest.Reaction) {
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return r })
}

// doubted is an email in doubt, as its worker has reported it, at a provider of its
// own.
func (d *delivering) doubted(p outbox.Policy) uuid.UUID {
	d.t.Helper()
	d.respond(providertest.Accept())
	d.deliver(d.enqueue()) // so that the provider does not count as down
	d.respond(providertest.Reset())
	id := d.enqueue(func(m *outbox.Message) { m.OnUnknown = p })
	d.deliver(id)
	d.exec("UPDATE outbox.attempts SET provider = 'other' WHERE email_id = $1", id)
	return id
}

// sealed is an email that the deliverer has no key for.
func (d *delivering) sealed() uuid.UUID {
	d.t.Helper()
	own := d.client
	defer func() { d.client = own }()
	var err error
	d.client, err = outbox.NewClient(d.pool, outbox.Config{Keys: ring(d.t, "k1")})
	must(d.t, err)
	return d.enqueue()
}

// stuckState is how an email comes to be stuck.
type stuckState struct {
	name   string
	reason outbox.StuckReason
	// advice is in what is said to do.
	advice string
	enter  func(*delivering) uuid.UUID
}

// stuckStates have one email each, which is stuck for that reason alone.
var stuckStates = []stuckState{
	{"restored", outbox.StuckHold, "outboxctl restored", func(d *delivering) uuid.UUID {
		d.exec(`INSERT INTO outbox.installation (database_oid, database_name, held_before, held_because)
			VALUES (1, 'before', now() - interval '1 day', 'it is a copy')`)
		id := d.late(d.enqueue(), 25*time.Hour)
		d.deliver(id)
		return id
	}},
	{"paused org", outbox.StuckOrgPaused, "paused (wrong prices). `outboxctl org resume paused`", func(d *delivering) uuid.UUID {
		id := d.inOrg("paused")
		must(d.t, outbox.PauseOrg(context.Background(), d.pool, "paused", "wrong prices"))
		d.deliver(id)
		return id
	}},
	{"in doubt, for a person", outbox.StuckInDoubt, "other may have accepted it", func(d *delivering) uuid.UUID {
		return d.late(d.doubted(outbox.PolicyHold), 2*time.Hour)
	}},
	{"in doubt, long after its policy", outbox.StuckInDoubt, "outboxctl emails resolve", func(d *delivering) uuid.UUID {
		return d.late(d.doubted(outbox.PolicyRetry), 3*time.Hour)
	}},
	{"key that the worker lacks", outbox.StuckKeyMissing, "sealed under the key k1, which is missing", func(d *delivering) uuid.UUID {
		id := d.sealed()
		d.deliver(id)
		return d.late(id, 2*time.Minute)
	}},
	{"key that is not at hand", outbox.StuckKeyMissing, "sealed under the key k1, which is missing", func(d *delivering) uuid.UUID {
		return d.late(d.sealed(), 2*time.Minute)
	}},
	{"key of the same name", outbox.StuckKeyMissing, "does not open under the key k1", func(d *delivering) uuid.UUID {
		id := d.late(d.sealed(), 2*time.Minute)
		d.setEmail(id, "reason = 'content_unreadable'")
		return id
	}},
	{"job of another kind", outbox.StuckWrongKind, "of the kind send_email", func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 2*time.Minute)
		d.setJob(id, "kind = 'send_email'")
		return id
	}},
	{"job cancelled", outbox.StuckJobEnded, " was cancelled: ", func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 2*time.Minute)
		_, err := d.client.Jobs().JobCancel(context.Background(), d.jobID(id))
		must(d.t, err)
		return id
	}},
	{"job discarded", outbox.StuckJobEnded, " was discarded: ", func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 2*time.Minute)
		d.setJob(id, "state = 'discarded', finalized_at = now()")
		return id
	}},
	{"job deleted", outbox.StuckJobMissing, "No job comes for it", func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 2*time.Minute)
		_, err := d.client.Jobs().JobDelete(context.Background(), d.jobID(id))
		must(d.t, err)
		return id
	}},
	{"job completed", outbox.StuckJobMissing, "No job comes for it", func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 2*time.Minute)
		d.setJob(id, "state = 'completed', finalized_at = now()")
		return id
	}},
	{"job that comes too late", outbox.StuckJobMissing, "No job comes for it", func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 2*time.Minute)
		d.setJob(id, "state = 'scheduled', scheduled_at = now() + interval '15 minutes'")
		return id
	}},
	{"worker gone with the job", outbox.StuckOwnerDead, "Worker gone/1/ABCDEFGH", func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 2*time.Minute)
		d.running(id, "gone/1/ABCDEFGH")
		return id
	}},
	{"worker gone with the attempt", outbox.StuckOwnerDead, "Worker gone/2/ABCDEFGH", func(d *delivering) uuid.UUID {
		id := d.late(d.doubted(outbox.PolicyRetry), 2*time.Minute)
		d.exec("UPDATE outbox.attempts SET in_doubt_at = NULL, worker = 'gone/2/ABCDEFGH' WHERE email_id = $1", id)
		d.setEmail(id, "status = 'sending', reason = NULL")
		return id
	}},
	{"queue that nobody works on", outbox.StuckWrongQueue, "in the queue mails, ", func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 2*time.Minute)
		d.setJob(id, "queue = 'mails'")
		return id
	}},
	{"in doubt, provider out", outbox.StuckProviderUnavailable, "down is out (no route)", func(d *delivering) uuid.UUID {
		id := d.late(d.doubted(outbox.PolicyRetry), 3*time.Hour)
		d.exec("UPDATE outbox.attempts SET provider = 'down' WHERE email_id = $1", id)
		d.exec(`INSERT INTO outbox.providers (name, reason, detail, out_since, probe_at)
			VALUES ('down', 'unavailable', 'no route', now(), now())`)
		return id
	}},
	{"provider's rate", outbox.StuckRateLimited, "OUTBOXD_<PROVIDER>_RATE", func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 6*time.Minute)
		d.setEmail(id, "reason = 'provider_rate_limited', next_attempt_at = now() + interval '1 second'")
		return id
	}},
	{"provider out", outbox.StuckProviderUnavailable, "sendgrid refuses us", func(d *delivering) uuid.UUID {
		d.respond(providertest.Reply(401, ""))
		d.deliver(d.enqueue())
		id := d.enqueue()
		d.deliver(id)
		return d.late(id, 2*time.Minute)
	}},
	{"all workers busy", outbox.StuckBacklog, "OUTBOXD_CONCURRENCY", func(d *delivering) uuid.UUID { return d.late(d.enqueue(), 6*time.Minute) }},
	{"newsletter, all workers busy", outbox.StuckBacklog, "OUTBOXD_CONCURRENCY", func(d *delivering) uuid.UUID {
		return d.late(d.enqueue(func(m *outbox.Message) { m.Priority = outbox.PriorityLow }), 2*time.Hour)
	}},
	{"job that fails", outbox.StuckOverdue, "(relation is gone)", func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 6*time.Minute)
		d.setJob(id, `state = 'retryable', errors = ARRAY['{"error": "relation is gone"}'::jsonb]`)
		return id
	}},
	{"worker that does not answer", outbox.StuckOverdue, "outboxctl emails show", func(d *delivering) uuid.UUID {
		id := d.enqueue()
		d.running(id, d.worker)
		return d.late(id, 10*time.Minute)
	}},
}

// wellStates are emails that are not over and not stuck either.
var wellStates = map[string]func(*delivering) uuid.UUID{
	"new": func(d *delivering) uuid.UUID { return d.enqueue() },
	"scheduled": func(d *delivering) uuid.UUID {
		return d.enqueue(func(m *outbox.Message) { m.ScheduledAt = time.Now().Add(time.Hour) })
	},
	"in a short queue": func(d *delivering) uuid.UUID { return d.late(d.enqueue(), time.Minute) },
	"newsletter in a queue": func(d *delivering) uuid.UUID {
		return d.late(d.enqueue(func(m *outbox.Message) { m.Priority = outbox.PriorityLow }), 10*time.Minute)
	},
	"deferred": func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), time.Hour)
		d.setEmail(id, "next_attempt_at = now() + interval '1 day', attempts = 3")
		return id
	},
	"being fetched after a long wait": func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), 6*time.Minute)
		d.running(id, d.worker)
		return id
	},
	"being sent": func(d *delivering) uuid.UUID {
		id := d.doubted(outbox.PolicyRetry)
		d.exec(`UPDATE outbox.attempts SET in_doubt_at = NULL, began_at = now() - interval '9 minutes',
			deadline = now() + interval '1 hour' WHERE email_id = $1`, id)
		d.setEmail(id, "status = 'sending', reason = NULL")
		return id
	},
	"in doubt, evidence may come": func(d *delivering) uuid.UUID { return d.doubted(outbox.PolicyHold) },
	"in doubt, policy about to decide": func(d *delivering) uuid.UUID {
		return d.late(d.doubted(outbox.PolicyRetry), 30*time.Minute)
	},
	"over": func(d *delivering) uuid.UUID {
		id := d.late(d.enqueue(), time.Hour)
		d.setEmail(id, "status = 'sent', ended_at = now()")
		return id
	},
}

func (d *delivering) jobID(id uuid.UUID) (job int64) {
	d.t.Helper()
	must(d.t, d.pool.QueryRow(context.Background(), "SELECT id FROM outbox.river_job WHERE args ->> 'email_id' = $1::uuid::text", id).Scan(&job))
	return job
}

// stuck are the reasons of all emails that the filter finds, by the names of emails.
func (d *delivering) stuck(names map[uuid.UUID]string, f outbox.StuckFilter) map[string]outbox.StuckReason {
	d.t.Helper()
	list, next, err := outbox.ListStuck(context.Background(), d.pool, f)
	must(d.t, err)
	if next != uuid.Nil && len(list) != f.Limit {
		d.t.Errorf("%d emails, and there are more after %s", len(list), next)
	}
	found := map[string]outbox.StuckReason{}
	for _, e := range list {
		found[names[e.ID]] = e.Reason
		if e.Advice == "" || strings.Contains(e.Advice, "%!") || strings.Contains(e.Advice, "()") || strings.Contains(e.Advice, "@") {
			d.t.Errorf("%s: advice %q", names[e.ID], e.Advice)
		}
		if e.Since.IsZero() || time.Since(e.Since) > 26*time.Hour || e.CreatedAt.IsZero() {
			d.t.Errorf("%s: since %v, created %v", names[e.ID], e.Since, e.CreatedAt)
		}
	}
	return found
}

// Each state is told by its one reason, and what is on its way is not told at all.
func TestStuckHasOneReason(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES ($1, 'acme')", d.org)
	names, want := map[uuid.UUID]string{}, map[string]outbox.StuckReason{}
	covered := map[outbox.StuckReason]bool{outbox.StuckNoWorker: true, outbox.StuckQueuePaused: true}
	well := map[string]uuid.UUID{}
	for name, enter := range wellStates {
		well[name] = enter(d)
		names[well[name]] = name
	}
	for _, s := range stuckStates {
		names[s.enter(d)] = s.name
		want[s.name], covered[s.reason] = s.reason, true
	}
	for _, reason := range outbox.StuckReasons {
		if !covered[reason] {
			t.Errorf("no state for %s", reason)
		}
	}
	all := outbox.StuckFilter{Limit: 100, UnknownWait: time.Hour, Keys: ring(t, "k2")}
	// The machine may be slow: what is to be new is.
	d.exec("UPDATE outbox.emails SET created_at = now() WHERE id = $1", well["new"])
	if diff := cmp.Diff(want, d.stuck(names, all)); diff != "" {
		t.Errorf("stuck:\n%s", diff)
	}

	// Each by itself is told the same, with what to do.
	for id, name := range names {
		e, err := outbox.WhyStuck(t.Context(), d.pool, id, all)
		must(t, err)
		i := slices.IndexFunc(stuckStates, func(s stuckState) bool { return s.name == name })
		if (i >= 0) != (e != nil) {
			t.Errorf("%s: by itself %+v", name, e)
		} else if i >= 0 && (e.ID != id || e.Reason != stuckStates[i].reason || !strings.Contains(e.Advice, stuckStates[i].advice)) {
			t.Errorf("%s: by itself %s: %q, want %q", name, e.Reason, e.Advice, stuckStates[i].advice)
		}
	}
	// Pages, filters and the connections of an API process find the same.
	paged, f := map[string]outbox.StuckReason{}, all
	f.Limit = 4
	for first := true; first || f.After != uuid.Nil; first = false {
		maps.Copy(paged, d.stuck(names, f))
		var err error
		_, f.After, err = outbox.ListStuck(t.Context(), d.pool, f)
		must(t, err)
	}
	if diff := cmp.Diff(want, paged); diff != "" {
		t.Errorf("in pages:\n%s", diff)
	}
	within := d.pool
	d.pool = testdb.Reopen(t, d.pool, outbox.OrgSetting, outbox.NoOrg)
	if diff := cmp.Diff(want, d.stuck(names, all)); diff != "" {
		t.Errorf("as an API process:\n%s", diff)
	}
	d.pool = within
	of := all
	of.Reason, of.Org = outbox.StuckBacklog, d.org
	if diff := cmp.Diff(map[string]outbox.StuckReason{"all workers busy": "backlog", "newsletter, all workers busy": "backlog"}, d.stuck(names, of)); diff != "" {
		t.Errorf("of a reason:\n%s", diff)
	}
	of = all
	of.Org = d.orgID("paused")
	if diff := cmp.Diff(map[string]outbox.StuckReason{"paused org": "org_paused"}, d.stuck(names, of)); diff != "" {
		t.Errorf("of an org:\n%s", diff)
	}

	// Without keys, what a worker has found out counts.
	of = all
	of.Keys = nil
	got := d.stuck(names, of)
	if got["key that the worker lacks"] != outbox.StuckKeyMissing || got["key that is not at hand"] != "" {
		t.Errorf("without keys: %v", got)
	}

	// What is true for all is said of those that have nothing of their own.
	d.exec("INSERT INTO outbox.river_queue (name) VALUES ($1)", outbox.Queue)
	must(t, d.client.Jobs().QueuePause(t.Context(), outbox.Queue, nil))
	got = d.stuck(names, all)
	for name, reason := range map[string]outbox.StuckReason{
		"all workers busy": "queue_paused", "in a short queue": "queue_paused", "job cancelled": "job_discarded_or_cancelled", "in doubt, for a person": "in_doubt",
	} {
		if got[name] != reason {
			t.Errorf("the queue is paused, %s: %s, want %s", name, got[name], reason)
		}
	}
	d.kill()
	d.awaitLocks(0)
	got = d.stuck(names, all)
	for name, reason := range map[string]outbox.StuckReason{
		"all workers busy": "no_worker", "in a short queue": "no_worker", "job cancelled": "no_worker", "being sent": "no_worker",
		"in doubt, for a person": "in_doubt", "restored": "hold", "paused org": "org_paused", "scheduled": "", "deferred": "",
	} {
		if got[name] != reason {
			t.Errorf("no worker is alive, %s: %s, want %s", name, got[name], reason)
		}
	}
}

func (d *delivering) orgID(name string) (id uuid.UUID) {
	d.t.Helper()
	must(d.t, d.pool.QueryRow(context.Background(), "SELECT id FROM outbox.orgs WHERE name = $1", name).Scan(&id))
	return id
}

// While mails flow, nothing is stuck, though all of them are late.
func TestNothingIsStuckWhileMailsFlow(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	const emails = 300
	var many []outbox.Submission
	for range emails {
		many = append(many, submission(d.org, ""))
	}
	must(t, pgx.BeginFunc(t.Context(), d.pool, func(tx pgx.Tx) error {
		if _, err := d.client.EnqueueManyTx(t.Context(), tx, many); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), "UPDATE outbox.emails SET created_at = created_at - interval '2 minutes'")
		return err
	}))
	stop := d.work("")
	defer stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ; count(t, d.pool, "SELECT count(*) FROM outbox.emails WHERE status = 'sent'") < emails; <-tick.C {
		stuck, _, err := outbox.ListStuck(t.Context(), d.pool, outbox.StuckFilter{})
		must(t, err)
		for _, e := range stuck {
			t.Fatalf("stuck: %+v", e)
		}
	}
}
