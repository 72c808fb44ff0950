package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// sweepInterval is how often each worker looks for what the dead left.
	sweepInterval = 500 * time.Millisecond

	// attemptMargin is how long past its deadline an attempt is left alone:
	// its owner refuses to send from the deadline on, and may still be writing
	// down what became of it.
	attemptMargin = 10 * time.Second

	// orphanAge is how long an email must have been waiting before it counts
	// as forgotten, and orphanBatch how many are looked at in one pass.
	orphanAge   = 5 * time.Second
	orphanBatch = 500
)

// sweeper gives back what dead workers held. Every worker runs one, whoever
// leads River.
type sweeper struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	// jobBudget is longer than any delivery takes.
	jobBudget time.Duration
	// jobs inserts jobs for forgotten emails.
	jobs    *Client
	metrics *Metrics

	// suspects were seen without a lock in the pass before, and may have died
	// since the time beside them. All locks vanish at once when Postgres
	// restarts, and their owners need a moment to be back.
	suspects map[string]time.Time
	// lookedAt is when the pass before looked for locks; zero: there was none.
	lookedAt time.Time
	// cursor is how far the search for forgotten emails has come.
	cursor uuid.UUID
}

// run sweeps at once and then regularly, until ctx ends. A pass that fails is
// followed by the next.
func (s *sweeper) run(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		if err := s.pass(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "sweep failed, trying again", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *sweeper) pass(ctx context.Context) error {
	if err := s.recoverDead(ctx); err != nil {
		return err
	}
	if err := s.freeOverdue(ctx); err != nil {
		return err
	}
	return s.adoptOrphans(ctx)
}

// sqlOwners finds the workers that hold running jobs, or lead River, and that
// are registered: other clients of River hold no lock while they live.
const sqlOwners = `
SELECT w.id, w.lock_key FROM outbox.workers w
WHERE w.id IN (
    SELECT attempted_by[array_upper(attempted_by, 1)] FROM outbox.river_job WHERE state = 'running'
    UNION ALL SELECT leader_id FROM outbox.river_leader)`

type owner struct {
	ID      string
	LockKey int32
}

// recoverDead makes the jobs of dead workers available at once.
func (s *sweeper) recoverDead(ctx context.Context) error {
	rows, err := s.pool.Query(ctx, sqlOwners)
	if err != nil {
		return fmt.Errorf("find owners of jobs: %w", err)
	}
	owners, err := pgx.CollectRows(rows, pgx.RowToStructByPos[owner])
	if err != nil {
		return fmt.Errorf("find owners of jobs: %w", err)
	}
	suspects, now := map[string]time.Time{}, time.Now()
	for _, o := range owners {
		dead, err := s.recoverFrom(ctx, o)
		if err != nil {
			return err
		}
		if dead {
			suspects[o.ID] = s.aliveAt(o.ID)
		}
	}
	s.suspects, s.lookedAt = suspects, now
	return nil
}

// aliveAt is when this sweep has last seen that a dead worker was not: in the
// pass before the one that made it a suspect. Zero: it was dead before this
// sweep began.
func (s *sweeper) aliveAt(worker string) time.Time {
	if since, suspected := s.suspects[worker]; suspected {
		return since
	}
	return s.lookedAt
}

const sqlTryWorkerLock = `SELECT pg_try_advisory_xact_lock($1, $2)`

// recoverFrom reports whether the worker is dead, and takes its jobs away if
// it was dead in the pass before as well. The worker's lock, held until the
// commit, is the proof of its death and bars its return.
func (s *sweeper) recoverFrom(ctx context.Context, o owner) (dead bool, err error) {
	var freed int
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, sqlTryWorkerLock, lockNamespace, o.LockKey).Scan(&dead); err != nil {
			return err
		}
		if _, suspected := s.suspects[o.ID]; !dead || !suspected {
			return nil
		}
		freed, err = s.takeJobs(ctx, tx, o.ID)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("recover jobs of %s: %w", o.ID, err)
	}
	s.metrics.recovered(recoveredFromDead, freed, since(s.suspects[o.ID]))
	return dead, nil
}

// deliveryOverdue is why a job is handed back whose worker is alive.
const deliveryOverdue = "the delivery is past its deadline: its worker does not answer"

