package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// delivery is an email as a worker sees it before it decides what to do.
type delivery struct {
	Email
	// now is the database's time. Decisions about due times use it, so that a
	// worker whose clock is off by minutes decides like the others.
	now        time.Time
	attempts   int16
	openWorker string // the worker of the open attempt; empty: none is open
}

const sqlLoadEmail = `
SELECT ` + emailColumnsSQL + `, coalesce(c.html, ''), coalesce(c.text, ''), e.attempts, now(),
    coalesce((SELECT a.worker FROM outbox.attempts a WHERE a.email_id = e.id AND a.stage = 'sending'), '')
FROM outbox.emails e LEFT JOIN outbox.email_contents c ON c.email_id = e.id
WHERE e.id = $1`

const sqlLoadAttachments = `
SELECT filename, coalesce(content_type, ''), coalesce(content_id, ''), content
FROM outbox.attachments WHERE email_id = $1 ORDER BY position`

// load reads an email with its whole content in one round trip. It returns
// [ErrNotFound] for one that does not exist.
func load(ctx context.Context, pool *pgxpool.Pool, id uuid.UUID) (*delivery, error) {
	var batch pgx.Batch
	d := new(delivery)
	m := &d.Message
	batch.Queue(sqlLoadEmail, id).QueryRow(func(row pgx.Row) error {
		return scanEmail(row, &d.Email, &m.HTML, &m.Text, &d.attempts, &d.now, &d.openWorker)
	})
	batch.Queue(sqlLoadAttachments, id).Query(func(rows pgx.Rows) error {
		var err error
		m.Attachments, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Attachment])
		return err
	})
	err := pool.SendBatch(ctx, &batch).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("load email: %w", err)
	}
	return d, nil
}

// due is when the next attempt may begin.
func (d *delivery) due() time.Time {
	if d.NextAttemptAt.After(d.Message.ScheduledAt) {
		return d.NextAttemptAt
	}
	return d.Message.ScheduledAt
}

func (d *delivery) expired() bool {
	return !d.Message.ExpiresAt.IsZero() && !d.Message.ExpiresAt.After(d.now)
}

// giveUpAt is when an email that nobody accepted fails.
func (d *delivery) giveUpAt(after time.Duration) time.Time {
	start := d.CreatedAt
	if d.Message.ScheduledAt.After(start) {
		start = d.Message.ScheduledAt
	}
	return start.Add(after)
}
