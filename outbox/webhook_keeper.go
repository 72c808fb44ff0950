package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
)

const (
	// webhookRetention is how long messages are kept, to be looked at and
	// replayed.
	webhookRetention = 30 * 24 * time.Hour
	// messageGrace is how long past its time a message must be before it counts
	// as forgotten.
	messageGrace = 5 * time.Minute
	keeperBatch  = 1000
)

// sqlPurgeMessages goes by the time in the id. What is left of a webhook that is
// gone goes too.
const sqlPurgeMessages = `
DELETE FROM outbox.webhook_messages WHERE id IN (
    SELECT m.id FROM outbox.webhook_messages m
    WHERE m.id < $1 LIMIT $2)`

const sqlPurgeStrays = `
DELETE FROM outbox.webhook_messages m
WHERE m.delivered_at IS NULL AND m.failed_at IS NULL AND m.next_attempt_at < now() - $1::interval
    AND NOT EXISTS (SELECT FROM outbox.webhooks w WHERE w.id = m.webhook_id)`

// PurgeWebhookMessages deletes messages that were made before a time, in batches,
// each a transaction of its own, and returns how many they were. Workers call it
// regularly.
func PurgeWebhookMessages(ctx context.Context, pool *pgxpool.Pool, before time.Time) (int64, error) {
	total, err := inSteps(ctx, pool, purgeBatch, sqlPurgeMessages, firstID(before))
	if err != nil {
		return total, fmt.Errorf("purge webhook messages: %w", err)
	}
	if _, err := pool.Exec(ctx, sqlPurgeStrays, messageGrace); err != nil {
		return total, fmt.Errorf("purge messages of deleted webhooks: %w", err)
	}
	return total, nil
}

// sqlForgottenMessages finds messages that are due and that no live job will
// come for: River discarded it, or somebody deleted or cancelled it in River UI.
const sqlForgottenMessages = `
SELECT m.id FROM outbox.webhook_messages m
WHERE m.delivered_at IS NULL AND m.failed_at IS NULL AND m.next_attempt_at < now() - $1::interval
    AND NOT EXISTS (
        SELECT FROM outbox.river_job j
        WHERE j.args ->> 'message_id' = m.id::text AND j.kind = 'deliver_webhook'
            AND j.state IN ('available', 'pending', 'retryable', 'running', 'scheduled'))
ORDER BY m.next_attempt_at LIMIT $2`

// adoptMessages gives forgotten messages a job each.
func adoptMessages(ctx context.Context, pool *pgxpool.Pool, jobs *river.Client[pgx.Tx], log *slog.Logger) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlForgottenMessages, messageGrace, keeperBatch)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			log.WarnContext(ctx, "webhook messages had no job and got one", "count", len(ids))
		}
		return insertWebhookJobs(ctx, jobs, tx, ids)
	})
	if err != nil {
		return fmt.Errorf("adopt forgotten webhook messages: %w", err)
	}
	return nil
}

type keepWebhooksArgs struct{ chore }

// Kind names the job in River.
func (keepWebhooksArgs) Kind() string { return "keep_webhooks" }

// webhookKeeper is the housekeeping of messages.
type webhookKeeper struct {
	river.WorkerDefaults[keepWebhooksArgs]
	pool *pgxpool.Pool
	log  *slog.Logger
}

// Work runs one job.
func (k *webhookKeeper) Work(ctx context.Context, _ *river.Job[keepWebhooksArgs]) error {
	purged, err := PurgeWebhookMessages(ctx, k.pool, time.Now().Add(-webhookRetention))
	if err != nil {
		return err
	}
	if purged > 0 {
		k.log.InfoContext(ctx, "purged webhook messages", "count", purged)
	}
	return adoptMessages(ctx, k.pool, river.ClientFromContext[pgx.Tx](ctx), k.log)
}
