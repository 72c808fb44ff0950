package outbox

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// beginning is an attempt about to be recorded, before any byte of it can
// reach a provider.
type beginning struct {
	email       uuid.UUID
	number      int16
	provider    string
	key         uuid.UUID
	worker      string
	traceID     string // empty: it is part of none
	date        time.Time
	budget      time.Duration
	payloadHash [sha256.Size]byte
	// recipients are sent to, unless one of them is suppressed by then.
	recipients []string
	// without is who is left out.
	without leftOut
	// announced are those of them that the attempt before did not leave out.
	announced []Suppression
}

// sqlBegin commits the intent to send. The email row is the fence: it must
// still have the number of attempts that the worker read, and be waiting, so
// of two workers with the same job exactly one begins. The email leaves its
// waiting status in the same statement, so a cancel either comes first or
// comes too late. So does a suppression, and a pause of the org. An attempt that
// follows one whose outcome stayed unknown may make the email arrive twice, and says
// so. Who is left out is kept with the beginning: a replay renders the same, whoever
// is suppressed by then.
const sqlBegin = `
WITH input AS (
    SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::uuid[], $5::text[],
        $6::timestamptz[], $7::interval[], $8::bytea[], $9::text[], $10::text[], $15::text[], $16::bytea[], $17::text[])
        AS i (email_id, number, provider, provider_key, worker, began_at, budget, payload_sha256, recipients, left_out,
            key_id, sealed_left_out, trace_id)
), begun AS (
    UPDATE outbox.emails e
    SET status = 'sending', attempts = i.number, next_attempt_at = NULL, reason = NULL, reason_detail = NULL,
        possible_duplicate = e.possible_duplicate OR ` + hasUnknownSQL + `
    FROM input i
    WHERE e.id = i.email_id AND e.attempts = i.number - 1 AND e.status IN ('queued', 'scheduled')
        AND (e.expires_at IS NULL OR e.expires_at > now())
        AND NOT ` + stoppedSQL + `
        AND NOT EXISTS (
            SELECT FROM outbox.suppressions s WHERE s.org_id = e.org_id AND s.address = ANY (i.recipients::text[]))
    RETURNING e.id, e.possible_duplicate
), left_out AS (
    UPDATE outbox.email_contents c SET suppressed_recipients = nullif(i.left_out, '{}')::text[],
        suppressed_key_id = i.key_id, sealed_suppressed = i.sealed_left_out
    FROM input i JOIN begun b ON b.id = i.email_id
    WHERE c.email_id = i.email_id AND i.left_out IS NOT NULL
), suppressed AS (
    INSERT INTO outbox.events (id, email_id, type, recipient, detail, occurred_at)
    SELECT s.id, s.email_id, 'suppressed', s.recipient, s.reason, now()
    FROM unnest($11::uuid[], $12::uuid[], $13::text[], $14::text[]) AS s (id, email_id, recipient, reason)
        JOIN begun b ON b.id = s.email_id
)
INSERT INTO outbox.attempts (
    email_id, number, provider, provider_key, worker, began_at, deadline, payload_sha256, possible_duplicate, trace_id)
SELECT i.email_id, i.number, i.provider, i.provider_key, i.worker, i.began_at, now() + i.budget, i.payload_sha256,
    b.possible_duplicate, i.trace_id
FROM input i JOIN begun b ON b.id = i.email_id
RETURNING email_id, possible_duplicate`

