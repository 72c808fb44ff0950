package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/outbox"
)

// storedRates are the two throughputs with many emails stored and queued: themselves on
// an empty database are the baseline.
func storedRates(ctx context.Context, b *lab) ([]Result, error) {
	return anew(ctx, b, func(db *database) ([]Result, error) { return db.storedRates(ctx) })()
}

// storedRates fills the database and measures it against others.
func (d *database) storedRates(ctx context.Context) ([]Result, error) {
	b := d.lab
	if err := d.store(ctx, b.stored); err != nil {
		return nil, err
	}
	if err := d.fill(ctx, b.queued); err != nil {
		return nil, err
	}
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	before, ours, after, err := between(
		anew(ctx, b, func(db *database) (float64, error) { return db.saturate(ctx) }),
		func() (float64, error) { return d.saturate(ctx) })
	if err != nil {
		return nil, err
	}
	results := []Result{b.storedResult("submissions", before, ours, after)}
	before, ours, after, err = between(
		anew(ctx, b, func(db *database) (float64, error) { return db.fillAndDrain(ctx, (*database).startWorker) }),
		func() (float64, error) { return d.drain(ctx, (*database).startWorker) })
	return append(results, b.storedResult("deliveries", before, ours, after)), err
}

func (b *lab) storedResult(what string, before, ours, after float64) Result {
	return Result{
		Figure: fmt.Sprintf("%s, with %d emails stored and %d queued", what, b.stored, b.queued), Unit: "per second",
		Baseline: "itself on an empty database", Ours: ours, Before: before, After: after, Must: 0.8, Aim: 0.95,
	}
}

// storedSQL are so many emails as they are after a day in which they were sent: all rows
// that a submission and a delivery leave, with the jobs of the last hour.
var storedSQL = []string{
	`CREATE TEMPORARY TABLE stored AS
		SELECT n, md5('email' || n)::uuid AS random, now() - interval '1 day' + n * interval '1 millisecond' AS at,
			(lpad(to_hex((extract(epoch FROM now() - interval '1 day') * 1000)::bigint + n), 12, '0')
				|| '7' || substr(md5('id' || n), 1, 3) || '8' || substr(md5('id' || n), 4, 15))::uuid AS id
		FROM generate_series(1, $1::integer) AS n`,
	`INSERT INTO outbox.emails (id, org_id, status, attempts, created_at, ended_at)
		SELECT id, (SELECT id FROM outbox.orgs), 'sent', 1, at, at FROM stored`,
	`INSERT INTO outbox.email_contents (email_id, org_id, from_address, to_addresses, subject, text, recipients)
		SELECT id, (SELECT id FROM outbox.orgs), 'Shop <shop@example.com>', '["jane@example.org"]', 'Mail ' || n, '` + body + `',
			'{jane@example.org}' FROM stored`,
	`INSERT INTO outbox.email_terms (email_id, term) SELECT id, md5('to' || n % 100000)::uuid FROM stored`,
	`INSERT INTO outbox.attempts (email_id, number, provider, provider_key, stage, worker, began_at, deadline, ended_at,
			status_code, provider_message_id, evidence, payload_sha256)
		SELECT id, 1, 'resend', random, 'accepted', 'host-1234-1', at, at, at, 200, random::text, 'response', sha256(id::text::bytea)
		FROM stored`,
	`INSERT INTO outbox.idempotency_keys (org_id, endpoint, key, submission_id, fingerprint_version, fingerprint, email_ids,
			status_code, response, expires_at)
		SELECT (SELECT id FROM outbox.orgs), 'POST /emails', 'stored-' || n, id, 1, sha256(id::text::bytea), ARRAY[id], 202,
			'{"id":"' || id || '","object":"email","status":"queued"}', now() + interval '7 days' FROM stored`,
	`INSERT INTO outbox.river_job (state, kind, queue, args, max_attempts, attempt, priority, created_at, attempted_at,
			finalized_at, attempted_by)
		SELECT 'completed', 'deliver_email', '` + outbox.Queue + `', jsonb_build_object('email_id', id), 10000, 1, 2, now(), now(), now(),
			'{host-1234-1}' FROM stored WHERE n % 24 = 0`,
}

// store stores emails that were delivered.
func (d *database) store(ctx context.Context, emails int) error {
	conn, err := pgx.Connect(ctx, d.lab.superuserURL(d.name))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	// Without the checks of foreign keys, a million rows each.
	if _, err := conn.Exec(ctx, "SET session_replication_role = replica"); err != nil {
		return err
	}
	for _, sql := range storedSQL {
		var args []any
		if strings.Contains(sql, "$1") {
			args = append(args, emails)
		}
		if _, err := conn.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("%.60s: %w", sql, err)
		}
	}
	return nil
}

// settle does what autovacuum and the checkpointer would do in time, so that it is not
// paid by who is measured next. Pages of indexes that the first vacuum empties are free
// once nobody can be on the way to them; the second finds that out.
func (d *database) settle(ctx context.Context) error {
	for _, sql := range []string{"VACUUM", "VACUUM ANALYZE", "CHECKPOINT"} {
		if err := exec1(ctx, d.lab.superuserURL(d.name), sql); err != nil {
			return err
		}
	}
	return nil
}
