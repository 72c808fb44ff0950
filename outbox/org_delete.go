package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
)

// An org is deleted in steps, so that no transaction is long and nothing vanishes
// under a running send. First it is marked: its keys are void and no attempt begins.
// Then its emails end, those under way by themselves. Ended ones go with all that
// hangs on them, at last the rest. Whoever is cut off is followed by the workers,
// who look for marked orgs regularly.
//
// The row stays for a while, under a name that frees the old one: a transaction that
// was open all the time may commit an email yet, which then ends like the others.

const (
	// reasonOrgDeleted is why an email of a deleted org was canceled.
	reasonOrgDeleted = "org_deleted"
	// tombstoneSQL is the name of an org of which only the row is left.
	tombstoneSQL = `'deleted:' || o.id`
	// tombstoneAge is longer than any transaction should be open.
	tombstoneAge = "30 days"
	purgeOrgStep = 500
)

const sqlMarkOrgDeleted = `
UPDATE outbox.orgs SET deleted_at = coalesce(deleted_at, now()) WHERE name = $1 RETURNING id`

// DeleteOrg marks an org: from then on its API keys are void, its submissions are
// refused and no attempt of its emails begins. [Client.PurgeOrg] does the rest.
// Deleting it again is no error as long as it is not gone.
func DeleteOrg(ctx context.Context, pool *pgxpool.Pool, name string) (id uuid.UUID, err error) {
	err = pool.QueryRow(ctx, sqlMarkOrgDeleted, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return id, fmt.Errorf("%w: %q", ErrNoOrg, name)
	}
	if err != nil {
		return id, fmt.Errorf("delete org: %w", err)
	}
	return id, nil
}

const (
	// sqlEndOfOrg ends emails of a status, except those that a worker may be sending.
	sqlEndOfOrg = `
WITH chosen AS (
    SELECT e.id FROM outbox.emails e WHERE e.org_id = $1 AND e.phase = $2 AND e.status = $2 ORDER BY e.id LIMIT $3 FOR UPDATE
)` + endChosenSQL + `'` + reasonOrgDeleted + `' END` + fromJudgedSQL

	// sqlEndWithOrg ends one that nobody is sending.
	sqlEndWithOrg = `
WITH chosen AS (
    SELECT e.id FROM outbox.emails e WHERE e.id = $1 AND e.attempts = $2 AND e.ended_at IS NULL FOR UPDATE
)` + endChosenSQL + `'` + reasonOrgDeleted + `' END` + fromJudgedSQL

	// sqlDeleteEmailsOfOrg leaves one whose last attempt is not closed: a worker may
	// be about to.
	sqlDeleteEmailsOfOrg = `
WITH gone AS (
    DELETE FROM outbox.emails WHERE id IN (
        SELECT e.id FROM outbox.emails e
        WHERE e.org_id = $1 AND e.ended_at IS NOT NULL
            AND NOT EXISTS (SELECT FROM outbox.attempts a WHERE a.email_id = e.id AND a.stage = 'sending')
        ORDER BY e.id LIMIT $2)
    RETURNING id
), terms AS (
    DELETE FROM outbox.email_terms t USING gone g WHERE t.email_id = g.id
), jobs AS (
    DELETE FROM outbox.river_job j USING gone g
    WHERE j.args ->> 'email_id' = g.id::text AND j.kind = 'deliver_email' AND j.state <> 'running'
)
SELECT count(*) FROM gone`

	sqlCountOfOrg = `SELECT count(*) FROM outbox.emails WHERE org_id = $1`

	sqlDeleteMessagesOfOrg = `
DELETE FROM outbox.webhook_messages WHERE id IN (
    SELECT m.id FROM outbox.webhooks w JOIN outbox.webhook_messages m ON m.webhook_id = w.id
    WHERE w.org_id = $1 LIMIT $2)`

	// A message that is written in this moment is removed by the keeper of webhooks.
	sqlDeleteWebhooksOfOrg = `DELETE FROM outbox.webhooks WHERE org_id = $1`

	sqlDeleteIdempotencyKeysOfOrg = `
DELETE FROM outbox.idempotency_keys WHERE ctid = ANY (ARRAY(
    SELECT k.ctid FROM outbox.idempotency_keys k WHERE k.org_id = $1 LIMIT $2))`

	sqlDeleteSuppressionsOfOrg = `
DELETE FROM outbox.suppressions WHERE ctid = ANY (ARRAY(
    SELECT s.ctid FROM outbox.suppressions s WHERE s.org_id = $1 LIMIT $2))`

	sqlBuryOrg = `
WITH keys AS (DELETE FROM outbox.api_keys WHERE org_id = $1)
UPDATE outbox.orgs o SET name = ` + tombstoneSQL + `, from_domains = '{}', paused_reason = NULL WHERE o.id = $1`
)

