package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What a person does about the emails that came with a restored or copied
// database: release them, cancel them, or declare the database the original.

// heldBatch is how many emails are released or canceled in one transaction.
const heldBatch = 500

// Held is what an org has waiting for a person.
type Held struct {
	// Org is the org's name; empty: the org is gone.
	Org string `json:"org"`
	// Emails are not over, and Messages are those to the org's webhooks.
	Emails   int `json:"emails"`
	Messages int `json:"webhook_messages"`
	// Oldest and Newest are when the first and the last of the emails was due.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
}

// HeldScope says which of the held emails are meant. The zero value: all.
type HeldScope struct {
	// Org is one org; zero: all.
	Org uuid.UUID
	// YoungerThan and OlderThan bound the age of emails, counted from when they
	// were due. Zero: no bound.
	YoungerThan, OlderThan time.Duration
}

// heldDueSQL is what the age of a held email is counted from.
const heldDueSQL = `greatest(e.created_at, e.scheduled_at)`

// heldScopeSQL is a HeldScope, in parameters 2 to 4 of statements.
const heldScopeSQL = heldSQL + ` AND ($2::uuid IS NULL OR e.org_id = $2)
        AND ($3::interval IS NULL OR ` + heldDueSQL + ` > now() - $3)
        AND ($4::interval IS NULL OR ` + heldDueSQL + ` <= now() - $4)`

func (s HeldScope) args() []any {
	return []any{nullable(s.Org), nullable(s.YoungerThan), nullable(s.OlderThan)}
}

const sqlListHeld = `
SELECT coalesce(max(o.name), ''), sum(h.emails), sum(h.messages), min(h.oldest), max(h.newest)
FROM (
    SELECT e.org_id, count(*) AS emails, 0 AS messages, min(` + heldDueSQL + `) AS oldest, max(` + heldDueSQL + `) AS newest
    FROM outbox.emails e WHERE e.ended_at IS NULL AND ` + heldSQL + ` GROUP BY e.org_id
    UNION ALL
    SELECT e.org_id, 0, count(*), NULL, NULL
    FROM outbox.webhook_messages m JOIN outbox.emails e ON e.id = m.email_id
    WHERE m.delivered_at IS NULL AND m.failed_at IS NULL AND ` + heldSQL + ` GROUP BY e.org_id
) h LEFT JOIN outbox.orgs o ON o.id = h.org_id
GROUP BY h.org_id ORDER BY 1`

// ListHeld returns what waits for a person, by org.
func ListHeld(ctx context.Context, pool *pgxpool.Pool) ([]Held, error) {
	rows, err := pool.Query(ctx, sqlListHeld)
	if err != nil {
		return nil, fmt.Errorf("list held emails: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h Held, err error) {
		var oldest, newest *time.Time
		err = row.Scan(&h.Org, &h.Emails, &h.Messages, &oldest, &newest)
		h.Oldest, h.Newest = timeOf(oldest), timeOf(newest)
		return h, err
	})
	if err != nil {
		return nil, fmt.Errorf("list held emails: %w", err)
	}
	return list, nil
}

// releasedAtSQL is past held_before, which may be a little ahead of the clock.
const releasedAtSQL = `(SELECT greatest(clock_timestamp(), i.held_before) FROM outbox.installation i)`

const (
	// sqlRelease competes with sqlHold for the email's row: whoever holds it after
	// this finds that it is released. Emails that no worker has looked at have a job
	// that comes for them.
	sqlRelease = `
WITH chosen AS (
    SELECT e.id, e.reason IS NOT DISTINCT FROM '` + reasonRestored + `' AS waits FROM outbox.emails e
    WHERE e.id > $1 AND e.ended_at IS NULL AND ` + heldScopeSQL + `
    ORDER BY e.id LIMIT $5 FOR UPDATE
)
UPDATE outbox.emails e
SET released_at = ` + releasedAtSQL + `, next_attempt_at = CASE WHEN NOT c.waits THEN e.next_attempt_at END,
    reason = CASE WHEN NOT c.waits THEN e.reason WHEN e.status = 'unknown' THEN '` + reasonInDoubt + `' END
FROM chosen c WHERE e.id = c.id
RETURNING e.id, e.org_id, e.priority, e.scheduled_at, c.waits`

	// sqlReleaseMessages is for emails that are over, and whose webhooks are not
	// told yet.
	sqlReleaseMessages = `
UPDATE outbox.emails e SET released_at = ` + releasedAtSQL + `
WHERE e.id IN (
    SELECT e.id FROM outbox.emails e
    WHERE e.id > $1 AND e.ended_at IS NOT NULL AND ` + heldScopeSQL + ` AND e.id IN (
        SELECT m.email_id FROM outbox.webhook_messages m WHERE m.delivered_at IS NULL AND m.failed_at IS NULL)
    ORDER BY e.id LIMIT $5 FOR UPDATE)`
)

