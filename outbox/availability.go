package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Why a provider is taken out, as the tables and [ProviderState] show it.
const (
	reasonRateLimited   = "rate_limited"
	reasonUnavailable   = "unavailable"
	reasonMisconfigured = "misconfigured"
)

// ProviderState is what all workers know of a provider account.
type ProviderState struct {
	Name string `json:"name"`
	// Reason is why the provider is taken out: rate_limited, unavailable or
	// misconfigured. Empty: it is in order.
	Reason string `json:"reason,omitempty"`
	// Detail is the same in words.
	Detail string `json:"detail,omitempty"`
	// OutSince is when it was taken out, and ProbeIn how long until one email
	// may try it. Both are zero while it is in order.
	OutSince time.Time     `json:"out_since,omitzero"`
	ProbeIn  time.Duration `json:"probe_in_ns,omitzero"`
	// RecoveredFor is how long ago it was put back. Zero: it was never out.
	RecoveredFor time.Duration `json:"recovered_for_ns,omitzero"`
}

// sqlProviders reads times as distances from the database's now: a worker's own
// clock may be wrong.
const sqlProviders = `
SELECT name, coalesce(reason, ''), coalesce(detail, ''), out_since,
    CASE WHEN probe_at > now() THEN probe_at - now() ELSE interval '0' END,
    CASE WHEN recovered_at IS NULL THEN interval '0' ELSE greatest(now() - recovered_at, interval '1 millisecond') END
FROM outbox.providers ORDER BY name`

// ProviderStates returns the providers that a worker has been configured with,
// by name.
func ProviderStates(ctx context.Context, pool *pgxpool.Pool) ([]ProviderState, error) {
	rows, err := pool.Query(ctx, sqlProviders)
	if err != nil {
		return nil, fmt.Errorf("read providers: %w", err)
	}
	states, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ProviderState, error) {
		var s ProviderState
		var since *time.Time
		err := row.Scan(&s.Name, &s.Reason, &s.Detail, &since, &s.ProbeIn, &s.RecoveredFor)
		s.OutSince = timeOf(since)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read providers: %w", err)
	}
	return states, nil
}

const sqlRegisterProviders = `
INSERT INTO outbox.providers AS p (name) SELECT unnest($1::text[]) ORDER BY 1
ON CONFLICT (name) DO UPDATE SET probe_at = now() WHERE p.reason = 'misconfigured'`

// outage is why a provider is to be taken out, and for how long at least.
type outage struct {
	reason, detail string
	// asked is the wait that the provider asked for.
	asked time.Duration
	// base is the first back-off, and limit what its doubling ends at.
	base, limit time.Duration
	// probe says that the email which found out was the one to try.
	probe bool
	// age is how long ago the call began that found out.
	age time.Duration
}

// sqlTakeOut takes a provider out for all workers. Of many that find out at the
// same time the first one counts; the others only make a wait longer that the
// provider asked for. What was begun before the last recovery says nothing any
// more. The back-off begins anew for another reason, and goes on from where it was
// if a recovery did not last.
const sqlTakeOut = `
WITH before AS (SELECT reason FROM outbox.providers WHERE name = $1)
INSERT INTO outbox.providers AS p (name, reason, detail, failures, out_since, probe_at)
VALUES ($1, $2, $3, 1, now(), now() + greatest($4::interval, $5::interval * (0.75 + random() / 2)))
ON CONFLICT (name) DO UPDATE SET
    reason = excluded.reason, detail = excluded.detail, out_since = coalesce(p.out_since, now()),
    failures = CASE
        WHEN p.reason IS NOT NULL AND NOT $7 THEN p.failures
        WHEN p.reason <> excluded.reason OR ` + outAnewSQL + ` THEN 1
        ELSE p.failures + 1 END,
    probe_at = CASE
        WHEN p.reason IS NOT NULL AND NOT $7 THEN greatest(p.probe_at, now() + $4::interval)
        WHEN p.reason <> excluded.reason OR ` + outAnewSQL + ` THEN excluded.probe_at
        ELSE now() + greatest($4::interval,
            least($6::interval, $5::interval * power(2, least(p.failures, 20))) * (0.75 + random() / 2)) END
WHERE (p.reason IS NULL OR $7 OR p.probe_at < now() + $4::interval)
    AND (p.recovered_at IS NULL OR p.recovered_at < now() - $8::interval)
RETURNING (SELECT reason FROM before) IS NULL, probe_at - now()`

