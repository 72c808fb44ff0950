package outbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Lanes are the priorities of jobs in River, which hands out those with the
// smallest number first. An email's priority is its lane, up to its org's share
// of waiting emails with that priority; what an org has waiting beyond that goes
// last, so that one org's flood does not hold up the others.
const (
	laneNormal = 2
	laneBeyond = 4

	// laneShare is how many waiting emails of one priority go before the other
	// orgs' floods. The function enqueue_lane has the same number.
	laneShare = 50
	// laneAge is how long a count of an org's waiting emails is relied on.
	laneAge = time.Second
)

// sqlCountWaiting looks at the newest only: whoever has more than a few hundred
// waiting has enough of them.
const sqlCountWaiting = `
SELECT count(*) FROM (
    SELECT e.priority FROM outbox.emails e
    WHERE e.org_id = $1 AND e.phase = $2 ORDER BY e.id DESC LIMIT 200) newest
WHERE newest.priority = $3`

// laneClass are emails that share a lane's places.
type laneClass struct {
	org      uuid.UUID
	status   Status
	priority int16
}

// lanes counts what orgs have waiting. It looks into the database once a second
// for each, and counts what it hands in between.
type lanes struct {
	mu      sync.Mutex
	counted map[laneClass]waiting
}

type waiting struct {
	emails int
	at     time.Time
}

// next returns the lanes of emails that are about to be stored, in their order.
func (l *lanes) next(ctx context.Context, tx pgx.Tx, emails []emailRow) ([]int, error) {
	list := make([]int, len(emails))
	for i, e := range emails {
		// Emails that wait for their time compete with each other, not with
		// those that wait for a worker.
		class := laneClass{e.org, StatusQueued, e.message.Priority.rank()}
		if !e.message.ScheduledAt.IsZero() {
			class.status = StatusScheduled
		}
		n, err := l.count(ctx, tx, class)
		if err != nil {
			return nil, err
		}
		list[i] = int(class.priority)
		if n >= laneShare {
			list[i] = laneBeyond
		}
	}
	return list, nil
}

// count returns how many of a class wait, and adds one.
func (l *lanes) count(ctx context.Context, tx pgx.Tx, class laneClass) (int, error) {
	if n, ok := l.add(class); ok {
		return n, nil
	}
	var n int
	if err := tx.QueryRow(ctx, sqlCountWaiting, class.org, string(class.status.phase()), class.priority).Scan(&n); err != nil {
		return 0, fmt.Errorf("count waiting emails: %w", err)
	}
	l.set(class, waiting{n + 1, time.Now()})
	return n, nil
}

// add counts one more, unless the count is too old.
func (l *lanes) add(class laneClass) (before int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.counted[class]
	if time.Since(w.at) > laneAge {
		return 0, false
	}
	w.emails++
	l.counted[class] = w
	return w.emails - 1, true
}

// set keeps a new count, and forgets the old ones now and then.
func (l *lanes) set(class laneClass, w waiting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counted == nil || len(l.counted) > 10_000 {
		l.counted = map[laneClass]waiting{}
	}
	l.counted[class] = w
}
