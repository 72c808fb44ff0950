package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
)

const (
	// acquireTimeout bounds how long a submission waits for a connection. The
	// time for its transaction is counted from then on: under an overload the
	// pool serves those first who wait longest, and with one limit for both it
	// would spend itself on transactions that are cut off half way.
	acquireTimeout = 3 * time.Second

	// enqueueTimeout bounds a submission once its transaction has begun. From
	// then on the caller going away no longer cancels it: a COMMIT that is cut
	// off half way is an outcome that nobody knows.
	enqueueTimeout = 10 * time.Second

	// enqueueTries bounds how often a transaction runs that Postgres ended to
	// resolve a deadlock or a serialization conflict.
	enqueueTries = 5

	// keptAfterEnd is how long a key outlives the end of its email.
	keptAfterEnd = "24 hours"
)

// Enqueue stores a submission in a transaction of its own: idempotency key,
// emails and River jobs commit together or not at all. When it returns a
// receipt, the emails are durable.
//
// Errors are a *[ValidationError], [ErrIdempotencyKeyReused],
// [ErrSubmissionInProgress], [ErrQueueQuota], [ErrOrgPaused], [ErrOutcomeUnknown], or
// say that the database could not be used. After every error but the first two,
// repeating the call with the same key is safe and is what the caller should do.
func (c *Client) Enqueue(ctx context.Context, s Submission) (receipt Receipt, err error) {
	defer func() { c.cfg.Metrics.submitted(s, receipt.Replayed, err) }()
	p, err := c.prepare(ctx, s)
	if err != nil {
		return Receipt{}, err
	}
	if p.IdempotencyKey != "" {
		leave, err := c.gate.enter(ctx, p.scope())
		if err != nil {
			return Receipt{}, err
		}
		defer leave()
	}
	if err := c.enqueueGrouped(ctx, p); err != nil {
		return Receipt{}, err
	}
	return p.receipt, p.err
}

// EnqueueTx stores a submission in the caller's transaction. If that rolls
// back there is no email, no job, and the key is free.
//
// Under READ COMMITTED it behaves like [Client.Enqueue]. Under REPEATABLE READ
// and above, a key that another transaction committed meanwhile is reported as
// a serialization failure (SQLSTATE 40001): roll back and run the transaction
// again. After an error from the database the transaction is aborted, as after
// any failed statement; use a savepoint to go on. While another transaction
// holds the same key, the call waits for it, as long as lock_timeout allows.
func (c *Client) EnqueueTx(ctx context.Context, tx pgx.Tx, s Submission) (receipt Receipt, err error) {
	defer func() { c.cfg.Metrics.submitted(s, receipt.Replayed, err) }()
	p, err := c.prepare(ctx, s)
	if err != nil {
		return Receipt{}, err
	}
	if err := c.enqueueTx(ctx, tx, []*pending{p}); err != nil {
		return Receipt{}, err
	}
	return p.receipt, p.err
}

