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
	// ErrNotUnknown means that the email is not in doubt.
	ErrNotUnknown = errors.New("the email is not in doubt")

	// ErrNotFailed means that the email has not failed.
	ErrNotFailed = errors.New("the email has not failed")

	// ErrContentPurged means that there is nothing left to send.
	ErrContentPurged = errors.New("the content of the email was removed at the end of its retention")
)

// Outcome is what a person found out about an email in doubt.
type Outcome string

// The outcomes.
const (
	// OutcomeAccepted: the provider has it.
	OutcomeAccepted Outcome = "accepted"
	// OutcomeNotAccepted: the provider does not have it, so another attempt
	// cannot make it arrive twice.
	OutcomeNotAccepted Outcome = "not_accepted"
)

// sqlResolve ends the open attempt of an email in doubt. An attempt that its
// worker may still be sending is not in doubt.
const sqlResolve = `
WITH closed AS (
    UPDATE outbox.attempts a
    SET stage = CASE WHEN $3 = 'accepted' THEN 'accepted' ELSE 'deferred' END, evidence = 'person', ended_at = now()
    FROM outbox.emails e
    WHERE e.id = $1 AND e.org_id = $2 AND e.status = 'unknown'
        AND a.email_id = e.id AND a.stage = 'sending' AND a.in_doubt_at IS NOT NULL
    RETURNING a.email_id
)
UPDATE outbox.emails e
SET status = CASE WHEN $3 = 'accepted' THEN ` + acceptedSQL + ` ELSE 'queued' END, reason = NULL, reason_detail = NULL,
    next_attempt_at = NULL, ended_at = CASE WHEN $3 = 'accepted' THEN now() END, released_at = ` + vouchedSQL + `
FROM closed c WHERE e.id = c.email_id
RETURNING e.priority`

// Resolve records what a person found out about an email in doubt, and who it
// was. An email that was not accepted gets one more attempt, which does not
// count as a possible duplicate: the person vouches. It returns [ErrNotFound],
// [ErrNotUnknown] or a *[ValidationError].
func (c *Client) Resolve(ctx context.Context, org, id uuid.UUID, outcome Outcome, who string) error {
	if outcome != OutcomeAccepted && outcome != OutcomeNotAccepted {
		return &ValidationError{Fields: []FieldError{{Field: "outcome", Message: "must be accepted or not_accepted"}}}
	}
	err := c.intervene(ctx, org, id, intervention{
		sql: sqlResolve, args: []any{string(outcome)}, refusal: ErrNotUnknown,
		event: "resolved", detail: string(outcome) + " by " + who, needsJob: outcome == OutcomeNotAccepted,
	})
	if err == nil {
		c.cfg.Metrics.settled(EvidencePerson, 1)
	}
	return err
}

const sqlRetry = `
UPDATE outbox.emails e
SET status = 'queued', reason = NULL, reason_detail = NULL, next_attempt_at = NULL, ended_at = NULL,
    released_at = ` + vouchedSQL + `
WHERE id = $1 AND org_id = $2 AND status = 'failed' AND content_purged_at IS NULL
RETURNING priority`

const sqlIsPurged = `
SELECT status = 'failed' AND content_purged_at IS NOT NULL FROM outbox.emails WHERE id = $1 AND org_id = $2`

// Retry gives a failed email one more attempt. It returns [ErrNotFound],
// [ErrNotFailed] or [ErrContentPurged].
func (c *Client) Retry(ctx context.Context, org, id uuid.UUID, who string) error {
	err := c.intervene(ctx, org, id, intervention{
		sql: sqlRetry, refusal: ErrNotFailed, event: "retried", detail: "by " + who, needsJob: true,
	})
	if !errors.Is(err, ErrNotFailed) {
		return err
	}
	var purged bool
	if err := c.as(org).QueryRow(ctx, scan(&purged), sqlIsPurged, id, org); err != nil {
		return fmt.Errorf("retry: %w", err)
	}
	if purged {
		return ErrContentPurged
	}
	return err
}

const sqlCancelBy = sqlCancel + ` RETURNING priority`

// CancelBy is [Client.Cancel] by somebody who is not the sender, and is kept with the
// email.
func (c *Client) CancelBy(ctx context.Context, org, id uuid.UUID, who string) error {
	err := c.intervene(ctx, org, id, intervention{
		sql: sqlCancelBy, refusal: ErrNotCancelable, event: string(StatusCanceled), detail: "by " + who,
	})
	if errors.Is(err, ErrNotCancelable) {
		if status, statusErr := c.status(ctx, org, id); statusErr == nil && status == StatusCanceled {
			return nil
		}
	}
	return err
}

// intervention is a change that a person makes to an email.
type intervention struct {
	sql           string // returns the priority of the email that it changed
	args          []any  // after the id and the org
	refusal       error  // why it changed none
	event, detail string
	needsJob      bool
}

const sqlInsertEvent = `
INSERT INTO outbox.events (id, email_id, type, detail, occurred_at) VALUES ($1, $2, $3, $4, now())`

func (c *Client) intervene(ctx context.Context, org, id uuid.UUID, change intervention) error {
	err := c.as(org).Begin(ctx, func(tx pgx.Tx) error {
		var priority int16
		if err := tx.QueryRow(ctx, change.sql, append([]any{id, org}, change.args...)...).Scan(&priority); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlInsertEvent, newID(), id, change.event, change.detail); err != nil {
			return err
		}
		if !change.needsJob {
			return nil
		}
		m := Message{Priority: priorityOf(priority)}
		return c.insertJobs(ctx, tx, []emailRow{{org: org, accepted: &accepted{id: id, message: &m, metadata: jobMetadata(ctx)}}})
	})
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := c.status(ctx, org, id); err != nil {
			return err
		}
		return change.refusal
	}
	if err != nil {
		return fmt.Errorf("%s: %w", change.event, err)
	}
	return nil
}

// Event is what happened to an email besides its attempts.
type Event struct {
	ID         uuid.UUID
	Type       string
	Provider   string
	Recipient  string
	Detail     string
	OccurredAt time.Time
	ReceivedAt time.Time
}

const sqlGetEvents = `
SELECT id, type, coalesce(provider, ''), coalesce(recipient, ''), coalesce(detail, ''), occurred_at, received_at
FROM outbox.events WHERE email_id = $1 ORDER BY id`

const sqlGetOrg = `SELECT org_id FROM outbox.emails WHERE id = $1`

// OrgOf returns the org of an email, for tools that stand above orgs.
func (c *Client) OrgOf(ctx context.Context, id uuid.UUID) (org uuid.UUID, err error) {
	err = AcrossOrgs(c.pool).QueryRow(ctx, scan(&org), sqlGetOrg, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return org, ErrNotFound
	}
	if err != nil {
		return org, fmt.Errorf("find org: %w", err)
	}
	return org, nil
}