// sqlFreeJobs hands running jobs back to the queue. The reason stays visible
// in River UI among the job's errors; the count is where River's own rescuer
// keeps it. A job that was to be cancelled is.
const sqlFreeJobs = `
UPDATE outbox.river_job j
SET state = CASE WHEN j.metadata ? 'cancel_attempted_at' THEN 'cancelled' ELSE 'available' END::outbox.river_job_state,
    finalized_at = CASE WHEN j.metadata ? 'cancel_attempted_at' THEN now() END,
    scheduled_at = now(),
    max_attempts = greatest(j.max_attempts, j.attempt + 1),
    metadata = jsonb_set(j.metadata, '{river:rescue_count}',
        to_jsonb(coalesce((j.metadata ->> 'river:rescue_count')::integer, 0) + 1)),
    errors = array_append(j.errors, jsonb_build_object(
        'at', now(), 'attempt', greatest(j.attempt, 1), 'error', $2::text, 'trace', ''))
FROM (
    SELECT id FROM outbox.river_job
    WHERE state = 'running' AND id = ANY ($1::bigint[])
    FOR UPDATE SKIP LOCKED
) held
WHERE j.id = held.id
RETURNING j.queue`

const (
	sqlJobsOf       = `SELECT id FROM outbox.river_job WHERE state = 'running' AND attempted_by[array_upper(attempted_by, 1)] = $1`
	sqlNotifyQueue  = `SELECT pg_notify('outbox.river_insert', jsonb_build_object('queue', $1::text)::text)`
	sqlDropLeader   = `DELETE FROM outbox.river_leader WHERE leader_id = $1`
	sqlNotifyLeader = `SELECT pg_notify('outbox.river_leadership', jsonb_build_object('action', 'resigned', 'leader_id', $1::text)::text)`
)

// goneBeforeID and goneAfterID are why a job was taken away from a worker, around
// that one's id.
const (
	goneBeforeID = "worker "
	goneAfterID  = " is gone: its session with the database has ended"
)

// takeJobs frees what a dead worker held, its leadership of River included,
// which would otherwise run out only after many seconds. It returns how many.
func (s *sweeper) takeJobs(ctx context.Context, tx pgx.Tx, worker string) (freed int, err error) {
	rows, err := tx.Query(ctx, sqlJobsOf, worker)
	if err != nil {
		return 0, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, err
	}
	freed, err = s.free(ctx, tx, ids, goneBeforeID+worker+goneAfterID)
	if err != nil {
		return 0, err
	}
	tag, err := tx.Exec(ctx, sqlDropLeader, worker)
	if err != nil {
		return 0, err
	}
	if tag.RowsAffected() > 0 {
		if _, err := tx.Exec(ctx, sqlNotifyLeader, worker); err != nil {
			return 0, err
		}
	}
	_, err = tx.Exec(ctx, sqlEndWorker, worker)
	return freed, err
}

// since is how long ago a time was; zero: it is not known.
func since(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Since(t)
}

// free hands jobs back and wakes the workers. It returns how many jobs it was.
func (s *sweeper) free(ctx context.Context, tx pgx.Tx, ids []int64, reason string) (freed int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	rows, err := tx.Query(ctx, sqlFreeJobs, ids, reason)
	if err != nil {
		return 0, err
	}
	queues, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	woken := map[string]bool{}
	for _, queue := range queues {
		if woken[queue] {
			continue
		}
		woken[queue] = true
		if _, err := tx.Exec(ctx, sqlNotifyQueue, queue); err != nil {
			return 0, err
		}
	}
	if len(queues) > 0 {
		s.log.WarnContext(ctx, "recovered jobs", "count", len(queues), "reason", reason)
	}
	return len(queues), nil
}

