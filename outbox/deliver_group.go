package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// groupAttempts bounds how many attempts begin or end in one transaction.
	groupAttempts = 100
	// groupTimeout bounds that transaction.
	groupTimeout = 10 * time.Second
)

// attemptGroups are those in which a worker's attempts begin and end. Each attempt takes
// two transactions, one before the call to the provider and one after it; those of
// concurrent deliveries are the same ones. There is one key: a worker sees the rows of
// all orgs.
type attemptGroups struct {
	pool    *pgxpool.Pool
	metrics *Metrics
	begins  group[struct{}, *begun]
	ends    group[struct{}, *ended]
}

// begun is an attempt that is to begin, and whether it did.
type begun struct {
	beginning
	did bool
}

// ended is an attempt's outcome, and whether it was recorded.
type ended struct {
	ending
	did bool
}

func newAttemptGroups(pool *pgxpool.Pool, metrics *Metrics) *attemptGroups {
	g := &attemptGroups{pool: pool, metrics: metrics}
	g.begins.atOnce, g.begins.write = groupsAtOnce, g.beginTogether
	g.begins.fits = func(together []*begun, more *begun) bool {
		return len(together) < groupAttempts &&
			!slices.ContainsFunc(together, func(b *begun) bool { return b.email == more.email })
	}
	g.begins.alone = func(key struct{}, one *begun) error {
		return g.beginTogether(key, nil, func() []*begun { return []*begun{one} })
	}

	g.ends.atOnce, g.ends.write = groupsAtOnce, g.endTogether
	// Of two outcomes of one email in one statement Postgres would take either.
	g.ends.fits = func(together []*ended, more *ended) bool {
		return len(together) < groupAttempts &&
			!slices.ContainsFunc(together, func(e *ended) bool { return e.email == more.email })
	}
	g.ends.alone = func(key struct{}, one *ended) error {
		return g.endTogether(key, nil, func() []*ended { return []*ended{one} })
	}
	return g
}

// begin records the intent to send, and reports whether the attempt may go on.
func (g *attemptGroups) begin(ctx context.Context, b beginning) (bool, error) {
	one := &begun{beginning: b}
	err := g.begins.do(ctx, struct{}{}, one)
	return one.did, err
}

// end records an outcome, and reports whether it changed anything.
func (g *attemptGroups) end(ctx context.Context, e ending) (bool, error) {
	one := &ended{ending: e}
	err := g.ends.do(ctx, struct{}{}, one)
	return err == nil && one.did, err
}

func (g *attemptGroups) beginTogether(_ struct{}, _ []*begun, stay func() []*begun) error {
	together := stay()
	if len(together) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	batch := make([]beginning, len(together))
	for i, b := range together {
		batch[i] = b.beginning
	}
	did, duplicates, err := begin(ctx, g.pool, batch)
	if err != nil {
		return err
	}
	g.metrics.mayDuplicate(duplicates)
	for _, b := range together {
		b.did = did[b.email]
	}
	return nil
}

func (g *attemptGroups) endTogether(_ struct{}, _ []*ended, stay func() []*ended) error {
	together := stay()
	if len(together) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	batch := make([]ending, len(together))
	for i, e := range together {
		batch[i] = e.ending
	}
	did, err := finish(ctx, g.pool, batch)
	if err != nil {
		return err
	}
	for _, e := range together {
		e.did = did[e.email]
	}
	return nil
}
