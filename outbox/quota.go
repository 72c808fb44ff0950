package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrQueueQuota means that as many emails of the org are waiting as may. Nothing
// of the submission was stored and its key is free: try again later, with the
// same key. A replay is never refused for it.
var ErrQueueQuota = errors.New("as many emails of this org are waiting as may")

const (
	// backlogAge is how long a count of an org's waiting emails is relied on at
	// least.
	backlogAge = time.Second
	// backlogShare bounds the share of its time that Postgres spends on counting
	// for one process: one part of so many. A count of a million takes longer
	// than a second is worth.
	backlogShare = 20
)

// quotas bound what orgs have waiting: scheduled, queued or sending. Each
// process counts what it stored itself, and looks into the database once a
// second. So an org can come beyond its quota by what other processes stored
// since, by what is being stored at the moment, and by the rest of a batch that
// began below it.
type quotas struct {
	mu   sync.Mutex
	seen map[uuid.UUID]backlog
}

// backlog is what an org has waiting, and whether more may come at all.
type backlog struct {
	paused  bool
	quota   int // zero: any number may wait
	waiting int // counted no further than the quota
	until   time.Time
}

// check returns [ErrOrgPaused], or [ErrQueueQuota] if no more emails of the org may
// wait. It does not count the ones that ask: most of all, replays are none.
func (q *quotas) check(ctx context.Context, tx pgx.Tx, org uuid.UUID, byDefault int) error {
	b, ok := q.known(org)
	if !ok {
		var err error
		if b, err = readBacklog(ctx, tx, org, byDefault); err != nil {
			return err
		}
		q.set(org, b)
	}
	if b.paused {
		return ErrOrgPaused
	}
	if b.quota > 0 && b.waiting >= b.quota {
		return fmt.Errorf("%w: %d", ErrQueueQuota, b.quota)
	}
	return nil
}

// sqlReadBacklog counts along emails_org_id_phase_id, and not at all without a
// quota.
const sqlReadBacklog = `
SELECT o.paused, o.quota, CASE WHEN o.quota = 0 THEN 0 ELSE (
    SELECT count(*) FROM (
        SELECT FROM outbox.emails e
        WHERE e.org_id = $1 AND e.phase IN ('scheduled', 'queued') LIMIT o.quota) waiting) END
FROM (
    SELECT coalesce(max(max_queued), $2::integer) AS quota, coalesce(bool_or(paused_at IS NOT NULL), false) AS paused
    FROM outbox.orgs WHERE id = $1) o`

func readBacklog(ctx context.Context, tx pgx.Tx, org uuid.UUID, byDefault int) (backlog, error) {
	var b backlog
	began := time.Now()
	if err := tx.QueryRow(ctx, sqlReadBacklog, org, byDefault).Scan(&b.paused, &b.quota, &b.waiting); err != nil {
		return b, fmt.Errorf("count waiting emails: %w", err)
	}
	b.until = time.Now().Add(max(backlogAge, backlogShare*time.Since(began)))
	return b, nil
}

// known returns a count that is fresh enough. When it has grown old, one asks the
// database and the others go by the old one meanwhile.
func (q *quotas) known(org uuid.UUID) (backlog, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b, ok := q.seen[org]
	if !ok {
		return b, false
	}
	if now := time.Now(); now.After(b.until) {
		b.until = now.Add(backlogAge)
		q.seen[org] = b
		return b, false
	}
	return b, true
}

// set keeps a count, and forgets all now and then.
func (q *quotas) set(org uuid.UUID, b backlog) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.seen == nil || len(q.seen) > 10_000 {
		q.seen = map[uuid.UUID]backlog{}
	}
	q.seen[org] = b
}

// add counts emails that are being stored.
func (q *quotas) add(org uuid.UUID, emails int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if b, ok := q.seen[org]; ok {
		b.waiting += emails
		q.seen[org] = b
	}
}

// checkQuotas remembers which submissions may store nothing new.
func (c *Client) checkQuotas(ctx context.Context, tx pgx.Tx, batch []*pending) error {
	for _, p := range batch {
		err := c.quotas.check(ctx, tx, p.Org, c.cfg.MaxQueued)
		if err != nil && !errors.Is(err, ErrQueueQuota) && !errors.Is(err, ErrOrgPaused) {
			return err
		}
		p.quotaErr = err
	}
	return nil
}

// uncount takes back what a transaction has counted that is not to be.
func (c *Client) uncount(batch []*pending) {
	for _, p := range batch {
		c.quotas.add(p.Org, -p.counted)
		p.counted = 0
	}
}

// late is what holds against a submission unless it is a replay.
func (p *pending) late() error {
	if p.lateErr != nil {
		return p.lateErr
	}
	return p.quotaErr
}

const sqlSetMaxQueued = `UPDATE outbox.orgs SET max_queued = $2 WHERE name = $1`

// SetMaxQueued sets how many emails of the org of that name may wait. Zero: any
// number; nil: the installation's default. Processes that run know within a second.
func SetMaxQueued(ctx context.Context, pool *pgxpool.Pool, name string, quota *int) error {
	tag, err := pool.Exec(ctx, sqlSetMaxQueued, name, quota)
	if err != nil {
		return fmt.Errorf("set the org's quota: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("there is no org %q: create it with `outboxctl org create`", name)
	}
	return nil
}