// EnqueueManyTx stores several submissions, each under its own key, in the
// caller's transaction, with as many statements as for one. The receipts are in
// the order of the submissions. After an error, which names the submission by
// its index where it is about one, none of them is stored, and the transaction
// can go on: they are in a savepoint. [Client.EnqueueTx] says more.
func (c *Client) EnqueueManyTx(ctx context.Context, tx pgx.Tx, submissions []Submission) (receipts []Receipt, err error) {
	defer func() { c.cfg.Metrics.submittedMany(submissions, receipts, err) }()
	batch := make([]*pending, len(submissions))
	for i, s := range submissions {
		var err error
		if batch[i], err = c.prepare(ctx, s); err != nil {
			return nil, fmt.Errorf("submission %d: %w", i, err)
		}
	}
	receipts = make([]Receipt, len(batch))
	err = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		if err := c.enqueueTx(ctx, savepoint, batch); err != nil {
			return err
		}
		for i, p := range batch {
			if p.err != nil {
				return fmt.Errorf("submission %d: %w", i, p.err)
			}
			receipts[i] = p.receipt
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return receipts, nil
}

func (c *Client) prepare(ctx context.Context, s Submission) (*pending, error) {
	p, err := prepare(s, time.Now(), foresight{c.cfg.Providers, c.cfg.PublicURL})
	if err != nil {
		return nil, err
	}
	metadata := jobMetadata(ctx)
	for i := range p.emails {
		p.emails[i].metadata = metadata
	}
	return p, nil
}

// enqueue runs the transaction, again if that is safe and may help: Postgres
// ended it to resolve a conflict, or the connection was found dead before
// COMMIT was sent.
func (c *Client) enqueue(ctx context.Context, batch func() []*pending, options pgx.TxOptions) error {
	var err error
	for range enqueueTries {
		if err = c.enqueueOnce(ctx, batch, options); !isRetryable(err) {
			return err
		}
	}
	return err
}

// enqueueOnce stores submissions of one org: those that are there once it has a
// connection.
func (c *Client) enqueueOnce(ctx context.Context, wanted func() []*pending, options pgx.TxOptions) error {
	conn, err := c.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	batch := wanted()
	if len(batch) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout)
	defer cancel()
	tx, err := conn.BeginTx(ctx, options)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	// After a successful commit this does nothing. If it fails, the connection
	// is gone and Postgres rolls back by itself.
	defer func() { _ = tx.Rollback(ctx) }()
	if err := c.enqueueTx(ctx, tx, batch); err != nil {
		c.uncount(batch)
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		conn.Release() // makes room for the look
		return c.afterLostCommit(ctx, batch, err)
	}
	return nil
}

// acquire waits for a connection as long as that makes sense and the caller is
// there.
func (c *Client) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for a connection: %w", err)
	}
	return conn, nil
}

// afterLostCommit finds out what became of a transaction whose COMMIT failed.
// An answer from Postgres means that it rolled back. A broken connection means
// nothing: the commit may have happened, so the emails are looked up on
// another connection, and the insert is never run again blindly.
func (c *Client) afterLostCommit(ctx context.Context, batch []*pending, commitErr error) error {
	if _, refused := errors.AsType[*pgconn.PgError](commitErr); refused {
		c.uncount(batch)
		return fmt.Errorf("commit: %w", commitErr)
	}
	ids := []uuid.UUID{}
	for _, p := range batch {
		if p.err == nil && !p.receipt.Replayed {
			ids = append(ids, p.receipt.IDs...)
		}
	}
	found, err := c.countEmails(ctx, batch[0].Org, ids)
	if err != nil {
		return fmt.Errorf("%w: %w, then: %w", ErrOutcomeUnknown, commitErr, err)
	}
	if found < len(ids) {
		// Not there is not a proof either: the server may still be at it.
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, commitErr)
	}
	return nil
}

const sqlCountEmails = `SELECT count(*) FROM outbox.emails WHERE org_id = $1 AND id = ANY($2::uuid[])`

// countEmails counts those of the org's emails that are stored. What broke one
// connection may have broken all others of the pool, which do not know yet; a
// look does no harm, so it is repeated until one of them, or a new one, works.
func (c *Client) countEmails(ctx context.Context, org uuid.UUID, ids []uuid.UUID) (found int, err error) {
	for range c.pool.Stat().MaxConns() + 1 {
		err = c.as(org).QueryRow(ctx, scan(&found), sqlCountEmails, org, ids)
		if _, refused := errors.AsType[*pgconn.ConnectError](err); refused || !isConnectionLost(err) {
			break
		}
	}
	return found, err
}

func isRetryable(err error) bool {
	if errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code == pgerrcode.DeadlockDetected || pgErr.Code == pgerrcode.SerializationFailure
	}
	return isConnectionLost(err)
}

