package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

var (
	// ErrNotCancelable means that an attempt has begun or that the email has
	// ended.
	ErrNotCancelable = errors.New("the email can no longer be canceled")

	// ErrNotScheduled means that the email is not waiting for its time.
	ErrNotScheduled = errors.New("the email is not scheduled")
)

// sqlCancel competes with begin for the email's row: whoever comes first
// takes it out of the waiting statuses, and the other changes nothing.
const sqlCancel = `
UPDATE outbox.emails SET status = 'canceled', next_attempt_at = NULL, ended_at = now()
WHERE id = $1 AND org_id = $2 AND attempts = 0 AND status IN ('queued', 'scheduled')`

const sqlGetStatus = `SELECT status FROM outbox.emails WHERE id = $1 AND org_id = $2`

// Cancel withdraws an email that no attempt has begun for. Canceling it again
// is no error. It returns [ErrNotFound] or [ErrNotCancelable].
func (c *Client) Cancel(ctx context.Context, org, id uuid.UUID) error {
	tag, err := c.as(org).Exec(ctx, sqlCancel, id, org)
	if err != nil {
		return fmt.Errorf("cancel email: %w", err)
	}
	if tag.RowsAffected() == 1 {
		// The job stays: it finds the email canceled and ends.
		return nil
	}
	status, err := c.status(ctx, org, id)
	switch {
	case err != nil:
		return err
	case status != StatusCanceled:
		return ErrNotCancelable
	}
	return nil
}

func (c *Client) status(ctx context.Context, org, id uuid.UUID) (Status, error) {
	var status Status
	err := c.as(org).QueryRow(ctx, scan(&status), sqlGetStatus, id, org)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("read status: %w", err)
	}
	return status, nil
}

const sqlReschedule = `
UPDATE outbox.emails e SET scheduled_at = $3
FROM (SELECT id, scheduled_at AS before FROM outbox.emails WHERE id = $1 AND org_id = $2 FOR UPDATE) old
WHERE e.id = old.id AND e.status = 'scheduled' AND e.attempts = 0 AND (e.expires_at IS NULL OR e.expires_at > $3)
RETURNING $3 < old.before, e.priority`

// Reschedule moves a scheduled email to another time. It returns [ErrNotFound],
// [ErrNotScheduled] or a *[ValidationError].
func (c *Client) Reschedule(ctx context.Context, org, id uuid.UUID, at time.Time) error {
	if at.IsZero() {
		return &ValidationError{Fields: []FieldError{{Field: "scheduled_at", Message: "is required"}}}
	}
	if err := (&Message{ScheduledAt: at}).validateTimes(time.Now()); err != nil {
		return err
	}
	err := c.as(org).Begin(ctx, func(tx pgx.Tx) error {
		var earlier bool
		var priority int16
		if err := tx.QueryRow(ctx, sqlReschedule, id, org, at).Scan(&earlier, &priority); err != nil {
			return err
		}
		if !earlier {
			return nil // the job comes at the old time and waits on
		}
		// The old job comes too late. A second one does no harm: what is to be
		// done is decided by the email, not by a job.
		m := Message{ScheduledAt: at, Priority: priorityOf(priority)}
		return c.insertJobs(ctx, tx, []emailRow{{org: org, accepted: &accepted{id: id, message: &m, metadata: jobMetadata(ctx)}}})
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return c.whyNotRescheduled(ctx, org, id)
	}
	if err != nil {
		return fmt.Errorf("reschedule email: %w", err)
	}
	return nil
}

func (c *Client) whyNotRescheduled(ctx context.Context, org, id uuid.UUID) error {
	switch status, err := c.status(ctx, org, id); {
	case err != nil:
		return err
	case status == StatusScheduled:
		return &ValidationError{Fields: []FieldError{{Field: "scheduled_at", Message: "is not before expires_at"}}}
	}
	return ErrNotScheduled
}