// Release lets held emails be sent, and the webhooks be told of them. Each may be
// attempted, or be in doubt, as any other from then on. It calls progress with the
// number so far after each batch, and returns how many emails it released.
func (c *Client) Release(ctx context.Context, scope HeldScope, progress func(int)) (int, error) {
	total, err := c.inBatches(ctx, progress, func(tx pgx.Tx, after uuid.UUID) (uuid.UUID, int, error) {
		return c.releaseBatch(ctx, tx, scope, after)
	})
	if err != nil {
		return total, fmt.Errorf("release held emails: %w", err)
	}
	_, err = c.inBatches(ctx, nil, func(tx pgx.Tx, _ uuid.UUID) (uuid.UUID, int, error) {
		tag, err := tx.Exec(ctx, sqlReleaseMessages, append(append([]any{uuid.Nil}, scope.args()...), heldBatch)...)
		return uuid.Nil, int(tag.RowsAffected()), err
	})
	if err != nil {
		return total, fmt.Errorf("release held webhook messages: %w", err)
	}
	return total, nil
}

// inBatches runs a step, each time in a transaction of its own and after the email
// that it ended with, until one has less than a batch.
func (c *Client) inBatches(ctx context.Context, progress func(int),
	step func(tx pgx.Tx, after uuid.UUID) (last uuid.UUID, n int, err error),
) (total int, err error) {
	for after, n := uuid.Nil, heldBatch; n == heldBatch; {
		err := pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			after, n, err = step(tx, after)
			return err
		})
		if err != nil {
			return total, err
		}
		if total += n; progress != nil && n > 0 {
			progress(total)
		}
	}
	return total, nil
}

func (c *Client) releaseBatch(ctx context.Context, tx pgx.Tx, scope HeldScope, after uuid.UUID) (uuid.UUID, int, error) {
	rows, err := tx.Query(ctx, sqlRelease, append(append([]any{after}, scope.args()...), heldBatch)...)
	if err != nil {
		return after, 0, err
	}
	return c.wake(ctx, tx, rows, after)
}

// wake gives jobs to the emails of which the rows say that they wait for a time far
// ahead. It returns the last of all the rows' ids, and their number.
func (c *Client) wake(ctx context.Context, tx pgx.Tx, rows pgx.Rows, after uuid.UUID) (last uuid.UUID, n int, err error) {
	last = after
	var idle []emailRow
	var id, org uuid.UUID
	var priority int16
	var scheduled *time.Time
	var waits bool
	_, err = pgx.ForEachRow(rows, []any{&id, &org, &priority, &scheduled, &waits}, func() error {
		n, last = n+1, later(last, id)
		if waits {
			m := &Message{Priority: priorityOf(priority), ScheduledAt: timeOf(scheduled)}
			idle = append(idle, emailRow{org: org, accepted: &accepted{id: id, message: m}})
		}
		return nil
	})
	if err != nil || len(idle) == 0 {
		return last, n, err
	}
	return last, n, c.insertJobs(ctx, tx, idle)
}

// later returns the greater of two ids.
func later(a, b uuid.UUID) uuid.UUID {
	if string(a[:]) < string(b[:]) {
		return b
	}
	return a
}