// sqlOverdueJobs finds deliveries whose owner lives and has let its time pass,
// as one that is paused for good or cut off: its attempt is past the deadline,
// or the outcome is recorded and the job not done with, or the job runs longer
// than any delivery may. A webhook that is told twice gets the same id.
const sqlOverdueJobs = `
SELECT j.id FROM outbox.river_job j
WHERE j.state = 'running' AND j.kind = 'deliver_email' AND (
    j.attempted_at < now() - $2::interval
    OR EXISTS (
        SELECT FROM outbox.attempts a
        WHERE a.email_id = (j.args ->> 'email_id')::uuid
            AND a.worker = j.attempted_by[array_upper(j.attempted_by, 1)]
            AND CASE WHEN a.stage = 'sending' AND a.in_doubt_at IS NULL
                THEN a.deadline < now() - $1::interval
                ELSE coalesce(a.ended_at, a.in_doubt_at) BETWEEN j.attempted_at AND now() - $1::interval END))
    OR j.state = 'running' AND j.kind = 'deliver_webhook' AND j.attempted_at < now() - $1::interval - $3::interval`

func (s *sweeper) freeOverdue(ctx context.Context) error {
	var freed int
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlOverdueJobs, attemptMargin, s.jobBudget, webhookJobTimeout)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		freed, err = s.free(ctx, tx, ids, deliveryOverdue)
		return err
	})
	if err != nil {
		return fmt.Errorf("free overdue jobs: %w", err)
	}
	s.metrics.recovered(recoveredFromSlow, freed, 0)
	return nil
}

// sqlOrphans finds emails that are not over and that no live job will come
// for: River discarded it, somebody deleted or cancelled it in River UI, or a
// late completion closed it.
const sqlOrphans = `
SELECT w.id, w.org_id, w.priority, w.due, j.id IS NULL
FROM (
    SELECT e.id, e.org_id, e.priority, e.status, greatest(e.scheduled_at, e.next_attempt_at) AS due
    FROM outbox.emails e
    WHERE e.ended_at IS NULL AND e.id > $1 AND e.created_at < now() - $2::interval
    ORDER BY e.id LIMIT $3
) w
LEFT JOIN LATERAL (
    SELECT j.id FROM outbox.river_job j
    WHERE j.args ->> 'email_id' = w.id::text AND j.kind = 'deliver_email' AND ` + comingJobSQL + `
    LIMIT 1
) j ON true
ORDER BY w.id`

// comingJobSQL is the condition that a job j comes for an email w that is not over.
// Long after the email is due is too late: such a job waits for evidence in a doubt,
// and a worker that was paused has said meanwhile that nothing was sent.
const comingJobSQL = `(j.state IN ('available', 'pending', 'retryable', 'running', 'scheduled')
        AND NOT (w.status = 'queued' AND j.state = 'scheduled'
            AND j.scheduled_at > greatest(w.due, now()) + interval '30 seconds'))`

// orphanLock lets one worker at a time look for forgotten emails, so that two
// do not give the same email a job each.
const orphanLock int32 = 0x6f726670

// adoptOrphans looks at the next few emails that are not over and gives jobs
// to those that have none.
func (s *sweeper) adoptOrphans(ctx context.Context) error {
	var orphans []emailRow
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var mine bool
		if err := tx.QueryRow(ctx, sqlTryWorkerLock, orphanLock, 0).Scan(&mine); err != nil || !mine {
			return err
		}
		var err error
		if orphans, err = s.findOrphans(ctx, tx); err != nil || len(orphans) == 0 {
			return err
		}
		s.log.WarnContext(ctx, "emails had no job and got one", "count", len(orphans))
		return s.jobs.insertJobs(ctx, tx, orphans)
	})
	if err != nil {
		return fmt.Errorf("adopt forgotten emails: %w", err)
	}
	s.metrics.adopted(len(orphans))
	return nil
}

func (s *sweeper) findOrphans(ctx context.Context, tx pgx.Tx) ([]emailRow, error) {
	rows, err := tx.Query(ctx, sqlOrphans, s.cursor, orphanAge, orphanBatch)
	if err != nil {
		return nil, err
	}
	var seen int
	var orphans []emailRow
	var id, org uuid.UUID
	var priority int16
	var due *time.Time
	var orphan bool
	_, err = pgx.ForEachRow(rows, []any{&id, &org, &priority, &due, &orphan}, func() error {
		seen++
		s.cursor = id
		if orphan {
			m := &Message{Priority: priorityOf(priority), ScheduledAt: timeOf(due)}
			orphans = append(orphans, emailRow{org: org, accepted: &accepted{id: id, message: m}})
		}
		return nil
	})
	if seen < orphanBatch {
		s.cursor = uuid.Nil // begin again from the oldest
	}
	return orphans, err
}
