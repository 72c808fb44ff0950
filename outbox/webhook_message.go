package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
)

// WebhookMessage is something that a webhook is told.
type WebhookMessage struct {
	// ID is the webhook-id of every request with the message.
	ID    uuid.UUID
	Type  WebhookEvent
	Email uuid.UUID
	// Payload is the body of the requests. Lists leave it out.
	Payload   json.RawMessage
	CreatedAt time.Time
	// Attempts are the requests made so far, since the last replay if there
	// was one.
	Attempts int
	// NextAttemptAt is when the next one is due. Zero: none is.
	NextAttemptAt time.Time
	// DeliveredAt is when the endpoint took the message, and FailedAt when it
	// was given up. At most one is not zero.
	DeliveredAt, FailedAt time.Time
	// LastStatus is what the endpoint answered last; zero: nothing. LastError
	// says why, in a word.
	LastStatus int
	LastError  string
}

// messageColumnsSQL is what scanWebhookMessage reads.
const messageColumnsSQL = `m.id, m.type, m.email_id, m.created_at, m.attempts,
    CASE WHEN m.delivered_at IS NULL AND m.failed_at IS NULL THEN m.next_attempt_at END, m.delivered_at, m.failed_at,
    coalesce(m.last_status, 0), coalesce(m.last_error, '')`

const (
	// sqlListMessages shows an org's messages only: the webhook is one of its own.
	sqlListMessages = `
SELECT ` + messageColumnsSQL + `
FROM outbox.webhook_messages m
WHERE m.webhook_id = $2 AND m.org_id = $1 AND m.id < $3
ORDER BY m.id DESC LIMIT $4`

	sqlGetMessage = `
SELECT ` + messageColumnsSQL + `,` + payloadColumnsSQL + `
FROM outbox.webhook_messages m` + payloadTablesSQL + `
WHERE m.webhook_id = $2 AND m.org_id = $1 AND m.id = $3`
)

func scanWebhookMessage(row pgx.Row, m *WebhookMessage, more ...any) error {
	var next, delivered, failed *time.Time
	err := row.Scan(append([]any{
		&m.ID, &m.Type, &m.Email, &m.CreatedAt, &m.Attempts, &next, &delivered, &failed, &m.LastStatus, &m.LastError,
	}, more...)...)
	m.NextAttemptAt, m.DeliveredAt, m.FailedAt = timeOf(next), timeOf(delivered), timeOf(failed)
	return err
}

// ListWebhookMessages returns at most limit messages of a webhook that are older
// than the one named after, or the newest if it is zero, and whether there are
// more. It returns [ErrWebhookNotFound].
func (c *Client) ListWebhookMessages(
	ctx context.Context, org, webhook, after uuid.UUID, limit int,
) (messages []WebhookMessage, more bool, err error) {
	if _, err := c.GetWebhook(ctx, org, webhook); err != nil {
		return nil, false, err
	}
	if after == uuid.Nil {
		after = uuid.Max
	}
	err = c.as(org).Query(ctx, collect(&messages, func(row pgx.CollectableRow) (WebhookMessage, error) {
		var m WebhookMessage
		err := scanWebhookMessage(row, &m)
		return m, err
	}), sqlListMessages, org, webhook, after, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list webhook messages: %w", err)
	}
	if more = len(messages) > limit; more {
		messages = messages[:limit]
	}
	return messages, more, nil
}

// GetWebhookMessage returns a message with its payload, or
// [ErrWebhookMessageNotFound].
func (c *Client) GetWebhookMessage(ctx context.Context, org, webhook, id uuid.UUID) (*WebhookMessage, error) {
	m, row := new(WebhookMessage), new(payloadRow)
	err := c.as(org).QueryRow(ctx, func(r pgx.Row) error {
		return scanWebhookMessage(r, m, row.columns()...)
	}, sqlGetMessage, org, webhook, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrWebhookMessageNotFound
	}
	if err == nil {
		m.Payload, err = row.encode(c.cfg.Keys)
	}
	if err != nil {
		return nil, fmt.Errorf("get webhook message: %w", err)
	}
	return m, nil
}

// MaxReplay is how many messages one call of [Client.ReplayWebhook] replays.
const MaxReplay = 10_000

// sqlReplay begins anew with messages: those of a webhook that failed, the
// oldest first, or the one that is named, whatever became of it.
const sqlReplay = `
UPDATE outbox.webhook_messages m
SET attempts = 0, next_attempt_at = now(), delivered_at = NULL, failed_at = NULL, last_status = NULL, last_error = NULL
WHERE m.id IN (
    SELECT s.id FROM outbox.webhook_messages s
    WHERE s.webhook_id = $2 AND s.org_id = $1
        AND CASE WHEN $3::uuid IS NULL THEN s.created_at >= $4 AND s.failed_at IS NOT NULL ELSE s.id = $3 END
    ORDER BY s.id LIMIT $5)
RETURNING m.id`

// ReplayWebhook sends again what an endpoint was told since a time and did not
// take: the messages that failed, not those that are still being tried. It
// returns how many they are, at most [MaxReplay], and whether there are more.
// It returns [ErrWebhookNotFound] or [ErrWebhookDisabled].
func (c *Client) ReplayWebhook(ctx context.Context, org, id uuid.UUID, since time.Time) (replayed int, more bool, err error) {
	replayed, err = c.replay(ctx, org, id, nil, since)
	return replayed, replayed == MaxReplay, err
}

// ReplayWebhookMessage sends one message again, at once and with its whole
// schedule, also when the endpoint took it. It returns [ErrWebhookNotFound],
// [ErrWebhookMessageNotFound] or [ErrWebhookDisabled].
func (c *Client) ReplayWebhookMessage(ctx context.Context, org, webhook, id uuid.UUID) error {
	n, err := c.replay(ctx, org, webhook, &id, time.Time{})
	if err == nil && n == 0 {
		return ErrWebhookMessageNotFound
	}
	return err
}

func (c *Client) replay(ctx context.Context, org, webhook uuid.UUID, id *uuid.UUID, since time.Time) (n int, err error) {
	w, err := c.GetWebhook(ctx, org, webhook)
	switch {
	case err != nil:
		return 0, err
	case w.Status == WebhookDisabled:
		return 0, ErrWebhookDisabled
	}
	err = c.as(org).Begin(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlReplay, org, webhook, id, since, MaxReplay)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return err
		}
		n = len(ids)
		return insertWebhookJobs(ctx, c.jobs, tx, ids)
	})
	if err != nil {
		return 0, fmt.Errorf("replay webhook: %w", err)
	}
	return n, nil
}

// insertWebhookJobs gives messages a job. One that has a job already gets
// another, which does no harm: what is to be done is decided by the message.
func insertWebhookJobs(ctx context.Context, jobs *river.Client[pgx.Tx], tx pgx.Tx, ids []uuid.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	params := make([]river.InsertManyParams, len(ids))
	for i, id := range ids {
		params[i] = river.InsertManyParams{Args: webhookArgs{MessageID: id}}
	}
	if _, err := jobs.InsertManyFastTx(ctx, tx, params); err != nil {
		return fmt.Errorf("insert jobs: %w", err)
	}
	return nil
}