const (
	// sqlCancelHeld ends emails. One that may have been accepted is not canceled:
	// its doubt ends as the policy drop ends it. One that a worker has not looked at
	// since its own was gone is left for the next time.
	sqlCancelHeld = `
WITH chosen AS (
    SELECT e.id FROM outbox.emails e
    WHERE e.id > $1 AND e.ended_at IS NULL AND e.status <> 'sending' AND ` + heldScopeSQL + `
    ORDER BY e.id LIMIT $5 FOR UPDATE
)` + endChosenSQL + `'` + reasonRestored + `' END, reason_detail = $6` + fromJudgedSQL + `
RETURNING e.id`

	// endChosenSQL ends the emails of chosen, for a reason that follows: canceled or,
	// if one may have been accepted, as the policy drop ends a doubt.
	endChosenSQL = `, closed AS (
    UPDATE outbox.attempts a SET stage = 'unknown', evidence = 'policy', ended_at = now()
    FROM chosen c WHERE a.email_id = c.id AND a.stage = 'sending'
    RETURNING a.email_id
), judged AS (
    SELECT e.id, EXISTS (SELECT FROM closed WHERE email_id = e.id) OR ` + hasUnknownSQL + ` AS doubtful FROM chosen e
)
UPDATE outbox.emails e
SET status = CASE WHEN j.doubtful THEN 'failed' ELSE 'canceled' END, next_attempt_at = NULL, ended_at = now(),
    reason = CASE WHEN j.doubtful THEN '` + reasonUnknown + `' ELSE `

	fromJudgedSQL = `
FROM judged j WHERE e.id = j.id`

	sqlCancelHeldMessages = `
UPDATE outbox.webhook_messages SET failed_at = now(), last_error = '` + reasonRestored + `'
WHERE id IN (
    SELECT m.id FROM outbox.webhook_messages m JOIN outbox.emails e ON e.id = m.email_id
    WHERE m.id > $1 AND m.delivered_at IS NULL AND m.failed_at IS NULL AND e.status <> 'sending' AND ` + heldScopeSQL + `
    ORDER BY m.id LIMIT $5 FOR UPDATE OF m)`
)

// CancelHeld ends held emails without sending them, as canceled or, if one may have
// been sent, as failed with the reason outcome_unknown. The orgs' webhooks are not
// told: what is true of these emails is in the original. who is kept with them.
// The rest is as with [Client.Release].
func (c *Client) CancelHeld(ctx context.Context, scope HeldScope, who string, progress func(int)) (int, error) {
	total, err := c.inBatches(ctx, progress, func(tx pgx.Tx, after uuid.UUID) (last uuid.UUID, n int, err error) {
		rows, err := tx.Query(ctx, sqlCancelHeld, append(append([]any{after}, scope.args()...), heldBatch, "by "+who)...)
		if err != nil {
			return after, 0, err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		for last = after; n < len(ids); n++ {
			last = later(last, ids[n])
		}
		return last, n, err
	})
	if err != nil {
		return total, fmt.Errorf("cancel held emails: %w", err)
	}
	_, err = c.inBatches(ctx, nil, func(tx pgx.Tx, _ uuid.UUID) (uuid.UUID, int, error) {
		tag, err := tx.Exec(ctx, sqlCancelHeldMessages, append(append([]any{uuid.Nil}, scope.args()...), heldBatch)...)
		return uuid.Nil, int(tag.RowsAffected()), err
	})
	if err != nil {
		return total, fmt.Errorf("cancel held webhook messages: %w", err)
	}
	return total, nil
}

const (
	sqlAnyHeld = `
SELECT EXISTS (SELECT FROM outbox.emails e WHERE e.ended_at IS NULL AND ` + heldSQL + `) OR EXISTS (
    SELECT FROM outbox.webhook_messages m JOIN outbox.emails e ON e.id = m.email_id
    WHERE m.delivered_at IS NULL AND m.failed_at IS NULL AND ` + heldSQL + `)`

	sqlAdoptInstallation = `
INSERT INTO outbox.installation AS i (name, system_identifier, database_oid, database_name)
VALUES (nullif($1, ''), $2, $3, $4)
ON CONFLICT (single) DO UPDATE
SET name = excluded.name, system_identifier = excluded.system_identifier, database_oid = excluded.database_oid,
    database_name = excluded.database_name, recorded_at = now(), held_before = NULL, held_because = NULL`
)

// EndHold records this database as the one of the installation of that name, if
// nothing is held any more. It reports whether it did.
func (c *Client) EndHold(ctx context.Context, name string) (ended bool, err error) {
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		here, err := readIdentity(ctx, tx, name)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlLockInstallation); err != nil {
			return err
		}
		var held bool
		if err := tx.QueryRow(ctx, sqlAnyHeld).Scan(&held); err != nil || held {
			return err
		}
		ended = true
		_, err = tx.Exec(ctx, sqlAdoptInstallation, here.Name, here.System, here.OID, here.Database)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("record the installation: %w", err)
	}
	return ended, nil
}