// begin records attempts and returns which of the emails were begun, and how
// many of them may arrive twice by it. It is one round trip and one transaction.
func begin(ctx context.Context, pool *pgxpool.Pool, batch []beginning) (begun map[uuid.UUID]bool, duplicates int, err error) {
	n := len(batch)
	emails, numbers, providers, keys := make([]uuid.UUID, n), make([]int16, n), make([]string, n), make([]uuid.UUID, n)
	workers, dates, budgets, hashes := make([]string, n), make([]time.Time, n), make([]time.Duration, n), make([][]byte, n)
	recipients, inClear, keyIDs, sealed := make([]string, n), make([]*string, n), make([]*string, n), make([][]byte, n)
	traces := make([]*string, n)
	var suppressed suppressedEvents
	for i, b := range batch {
		emails[i], numbers[i], providers[i], keys[i] = b.email, b.number, b.provider, b.key
		workers[i], dates[i], budgets[i], hashes[i] = b.worker, b.date, b.budget, b.payloadHash[:]
		recipients[i] = textArray(b.recipients)
		inClear[i], keyIDs[i], sealed[i] = b.without.clear, b.without.keyID, b.without.sealed
		traces[i] = nullable(b.traceID)
		suppressed.add(b.email, b.announced)
	}
	begun = make(map[uuid.UUID]bool, n)
	var statements pgx.Batch
	statements.Queue(sqlStablePlans)
	statements.Queue(sqlBegin, emails, numbers, providers, keys, workers, dates, budgets, hashes, recipients, inClear,
		suppressed.ids, suppressed.emails, suppressed.recipients, suppressed.reasons, keyIDs, sealed, traces,
	).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		var duplicate bool
		_, err := pgx.ForEachRow(rows, []any{&id, &duplicate}, func() error {
			begun[id] = true
			if duplicate {
				duplicates++
			}
			return nil
		})
		return err
	})
	if err := pool.SendBatch(ctx, &statements).Close(); err != nil {
		return nil, 0, fmt.Errorf("begin attempt: %w", err)
	}
	return begun, duplicates, nil
}

// sqlIsBegun asks whether an attempt is recorded and open, for when the reply
// to begin was lost.
const sqlIsBegun = `
SELECT EXISTS (
    SELECT FROM outbox.attempts
    WHERE email_id = $1 AND number = $2 AND provider_key = $3 AND stage = 'sending')`

func isBegun(ctx context.Context, pool *pgxpool.Pool, b beginning) (bool, error) {
	var begun bool
	if err := pool.QueryRow(ctx, sqlIsBegun, b.email, b.number, b.key).Scan(&begun); err != nil {
		return false, fmt.Errorf("look for attempt: %w", err)
	}
	return begun, nil
}

// ending is what became of an attempt, and what follows for its email.
type ending struct {
	email             uuid.UUID
	number            int16
	key               uuid.UUID
	worker            string
	stage             Stage // StageSending leaves the attempt open: it is in doubt
	evidence          Evidence
	statusCode        int
	code, detail      string
	providerMessageID string

	status       Status
	reason       string
	reasonDetail string
	nextAttempt  time.Duration // from now; for StatusQueued
	lookAgain    time.Duration // from now; for an attempt in doubt
}

// sqlFinish records an outcome, if the attempt is still open and still this
// worker's: somebody who was taken over in the meantime changes nothing. Only
// "accepted" is the truth whoever says it. An email that evidence has ended
// meanwhile stays so.
const sqlFinish = `
WITH input AS (
    SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::text[], $5::text[], $6::integer[], $7::text[],
        $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::interval[], $14::text[])
        AS i (email_id, number, provider_key, stage, evidence, status_code, code,
            detail, provider_message_id, status, reason, reason_detail, next_attempt, worker)
), finished AS (
    UPDATE outbox.attempts a
    SET stage = i.stage, evidence = i.evidence, status_code = i.status_code, code = i.code, detail = i.detail,
        provider_message_id = i.provider_message_id,
        in_doubt_at = CASE WHEN i.stage = 'sending' THEN now() ELSE a.in_doubt_at END,
        ended_at = CASE WHEN i.stage = 'sending' THEN NULL ELSE now() END
    FROM input i
    WHERE a.email_id = i.email_id AND a.number = i.number AND a.provider_key = i.provider_key AND a.stage = 'sending'
        AND (a.worker = i.worker OR i.stage = 'accepted')
    RETURNING a.email_id, a.number
)
UPDATE outbox.emails e
SET status = CASE WHEN i.status = 'sent' THEN ` + acceptedSQL + ` ELSE i.status END, reason_detail = i.reason_detail,
    reason = CASE WHEN i.status = 'failed' AND ` + hasUnknownSQL + ` THEN 'outcome_unknown' ELSE i.reason END,
    next_attempt_at = now() + i.next_attempt,
    ended_at = CASE WHEN i.status IN ('sent', 'failed') THEN now() END
FROM input i JOIN finished f USING (email_id, number)
WHERE e.id = i.email_id AND e.attempts = i.number AND e.ended_at IS NULL
RETURNING e.id`

