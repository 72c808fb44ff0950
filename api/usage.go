package api

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

const (
	// usageInterval is how often a process writes down which keys it has seen:
	// one statement for all keys, and none for a request.
	usageInterval = time.Minute

	// usageTimeout bounds that statement, also the last one before the end.
	usageTimeout = 5 * time.Second
)

// keyUsage is when keys were last used, as far as it is not written down. Only
// keys that exist are noted, so their number bounds its size.
type keyUsage struct {
	mu   sync.Mutex
	last map[string]time.Time // by the key's id
}

func (u *keyUsage) note(id string, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = map[string]time.Time{}
	}
	if at.After(u.last[id]) {
		u.last[id] = at
	}
}

// take returns what was noted and forgets it.
func (u *keyUsage) take() map[string]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := u.last
	u.last = nil
	return taken
}

// sqlRecordUsage never sets a time back, for other processes note the same keys.
// The rows are locked in one order by all of them.
const sqlRecordUsage = `
UPDATE outbox.api_keys k SET last_used_at = greatest(k.last_used_at, u.at)
FROM (
    SELECT l.id, i.at FROM outbox.api_keys l JOIN unnest($1::text[], $2::timestamptz[]) AS i (id, at) USING (id)
    ORDER BY l.id FOR NO KEY UPDATE OF l
) u
WHERE k.id = u.id`

// write stores what was noted. What could not be stored is noted again.
func (u *keyUsage) write(ctx context.Context, pool *pgxpool.Pool) error {
	taken := u.take()
	if len(taken) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(taken))
	times := make([]time.Time, len(ids))
	for i, id := range ids {
		times[i] = taken[id]
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	// Keys of any org.
	if _, err := outbox.AcrossOrgs(pool).Exec(ctx, sqlRecordUsage, ids, times); err != nil {
		for id, at := range taken {
			u.note(id, at)
		}
		return err
	}
	return nil
}

// recordUsage writes regularly until ctx ends, and then once more.
func (k *keyring) recordUsage(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(usageInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			if err := k.usage.write(context.WithoutCancel(ctx), k.pool); err != nil {
				log.WarnContext(ctx, "when API keys were last used is not written down", "error", err)
			}
			return
		}
		if err := k.usage.write(ctx, k.pool); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "when API keys were last used is written down later", "error", err)
		}
	}
}