// enqueueTx stores a slice of submissions with a fixed number of statements.
// Each gets its own receipt or error; an error returned here is about the
// transaction and so about all of them.
func (c *Client) enqueueTx(ctx context.Context, tx pgx.Tx, batch []*pending) error {
	for _, p := range batch {
		p.receipt, p.err, p.counted = p.fresh, nil, 0
	}
	if err := c.checkQuotas(ctx, tx, batch); err != nil {
		return err
	}
	won, err := c.claimKeys(ctx, tx, batch)
	if err != nil {
		return err
	}
	var emails []emailRow
	for _, p := range won {
		p.counted = len(p.emails)
		c.quotas.add(p.Org, p.counted)
		for i := range p.emails {
			emails = append(emails, emailRow{org: p.Org, accepted: &p.emails[i]})
		}
	}
	if len(emails) == 0 {
		return nil
	}
	// The jobs first: their lanes depend on what was waiting before.
	if err := c.insertJobs(ctx, tx, emails); err != nil {
		return err
	}
	return insertEmails(ctx, tx, c.cfg.Keys.first(), emails)
}

// claimKeys returns the submissions that are to be stored. For each of the
// others it sets the receipt of the earlier submission, or an error.
func (c *Client) claimKeys(ctx context.Context, tx pgx.Tx, batch []*pending) (won []*pending, err error) {
	var claim, look []*pending
	first := map[keyScope]bool{}
	for _, p := range batch {
		switch {
		case p.IdempotencyKey == "" && p.late() != nil:
			p.err = p.late()
		case p.IdempotencyKey == "":
			won = append(won, p)
		case p.late() != nil || first[p.scope()]:
			look = append(look, p)
		default:
			first[p.scope()] = true
			claim = append(claim, p)
		}
	}
	if len(claim) > 0 {
		claimed, err := c.insertKeys(ctx, tx, claim)
		if err != nil {
			return nil, err
		}
		for _, p := range claim {
			if claimed[p.id] {
				won = append(won, p)
			} else {
				look = append(look, p)
			}
		}
	}
	return won, replay(ctx, tx, look)
}

type keyScope struct {
	org           uuid.UUID
	endpoint, key string
}

func (p *pending) scope() keyScope { return keyScope{p.Org, p.endpoint, p.IdempotencyKey} }

// sqlInsertKeys claims keys, in key order so that overlapping slices do not
// deadlock. One statement both claims a free key and takes over an expired
// one, so of many at once exactly one wins. A key whose email has not ended,
// or ended less than a day ago, has not expired whatever its date says.
const sqlInsertKeys = `
INSERT INTO outbox.idempotency_keys AS k (
    org_id, endpoint, key, submission_id, fingerprint_version, fingerprint,
    email_ids, status_code, response, expires_at)
SELECT i.org_id, i.endpoint, i.key, i.submission_id, $5::smallint, i.fingerprint,
    i.email_ids::uuid[], i.status_code, i.response, now() + $10::interval
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $6::bytea[], $7::text[], $8::smallint[], $9::text[])
    AS i (org_id, endpoint, key, submission_id, fingerprint, email_ids, status_code, response)
ORDER BY i.org_id, i.endpoint, i.key
ON CONFLICT (org_id, endpoint, key) DO UPDATE SET
    submission_id = excluded.submission_id,
    fingerprint_version = excluded.fingerprint_version,
    fingerprint = excluded.fingerprint,
    email_ids = excluded.email_ids,
    status_code = excluded.status_code,
    response = excluded.response,
    created_at = now(),
    expires_at = excluded.expires_at
WHERE k.expires_at <= now() AND NOT EXISTS (
    SELECT FROM outbox.emails e
    WHERE e.id = ANY (k.email_ids) AND (e.ended_at IS NULL OR e.ended_at > now() - interval '` + keptAfterEnd + `'))
RETURNING k.submission_id`

func (c *Client) insertKeys(ctx context.Context, tx pgx.Tx, batch []*pending) (map[uuid.UUID]bool, error) {
	n := len(batch)
	orgs, endpoints, keys, ids := make([]uuid.UUID, n), make([]string, n), make([]string, n), make([]uuid.UUID, n)
	prints, emails, codes, responses := make([][]byte, n), make([]string, n), make([]int16, n), make([]string, n)
	for i, p := range batch {
		orgs[i], endpoints[i], keys[i], ids[i] = p.Org, p.endpoint, p.IdempotencyKey, p.id
		prints[i], emails[i] = p.fingerprint, uuidArray(p.fresh.IDs)
		codes[i], responses[i] = int16(p.fresh.StatusCode), string(p.fresh.Response)
	}
	rows, err := tx.Query(ctx, sqlInsertKeys, orgs, endpoints, keys, ids,
		fingerprintVersion, prints, emails, codes, responses, c.cfg.IdempotencyTTL)
	if err != nil {
		return nil, keyError(err)
	}
	won, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, keyError(err)
	}
	claimed := make(map[uuid.UUID]bool, len(won))
	for _, id := range won {
		claimed[id] = true
	}
	return claimed, nil
}