// hasUnknownSQL is the condition that the outcome of an earlier attempt stayed
// unknown: an email that fails after it may have been accepted all the same.
const hasUnknownSQL = `EXISTS (SELECT FROM outbox.attempts u WHERE u.email_id = e.id AND u.stage = 'unknown')`

// finish records outcomes and returns which of the emails it changed.
func finish(ctx context.Context, pool *pgxpool.Pool, batch []ending) (map[uuid.UUID]bool, error) {
	n := len(batch)
	emails, numbers, keys, stages := make([]uuid.UUID, n), make([]int16, n), make([]uuid.UUID, n), make([]string, n)
	evidence, codes, names := make([]*string, n), make([]*int32, n), make([]*string, n)
	details, messageIDs, statuses := make([]*string, n), make([]*string, n), make([]string, n)
	reasons, reasonDetails, next := make([]*string, n), make([]*string, n), make([]*time.Duration, n)
	workers := make([]string, n)
	for i, e := range batch {
		emails[i], numbers[i], keys[i], stages[i] = e.email, e.number, e.key, string(e.stage)
		evidence[i], codes[i], names[i] = nullable(string(e.evidence)), nullable(int32(e.statusCode)), nullable(e.code)
		details[i], messageIDs[i], statuses[i] = nullable(e.detail), nullable(e.providerMessageID), string(e.status)
		reasons[i], reasonDetails[i], next[i] = nullable(e.reason), nullable(e.reasonDetail), nullable(e.nextAttempt)
		workers[i] = e.worker
	}
	var finished map[uuid.UUID]bool
	var statements pgx.Batch
	statements.Queue(sqlStablePlans)
	statements.Queue(sqlFinish, emails, numbers, keys, stages, evidence, codes, names,
		details, messageIDs, statuses, reasons, reasonDetails, next, workers,
	).Query(func(rows pgx.Rows) (err error) {
		finished, err = collectIDs(rows)
		return err
	})
	if err := pool.SendBatch(ctx, &statements).Close(); err != nil {
		return nil, fmt.Errorf("finish attempt: %w", err)
	}
	return finished, nil
}

func collectIDs(rows pgx.Rows) (map[uuid.UUID]bool, error) {
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	set := make(map[uuid.UUID]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set, err
}

// sqlEnd ends emails that no attempt is to be made for, unless one has begun
// or the email has ended meanwhile. No attempt will show why one failed, so an
// event does.
const sqlEnd = `
WITH ended AS (` + endedSQL + `)
INSERT INTO outbox.events (id, email_id, type, detail, occurred_at)
SELECT $6, id, status, concat_ws(': ', reason, reason_detail), now() FROM ended WHERE reason IS NOT NULL`

const endedSQL = `
    UPDATE outbox.emails e
    SET status = CASE WHEN ` + hasUnknownSQL + ` THEN 'failed' ELSE $2 END,
        reason = CASE WHEN ` + hasUnknownSQL + ` THEN 'outcome_unknown' ELSE nullif($3, '') END,
        reason_detail = nullif($4, ''), next_attempt_at = NULL, ended_at = now()
    WHERE e.id = $1 AND e.attempts = $5 AND e.status IN ('queued', 'scheduled')
    RETURNING e.id, e.status, e.reason, e.reason_detail
`

// sqlEndSuppressed ends an email that nobody is left of, in the way of sqlEnd.
const sqlEndSuppressed = `
WITH ended AS (` + endedSQL + `), left_out AS (
    UPDATE outbox.email_contents c SET suppressed_recipients = nullif($6, '{}')::text[], suppressed_key_id = $11, sealed_suppressed = $12
    FROM ended WHERE c.email_id = ended.id AND $6::text IS NOT NULL
)
INSERT INTO outbox.events (id, email_id, type, recipient, detail, occurred_at)
SELECT s.id, s.email_id, 'suppressed', s.recipient, s.reason, now()
FROM unnest($7::uuid[], $8::uuid[], $9::text[], $10::text[]) AS s (id, email_id, recipient, reason)
    JOIN ended ON ended.id = s.email_id`