// outAnewSQL is the condition that a provider p has been in order for a while.
const outAnewSQL = `(p.reason IS NULL AND coalesce(p.recovered_at < now() - interval '1 minute', true))`

// takeOut takes a provider out. It reports whether it was in order before, and
// how long it will be left alone; zero: somebody has seen to it already.
func takeOut(ctx context.Context, pool *pgxpool.Pool, name string, o outage) (first bool, wait time.Duration, err error) {
	rows, err := pool.Query(ctx, sqlTakeOut, name, o.reason, o.detail, o.asked, o.base, o.limit, o.probe, o.age)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&first, &wait}, func() error { return nil })
	}
	if err != nil {
		return false, 0, fmt.Errorf("take provider %s out: %w", name, err)
	}
	return first, wait, nil
}

// sqlClaimProbe lets one worker of all try a provider that is out. If it never
// says what came of it, another may after the lease.
const sqlClaimProbe = `
UPDATE outbox.providers SET probe_at = now() + $2::interval
WHERE name = $1 AND reason IS NOT NULL AND probe_at <= now()`

func claimProbe(ctx context.Context, pool *pgxpool.Pool, name string, lease time.Duration) (bool, error) {
	tag, err := pool.Exec(ctx, sqlClaimProbe, name, lease)
	if err != nil {
		return false, fmt.Errorf("claim probe of provider %s: %w", name, err)
	}
	return tag.RowsAffected() == 1, nil
}

// sqlReleaseProbe is for a probe that was not made after all.
const sqlReleaseProbe = `UPDATE outbox.providers SET probe_at = now() WHERE name = $1 AND reason IS NOT NULL`

func releaseProbe(ctx context.Context, pool *pgxpool.Pool, name string) error {
	if _, err := pool.Exec(ctx, sqlReleaseProbe, name); err != nil {
		return fmt.Errorf("release probe of provider %s: %w", name, err)
	}
	return nil
}

const sqlPutBack = `
UPDATE outbox.providers p
SET reason = NULL, detail = NULL, out_since = NULL, probe_at = NULL, recovered_at = now()
FROM (SELECT name, out_since FROM outbox.providers WHERE name = $1 AND reason IS NOT NULL FOR UPDATE) was
WHERE p.name = was.name
RETURNING now() - was.out_since`

// putBack puts a provider back in order and returns how long it was out; zero:
// it was not.
func putBack(ctx context.Context, pool *pgxpool.Pool, name string) (out time.Duration, err error) {
	rows, err := pool.Query(ctx, sqlPutBack, name)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&out}, func() error { return nil })
	}
	if err != nil {
		return 0, fmt.Errorf("put provider %s back: %w", name, err)
	}
	return out, nil
}

// sqlReserveSlots takes turns that no other worker gets, unless those taken so
// far reach too far ahead: then it returns nothing.
const sqlReserveSlots = `
INSERT INTO outbox.providers AS p (name, next_slot) VALUES ($1, now() + $2 * $3::interval)
ON CONFLICT (name) DO UPDATE SET next_slot = greatest(p.next_slot, now()) + $2 * $3::interval
WHERE p.next_slot IS NULL OR p.next_slot < now() + $4::interval
RETURNING next_slot - $2 * $3::interval - now()`

// reserveSlots returns the times of up to n turns, spaced by every.
func reserveSlots(ctx context.Context, pool *pgxpool.Pool, name string, n int, every time.Duration) ([]time.Time, error) {
	rows, err := pool.Query(ctx, sqlReserveSlots, name, n, every, maxQueueing)
	if err != nil {
		return nil, fmt.Errorf("reserve turns at provider %s: %w", name, err)
	}
	var slots []time.Time
	var first time.Duration
	_, err = pgx.ForEachRow(rows, []any{&first}, func() error {
		at := time.Now().Add(first)
		for i := range n {
			slots = append(slots, at.Add(time.Duration(i)*every))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reserve turns at provider %s: %w", name, err)
	}
	return slots, nil
}
