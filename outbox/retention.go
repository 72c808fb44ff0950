package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
)

const (
	// maintenanceQueue is apart from deliveries, so that housekeeping neither
	// waits for a full queue nor delays it.
	maintenanceQueue = "maintenance"
	purgeInterval    = 10 * time.Minute
	purgeBatch       = 1000
)

// sqlPurgeKeys deletes keys that have expired, in the sense of sqlInsertKeys.
// It is one bare DELETE, and whoever meets a row that is about to go waits for
// it: a claim is ON CONFLICT DO UPDATE, which locks the row. Under DO NOTHING a
// submission would be told at once that its key is taken, by a row that is then
// gone: acknowledged, and no email.
const sqlPurgeKeys = `
DELETE FROM outbox.idempotency_keys k
WHERE k.expires_at <= now() AND (k.org_id, k.endpoint, k.key) IN (
    SELECT i.org_id, i.endpoint, i.key FROM outbox.idempotency_keys i
    WHERE i.expires_at <= now() AND NOT EXISTS (
        SELECT FROM outbox.emails e
        WHERE e.id = ANY (i.email_ids) AND (e.ended_at IS NULL OR e.ended_at > now() - interval '` + keptAfterEnd + `'))
    LIMIT $1)`

// PurgeKeys deletes expired idempotency keys in batches, each a transaction of
// its own, and returns how many they were. Workers call it regularly.
func PurgeKeys(ctx context.Context, pool *pgxpool.Pool) (int64, error) {
	var total int64
	for {
		n, err := inSteps(ctx, pool, purgeBatch, sqlPurgeKeys)
		total += n
		if isDeadlock(err) {
			continue // with a submission of several keys, which has won
		}
		if err != nil {
			return total, fmt.Errorf("purge idempotency keys: %w", err)
		}
		return total, nil
	}
}

// inSteps runs a statement that takes a number of rows as its last argument until
// there are fewer, each time in a transaction of its own, and returns how many rows
// it was.
func inSteps(ctx context.Context, pool *pgxpool.Pool, rows int64, sql string, args ...any) (total int64, err error) {
	args = append(args, rows)
	for {
		tag, err := pool.Exec(ctx, sql, args...)
		total += tag.RowsAffected()
		if err != nil || tag.RowsAffected() < rows {
			return total, err
		}
	}
}

// chore is what the arguments of housekeeping jobs have in common.
type chore struct{}

// InsertOpts are River's options for such a job. It is not retried: the next one
// comes soon.
func (chore) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: maintenanceQueue, MaxAttempts: 1}
}

type purgeKeysArgs struct{ chore }

// Kind names the job in River.
func (purgeKeysArgs) Kind() string { return "purge_idempotency_keys" }

type purgeKeysWorker struct {
	river.WorkerDefaults[purgeKeysArgs]
	pool *pgxpool.Pool
	log  *slog.Logger
}

// Work runs one job.
func (w *purgeKeysWorker) Work(ctx context.Context, _ *river.Job[purgeKeysArgs]) error {
	purged, err := PurgeKeys(ctx, w.pool)
	if purged > 0 {
		w.log.InfoContext(ctx, "purged idempotency keys", "count", purged)
	}
	return err
}

func periodicJobs() []*river.PeriodicJob {
	return []*river.PeriodicJob{
		every(purgeInterval, purgeKeysArgs{}), every(strayInterval, adoptEventsArgs{}),
		every(purgeInterval, keepWebhooksArgs{}), every(purgeInterval, purgeOrgsArgs{}),
		every(sealInterval, sealArgs{}), every(purgeInterval, purgeContentsArgs{}),
	}
}

// every runs a job when a worker begins to lead, and then regularly.
func every(interval time.Duration, args river.JobArgs) *river.PeriodicJob {
	return river.NewPeriodicJob(river.PeriodicInterval(interval),
		func() (river.JobArgs, *river.InsertOpts) { return args, nil },
		&river.PeriodicJobOpts{RunOnStart: true})
}

func isDeadlock(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == pgerrcode.DeadlockDetected
}
