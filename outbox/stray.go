package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/outboxd/outboxd/providers"
)

const (
	// strayInterval is how often events of unknown attempts are looked at
	// again, and strayHope for how long: the provider's id, by which some are
	// found, is recorded moments after the provider has given it.
	strayInterval = time.Minute
	strayHope     = "1 hour"
	// strayKept is how long they are kept for people to look at.
	strayKept = "30 days"
)

const (
	sqlFindStray = `
SELECT s.id, s.provider, coalesce(s.reference::text, ''), s.provider_message_id, s.type, s.recipient,
    s.permanent, s.detail, s.occurred_at, s.whole_message
FROM outbox.stray_events s
WHERE s.received_at > now() - interval '` + strayHope + `' AND EXISTS (
    SELECT FROM outbox.attempts a
    WHERE a.provider = s.provider AND (a.provider_key = s.reference OR a.provider_message_id = s.provider_message_id))
ORDER BY s.provider, s.id LIMIT $1
FOR UPDATE SKIP LOCKED`

	sqlDeleteStray = `DELETE FROM outbox.stray_events WHERE id = ANY ($1::uuid[])`

	sqlPurgeStray = `
DELETE FROM outbox.stray_events WHERE id IN (
    SELECT id FROM outbox.stray_events WHERE received_at < now() - interval '` + strayKept + `' LIMIT $1)`
)

// strayEvent is an event that belonged to no attempt when it came.
type strayEvent struct {
	id       uuid.UUID
	provider string
	event    providers.Event
}

// AdoptStrayEvents records events whose attempt has become known since they
// came, and deletes those that nobody will ask for. It returns how many it
// recorded. Workers call it regularly.
func (c *Client) AdoptStrayEvents(ctx context.Context) (adopted int, err error) {
	if _, err := c.pool.Exec(ctx, sqlPurgeStray, purgeBatch); err != nil {
		return 0, fmt.Errorf("purge stray events: %w", err)
	}
	var settled int
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		list, err := findStray(ctx, tx)
		if err != nil || len(list) == 0 {
			return err
		}
		ids := make([]uuid.UUID, len(list))
		byProvider := map[string][]providers.Event{}
		for i, s := range list {
			ids[i] = s.id
			byProvider[s.provider] = append(byProvider[s.provider], s.event)
		}
		for provider, events := range byProvider {
			recorded, err := eventBatch{provider, events, c.suppressionOf, c.cfg.Keys}.record(ctx, tx)
			if err != nil {
				return err
			}
			adopted += recorded.New
			settled += recorded.Settled
		}
		_, err = tx.Exec(ctx, sqlDeleteStray, ids)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("adopt stray events: %w", err)
	}
	c.cfg.Metrics.settled(EvidenceWebhook, settled)
	return adopted, nil
}

func findStray(ctx context.Context, tx pgx.Tx) ([]strayEvent, error) {
	rows, err := tx.Query(ctx, sqlFindStray, purgeBatch)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (strayEvent, error) {
		var s strayEvent
		e := &s.event
		err := row.Scan(&s.id, &s.provider, &e.Reference, &e.ProviderMessageID, &e.Type, &e.Recipient,
			&e.Permanent, &e.Detail, &e.OccurredAt, &e.WholeMessage)
		return s, err
	})
}

type adoptEventsArgs struct{ chore }

// Kind names the job in River.
func (adoptEventsArgs) Kind() string { return "adopt_stray_events" }

type adoptEventsWorker struct {
	river.WorkerDefaults[adoptEventsArgs]
	client *Client
	log    *slog.Logger
}

// Work runs one job.
func (w *adoptEventsWorker) Work(ctx context.Context, _ *river.Job[adoptEventsArgs]) error {
	adopted, err := w.client.AdoptStrayEvents(ctx)
	if adopted > 0 {
		w.log.InfoContext(ctx, "recorded events that had come before their attempt was known", "count", adopted)
	}
	return err
}
