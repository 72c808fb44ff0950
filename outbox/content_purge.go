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
	"github.com/riverqueue/river/rivertype"
)

// Some time after the end of an email its content is purged: addresses, subject,
// bodies, attachments, tags, metadata, and what providers wrote about it. The email
// stays with what proves its delivery: attempts, their keys, ids and hashes, the
// types and times of its events. What is learned of it later is stored without
// addresses and texts.
//
// Whoever may have the email sent again, or store something about it, meets the purge
// at the email's row.

const (
	// contentsPage is small: while a batch is purged, the API waits for its locks with
	// events of such emails, half a second at most.
	contentsPage = 100
	contentsTurn = 20 * time.Second
)

const (
	// sqlOrgsWithContents finds the orgs whose content does not stay for ever, and the
	// time that their retention leaves: no email that was submitted later is due. It
	// goes from one org to the next by the index. The order is another each time, so
	// that none waits for the others' emails each time.
	sqlOrgsWithContents = `
WITH RECURSIVE found AS (
    SELECT '00000000-0000-0000-0000-000000000000'::uuid AS org_id -- no org's
    UNION ALL
    SELECT (SELECT c.org_id FROM outbox.email_contents c WHERE c.org_id > f.org_id ORDER BY c.org_id LIMIT 1)
    FROM found f WHERE f.org_id IS NOT NULL
)
SELECT f.org_id, now() - coalesce(o.content_retention, $1::interval)
FROM found f LEFT JOIN outbox.orgs o ON o.id = f.org_id
WHERE f.org_id IS NOT NULL AND NOT coalesce(o.keep_content, false) AND o.deleted_at IS NULL
    AND coalesce(o.content_retention, $1) IS NOT NULL
ORDER BY random()`

	// contentDueSQL is the condition that the content of an email e is to be purged.
	// Whoever owns an open attempt may yet say what became of it, or close it; after a
	// day nobody does. What is left of a deleted org goes altogether.
	contentDueSQL = `e.ended_at < now() - coalesce(o.content_retention, $1::interval) AND NOT coalesce(o.keep_content, false)
    AND o.deleted_at IS NULL AND NOT EXISTS (
        SELECT FROM outbox.attempts a WHERE a.email_id = e.id AND a.stage = 'sending' AND a.deadline > now() - interval '1 day')`

	// sqlPageContents finds the next emails of an org that have content, and how large
	// it is of those that are due. What is purged is passed over no more; what is not
	// due among the oldest ended late, or has not ended.
	sqlPageContents = `
SELECT p.email_id, CASE WHEN ` + contentDueSQL + ` THEN (
    SELECT ` + contentSizeSQL + ` FROM outbox.email_contents c WHERE c.email_id = p.email_id) END
FROM (
    SELECT email_id FROM outbox.email_contents WHERE org_id = $2 AND email_id > $3 AND email_id < $4 ORDER BY email_id LIMIT $5
) p JOIN outbox.emails e ON e.id = p.email_id LEFT JOIN outbox.orgs o ON o.id = e.org_id
ORDER BY p.email_id`

	// sqlLockDue locks out a retry, which finds the email purged afterwards, and
	// whoever stores events of it. An email that was retried meanwhile is not due.
	sqlLockDue = `
SELECT e.id FROM outbox.emails e LEFT JOIN outbox.orgs o ON o.id = e.org_id
WHERE e.id = ANY ($2::uuid[]) AND e.content_purged_at IS NULL AND ` + contentDueSQL + `
ORDER BY e.id FOR UPDATE OF e`
)