// keyError recognises the lock time-out: somebody else holds the key and has
// not committed.
func keyError(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == pgerrcode.LockNotAvailable {
		return fmt.Errorf("%w: %w", ErrSubmissionInProgress, err)
	}
	return fmt.Errorf("claim idempotency key: %w", err)
}

// sqlFindKeys is a statement of its own, after the claim: under READ COMMITTED
// it sees the row that the claim lost to, which one statement for both would
// not.
const sqlFindKeys = `
SELECT k.org_id, k.endpoint, k.key, k.fingerprint_version, k.fingerprint, k.email_ids, k.status_code, k.response
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS i (org_id, endpoint, key)
JOIN outbox.idempotency_keys k USING (org_id, endpoint, key)`

type storedKey struct {
	version     int16
	fingerprint []byte
	receipt     Receipt
}

// replay answers submissions whose key is taken with the stored receipt.
func replay(ctx context.Context, tx pgx.Tx, batch []*pending) error {
	if len(batch) == 0 {
		return nil
	}
	stored, err := findKeys(ctx, tx, batch)
	if err != nil {
		return err
	}
	for _, p := range batch {
		p.receipt, p.err = p.match(stored[p.scope()])
	}
	return nil
}

func (p *pending) match(k *storedKey) (Receipt, error) {
	if k == nil {
		if err := p.late(); err != nil {
			return Receipt{}, err
		}
		// The key expired between the claim and the look.
		return Receipt{}, ErrSubmissionInProgress
	}
	own, err := p.fingerprintAs(k.version)
	if err != nil {
		return Receipt{}, err
	}
	if !bytes.Equal(own, k.fingerprint) {
		return Receipt{}, ErrIdempotencyKeyReused
	}
	return k.receipt, nil
}

func findKeys(ctx context.Context, tx pgx.Tx, batch []*pending) (map[keyScope]*storedKey, error) {
	n := len(batch)
	orgs, endpoints, keys := make([]uuid.UUID, n), make([]string, n), make([]string, n)
	for i, p := range batch {
		orgs[i], endpoints[i], keys[i] = p.Org, p.endpoint, p.IdempotencyKey
	}
	rows, err := tx.Query(ctx, sqlFindKeys, orgs, endpoints, keys)
	if err != nil {
		return nil, fmt.Errorf("find idempotency key: %w", err)
	}
	stored := make(map[keyScope]*storedKey, n)
	var scope keyScope
	var k storedKey
	var response string
	_, err = pgx.ForEachRow(rows, []any{
		&scope.org, &scope.endpoint, &scope.key, &k.version, &k.fingerprint,
		&k.receipt.IDs, &k.receipt.StatusCode, &response,
	}, func() error {
		found := k
		found.receipt.Response, found.receipt.Replayed = []byte(response), true
		stored[scope] = &found
		k = storedKey{}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find idempotency key: %w", err)
	}
	return stored, nil
}

// insertJobs adds one River job per email, in the same transaction.
func (c *Client) insertJobs(ctx context.Context, tx pgx.Tx, emails []emailRow) error {
	lanes, err := c.lanes.next(ctx, tx, emails)
	if err != nil {
		return err
	}
	params := make([]river.InsertManyParams, len(emails))
	for i, e := range emails {
		params[i] = river.InsertManyParams{
			Args: deliverArgs{EmailID: e.id},
			InsertOpts: &river.InsertOpts{
				Metadata:    e.metadata,
				Priority:    lanes[i],
				Queue:       Queue,
				ScheduledAt: e.message.ScheduledAt,
			},
		}
	}
	if _, err := c.jobs.InsertManyTx(ctx, tx, params); err != nil {
		return fmt.Errorf("insert jobs: %w", err)
	}
	return nil
}