// PurgeOrg removes what it can of an org that was deleted, in short transactions,
// and returns how many emails are left: those that are being sent, which end by
// themselves. With none left, only a row is that shows nothing of the org, and the
// name is free. progress is called with the number of removed emails so far.
func (c *Client) PurgeOrg(ctx context.Context, org uuid.UUID, progress func(int)) (left int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("purge org: %w", err)
		}
	}()
	// Nobody is told of what only ends because its org does.
	if _, err := inSteps(ctx, c.pool, purgeOrgStep, sqlDeleteMessagesOfOrg, org); err != nil {
		return 0, err
	}
	if _, err := c.pool.Exec(ctx, sqlDeleteWebhooksOfOrg, org); err != nil {
		return 0, err
	}
	for _, status := range []Status{StatusScheduled, StatusQueued, StatusUnknown} {
		if _, err := inSteps(ctx, c.pool, purgeOrgStep, sqlEndOfOrg, org, string(status)); err != nil {
			return 0, err
		}
	}
	if err := c.deleteEmails(ctx, org, progress); err != nil {
		return 0, err
	}
	if err := c.pool.QueryRow(ctx, sqlCountOfOrg, org).Scan(&left); err != nil || left > 0 {
		return left, err
	}
	for _, sql := range []string{sqlDeleteIdempotencyKeysOfOrg, sqlDeleteSuppressionsOfOrg} {
		if _, err := inSteps(ctx, c.pool, purgeOrgStep, sql, org); err != nil {
			return 0, err
		}
	}
	_, err = c.pool.Exec(ctx, sqlBuryOrg, org)
	return 0, err
}

func (c *Client) deleteEmails(ctx context.Context, org uuid.UUID, progress func(int)) error {
	var total int
	for n := purgeOrgStep; n == purgeOrgStep; {
		if err := c.pool.QueryRow(ctx, sqlDeleteEmailsOfOrg, org, purgeOrgStep).Scan(&n); err != nil {
			return err
		}
		if total += n; progress != nil && n > 0 {
			progress(total)
		}
	}
	return nil
}

// endWithOrg ends an email of an org that is being deleted. One that may have been
// accepted ends as the policy drop ends it; nothing is asked of a provider.
func (d *deliverer) endWithOrg(ctx context.Context, e *delivery) (time.Duration, error) {
	if e.open != nil {
		busy, _, err := d.busy(ctx, e)
		if err != nil || busy > 0 {
			return busy, err
		}
		if e.open.Reported {
			return 0, d.settleReported(ctx, e)
		}
	}
	if _, err := d.pool.Exec(ctx, sqlEndWithOrg, e.ID, e.attempts); err != nil {
		return 0, fmt.Errorf("end email of a deleted org: %w", err)
	}
	return 0, nil
}

type purgeOrgsArgs struct{ chore }

// Kind names the job in River.
func (purgeOrgsArgs) Kind() string { return "purge_deleted_orgs" }

type purgeOrgsWorker struct {
	river.WorkerDefaults[purgeOrgsArgs]
	client *Client
	log    *slog.Logger
}

const (
	sqlDeletedOrgs = `SELECT id FROM outbox.orgs WHERE deleted_at IS NOT NULL ORDER BY deleted_at`

	sqlDropTombstones = `
DELETE FROM outbox.orgs o
WHERE o.name = ` + tombstoneSQL + ` AND o.deleted_at < now() - interval '` + tombstoneAge + `'
    AND NOT EXISTS (SELECT FROM outbox.emails e WHERE e.org_id = o.id)`
)

// Work runs one job.
func (w *purgeOrgsWorker) Work(ctx context.Context, _ *river.Job[purgeOrgsArgs]) error {
	rows, err := w.client.pool.Query(ctx, sqlDeletedOrgs)
	if err != nil {
		return fmt.Errorf("find deleted orgs: %w", err)
	}
	orgs, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("find deleted orgs: %w", err)
	}
	for _, org := range orgs {
		left, err := w.client.PurgeOrg(ctx, org, nil)
		if err != nil {
			return err
		}
		if left > 0 {
			w.log.InfoContext(ctx, "a deleted org has emails that are being sent", "org", org, "count", left)
		}
	}
	if _, err := w.client.pool.Exec(ctx, sqlDropTombstones); err != nil {
		return fmt.Errorf("drop rows of deleted orgs: %w", err)
	}
	return nil
}