const (
	sqlPurgeContents    = `DELETE FROM outbox.email_contents WHERE email_id = ANY ($1::uuid[])`
	sqlPurgeAttachments = `DELETE FROM outbox.attachments WHERE email_id = ANY ($1::uuid[])`
	sqlPurgeEmails      = `UPDATE outbox.emails SET content_purged_at = now(), reason_detail = NULL WHERE id = ANY ($1::uuid[])`

	// sqlPurgeAttempts closes an open attempt of an email that has ended, as its worker
	// would have.
	sqlPurgeAttempts = `
UPDATE outbox.attempts
SET detail = NULL, stage = CASE WHEN stage = 'sending' THEN 'unknown' ELSE stage END,
    evidence = CASE WHEN stage = 'sending' THEN 'policy' ELSE evidence END,
    ended_at = CASE WHEN stage = 'sending' THEN now() ELSE ended_at END
WHERE email_id = ANY ($1::uuid[]) AND (detail IS NOT NULL OR stage = 'sending')`

	// sqlPurgeEvents keeps what we wrote: what a person did, why a recipient was left out.
	sqlPurgeEvents = `
UPDATE outbox.events SET recipient = NULL, purged = true,
    detail = CASE WHEN provider IS NULL AND type IN ('retried', 'resolved', 'suppressed', 'unsubscribed') THEN detail END
WHERE email_id = ANY ($1::uuid[]) AND NOT purged`

	sqlPurgeMessageTexts = `
UPDATE outbox.webhook_messages SET reason_detail = NULL WHERE email_id = ANY ($1::uuid[]) AND reason_detail IS NOT NULL`

	// sqlPurgeSuppressionTexts leaves the addresses, which the org does not send to.
	sqlPurgeSuppressionTexts = `
UPDATE outbox.suppressions SET detail = NULL WHERE email_id = ANY ($1::uuid[]) AND detail IS NOT NULL`
)

// purgeSteps remove what belongs to locked emails. The contents go first: who seals
// them writes search terms while holding them.
var purgeSteps = []string{
	sqlPurgeContents, sqlPurgeAttachments, sqlForgetTerms, sqlPurgeEmails, sqlPurgeAttempts, sqlPurgeEvents,
	sqlPurgeMessageTexts, sqlPurgeSuppressionTexts,
}

const sqlSetContentRetention = `
UPDATE outbox.orgs SET content_retention = $2, keep_content = $3 WHERE name = $1 AND deleted_at IS NULL`

// SetContentRetention sets how long the content of emails of the org of that name is
// kept after their end; [KeepContent]: as long as the emails; nil: as the workers are
// configured. What is due by it is purged within minutes. It returns [ErrNoOrg].
func SetContentRetention(ctx context.Context, pool *pgxpool.Pool, name string, retention *time.Duration) error {
	keep := retention != nil && *retention < 0
	if keep {
		retention = nil
	}
	tag, err := pool.Exec(ctx, sqlSetContentRetention, name, retention, keep)
	if err != nil {
		return fmt.Errorf("set the org's retention: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%w: %q", ErrNoOrg, name)
	}
	return nil
}

// contentPurge purges contents.
type contentPurge struct {
	pool *pgxpool.Pool
	// retention is that of orgs without one of their own; nil: they keep content.
	retention *time.Duration
	// size is how many emails one statement looks at, and one transaction purges at
	// most. sealBytes bounds it too: large contents take long to delete.
	size int
	// turn is how long one job works before the housekeeping that waits behind it has
	// its turn.
	turn time.Duration
}

func newContentPurge(pool *pgxpool.Pool, retention time.Duration) contentPurge {
	p := contentPurge{pool: pool, size: contentsPage, turn: contentsTurn}
	if retention >= 0 {
		p.retention = &retention
	}
	return p
}

// PurgeContents purges the content of emails that ended longer ago than the retention
// of their org, or than this one where the org has none. It works in short
// transactions and returns how many emails it purged. Workers call it regularly.
func PurgeContents(ctx context.Context, pool *pgxpool.Pool, retention time.Duration) (total int, err error) {
	p := newContentPurge(pool, retention)
	for through := false; !through && err == nil; {
		var n int
		n, through, err = p.run(ctx)
		total += n
	}
	return total, err
}

// contentsOf is an org with contents, and the time before which those that are due
// were submitted.
type contentsOf struct {
	Org    uuid.UUID
	Before time.Time
}

