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

// A paused org sends nothing: no attempt begins, and none is sent again, from the
// commit of the pause on; what has begun by then may still leave. Its emails wait
// without an attempt, or expire, and submissions are refused unless they are replays.
// A deleted org ends, see org_delete.go.

// ErrOrgPaused means that the org is paused and that the submission is not a
// replay. Nothing of it was stored and its key is free.
var ErrOrgPaused = errors.New("the org is paused")

// ErrNoOrg means that there is no org of that name.
var ErrNoOrg = errors.New("no such org")

// reasonOrgPaused is why an email of a paused org waits.
const reasonOrgPaused = "org_paused"

// stoppedSQL is the condition that nothing of an email's org is to be sent. It is
// asked in the statement that begins an attempt, or sends one again: since the
// email was loaded it may have waited for its turn, or for a relay.
const stoppedSQL = `EXISTS (
            SELECT FROM outbox.orgs o WHERE o.id = e.org_id AND (o.paused_at IS NOT NULL OR o.deleted_at IS NOT NULL))`

// OrgState says what an org may do.
type OrgState string

// The states of an org.
const (
	OrgActive   OrgState = "active"
	OrgPaused   OrgState = "paused"
	OrgDeleting OrgState = "deleting" // its emails end, then it is gone
)

// OrgInfo is what an operator sees of an org.
type OrgInfo struct {
	ID    uuid.UUID
	Name  string
	State OrgState
	// PausedReason is why it is paused, if somebody said so.
	PausedReason string
	FromDomains  []string
	CreatedAt    time.Time
	// ContentRetention is how long content is kept after an email's end;
	// [KeepContent]: as long as the email. Nil: the installation's.
	ContentRetention *time.Duration
	// Waiting are its emails that have not ended, those in doubt among them.
	Waiting, InDoubt int
}

// The waiting emails are few beside those that are stored: emails_open has them.
const sqlListOrgs = `
SELECT o.id, o.name, CASE WHEN o.deleted_at IS NOT NULL THEN 'deleting' WHEN o.paused_at IS NOT NULL THEN 'paused' ELSE 'active' END,
    coalesce(o.paused_reason, ''), o.from_domains, o.created_at,
    CASE WHEN o.keep_content THEN interval '-1 second' ELSE o.content_retention END, coalesce(w.waiting, 0), coalesce(w.in_doubt, 0)
FROM outbox.orgs o LEFT JOIN (
    SELECT e.org_id, count(*) AS waiting, count(*) FILTER (WHERE e.status = 'unknown') AS in_doubt
    FROM outbox.emails e WHERE e.ended_at IS NULL GROUP BY e.org_id
) w ON w.org_id = o.id
WHERE o.deleted_at IS NULL OR o.name <> ` + tombstoneSQL + `
ORDER BY o.name`

// ListOrgs returns all orgs, by name.
func ListOrgs(ctx context.Context, pool *pgxpool.Pool) ([]OrgInfo, error) {
	var orgs []OrgInfo
	if err := AcrossOrgs(pool).Query(ctx, collect(&orgs, pgx.RowToStructByPos[OrgInfo]), sqlListOrgs); err != nil {
		return nil, fmt.Errorf("list orgs: %w", err)
	}
	return orgs, nil
}

const sqlPauseOrg = `
UPDATE outbox.orgs SET paused_at = coalesce(paused_at, now()), paused_reason = coalesce(nullif($2, ''), paused_reason)
WHERE name = $1 AND deleted_at IS NULL`

// PauseOrg lets an org send nothing until [Client.ResumeOrg]. The reason is for
// other operators and may be empty. Pausing a paused org is no error.
func PauseOrg(ctx context.Context, pool *pgxpool.Pool, name, reason string) error {
	tag, err := pool.Exec(ctx, sqlPauseOrg, name, reason)
	if err != nil {
		return fmt.Errorf("pause org: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%w: %q", ErrNoOrg, name)
	}
	return nil
}

const (
	sqlResumeOrg = `
UPDATE outbox.orgs SET paused_at = NULL, paused_reason = NULL,
    resumed_at = CASE WHEN paused_at IS NULL THEN resumed_at ELSE now() END
WHERE name = $1 AND deleted_at IS NULL
RETURNING id`

	// sqlWakePaused goes by emails_org_id_phase_id. Nothing is added to what it
	// finds: workers hold an email under a lock on the org's row, and the org is
	// not paused any more.
	sqlWakePaused = `
WITH chosen AS (
    SELECT e.id FROM outbox.emails e
    WHERE e.id > $1 AND e.org_id = $2 AND e.phase = $3 AND e.reason = '` + reasonOrgPaused + `'
    ORDER BY e.id LIMIT $4 FOR UPDATE
)
UPDATE outbox.emails e
SET next_attempt_at = NULL, reason = CASE WHEN e.status = 'unknown' THEN '` + reasonInDoubt + `' END
FROM chosen c WHERE e.id = c.id
RETURNING e.id, e.org_id, e.priority, e.scheduled_at, true`
)

// ResumeOrg ends the pause of an org and has its emails sent, which takes a moment
// for many: progress is called with the number so far after each batch, and the
// number is returned. Resuming an org that is not paused wakes what an earlier call
// that was cut off did not.
func (c *Client) ResumeOrg(ctx context.Context, name string, progress func(int)) (int, error) {
	var org uuid.UUID
	err := c.pool.QueryRow(ctx, sqlResumeOrg, name).Scan(&org)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("%w: %q", ErrNoOrg, name)
	}
	if err != nil {
		return 0, fmt.Errorf("resume org: %w", err)
	}
	var total int
	for _, status := range []Status{StatusQueued, StatusScheduled, StatusUnknown} {
		n, err := c.inBatches(ctx, progress, func(tx pgx.Tx, after uuid.UUID) (uuid.UUID, int, error) {
			rows, err := tx.Query(ctx, sqlWakePaused, after, org, string(status), heldBatch)
			if err != nil {
				return after, 0, err
			}
			return c.wake(ctx, tx, rows, after)
		})
		if total += n; err != nil {
			return total, fmt.Errorf("resume org: %w", err)
		}
	}
	return total, nil
}