// run purges what is due, for one turn. It returns how many emails that was, and
// whether it is through.
func (p contentPurge) run(ctx context.Context) (total int, through bool, err error) {
	end := time.Now().Add(p.turn)
	rows, err := p.pool.Query(ctx, sqlOrgsWithContents, p.retention)
	if err != nil {
		return 0, false, fmt.Errorf("find orgs with contents: %w", err)
	}
	orgs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[contentsOf])
	if err != nil {
		return 0, false, fmt.Errorf("find orgs with contents: %w", err)
	}
	for _, org := range orgs {
		n, through, err := p.runOrg(ctx, org, end)
		if total += n; err != nil {
			return total, false, fmt.Errorf("purge contents: %w", err)
		}
		if !through {
			return total, false, nil
		}
	}
	return total, true, nil
}

// runOrg purges what is due of one org, until the turn ends. A turn purges something or
// is through.
func (p contentPurge) runOrg(ctx context.Context, org contentsOf, end time.Time) (total int, through bool, err error) {
	var after uuid.UUID
	for {
		due, seen, last, err := p.page(ctx, org, after)
		if err != nil {
			return total, false, err
		}
		for batch := range batchesOf(due) {
			n, err := p.purge(ctx, batch)
			if total += n; err != nil {
				return total, false, err
			}
		}
		if seen < p.size {
			return total, true, nil
		}
		// What is not due is passed over in any case: the next turn begins with it.
		if after = last; len(due) > 0 && !time.Now().Before(end) {
			return total, false, nil
		}
	}
}

// page returns those that are due of an org's next emails with content, how many it
// looked at, and the last of them.
func (p contentPurge) page(ctx context.Context, org contentsOf, after uuid.UUID) (due []storedSize, seen int, last uuid.UUID, err error) {
	rows, err := p.pool.Query(ctx, sqlPageContents, p.retention, org.Org, after, firstID(org.Before), p.size)
	if err != nil {
		return nil, 0, last, err
	}
	var size *int64
	_, err = pgx.ForEachRow(rows, []any{&last, &size}, func() error {
		if seen++; size != nil {
			due = append(due, storedSize{last, *size})
		}
		return nil
	})
	return due, seen, last, err
}

// purge purges those of the emails that are still due, in one transaction.
func (p contentPurge) purge(ctx context.Context, emails []uuid.UUID) (n int, err error) {
	purge := func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlLockDue, p.retention, emails)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return err
		}
		n = len(ids)
		var batch pgx.Batch
		for _, sql := range purgeSteps {
			batch.Queue(sql, ids)
		}
		return tx.SendBatch(ctx, &batch).Close()
	}
	for {
		err := pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, purge)
		if isDeadlock(err) {
			continue // with what was learned late of such an email, which has won
		}
		if err != nil {
			return 0, err
		}
		return n, nil
	}
}

type purgeContentsArgs struct{ chore }

// Kind names the job in River.
func (purgeContentsArgs) Kind() string { return "purge_contents" }

// InsertOpts are River's options for the job. There is one at a time: what takes
// longer than the time to the next is still the same job, which snoozes in between.
func (a purgeContentsArgs) InsertOpts() river.InsertOpts {
	opts := a.chore.InsertOpts()
	opts.UniqueOpts = river.UniqueOpts{ByState: []rivertype.JobState{
		rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable,
		rivertype.JobStateRunning, rivertype.JobStateScheduled,
	}}
	return opts
}

type purgeContentsWorker struct {
	river.WorkerDefaults[purgeContentsArgs]
	contentPurge
	metrics *Metrics
	log     *slog.Logger
}

// Work runs one job.
func (w *purgeContentsWorker) Work(ctx context.Context, _ *river.Job[purgeContentsArgs]) error {
	total, through, err := w.run(ctx)
	w.metrics.purged(total)
	if total > 0 {
		w.log.InfoContext(ctx, "purged contents of emails", "count", total)
	}
	if err != nil || through {
		return err
	}
	return river.JobSnooze(time.Second)
}
