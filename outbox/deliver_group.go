package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// groupDeliveries bounds how many deliveries share a transaction.
	groupDeliveries = 100
	// groupTimeout bounds that transaction.
	groupTimeout = 10 * time.Second
)

// sqlStablePlans is for the transaction of a group. Its statements find a few rows each
// by an index, however many emails there are. To plan them anew each time takes longer
// than to run them; and a plan that is kept must not be one for the empty tables that
// there were when it was made.
const sqlStablePlans = `
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

// deliveryGroups are those in which a worker's deliveries use the database. Each has to
// load the email, and to commit before the call to the provider and after it; those of
// concurrent deliveries are the same statements. There is one key: a worker sees the
// rows of all orgs.
type deliveryGroups struct {
	pool    *pgxpool.Pool
	metrics *Metrics
	loads   *group[struct{}, *loading]
	begins  *group[struct{}, *begun]
	ends    *group[struct{}, *ended]
}

// loading is an email that is to be loaded, and what was found; nil: nothing.
type loading struct {
	id    uuid.UUID
	found *loaded
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

func newDeliveryGroups(pool *pgxpool.Pool, metrics *Metrics) *deliveryGroups {
	g := &deliveryGroups{pool: pool, metrics: metrics}
	g.loads = groupOfEmails(func(l *loading) uuid.UUID { return l.id }, g.loadTogether)
	g.begins = groupOfEmails(func(b *begun) uuid.UUID { return b.email }, g.beginTogether)
	g.ends = groupOfEmails(func(e *ended) uuid.UUID { return e.email }, g.endTogether)
	return g
}

// groupOfEmails makes a group of things that are about an email each. No two are about
// the same one: of two outcomes in one statement Postgres would take either.
func groupOfEmails[T any](email func(*T) uuid.UUID, write func(context.Context, []*T) error) *group[struct{}, *T] {
	g := &group[struct{}, *T]{atOnce: groupsAtOnce}
	g.fits = func(together []*T, more *T) bool {
		return len(together) < groupDeliveries &&
			!slices.ContainsFunc(together, func(t *T) bool { return email(t) == email(more) })
	}
	g.write = func(_ struct{}, _ []*T, stay func() []*T) error {
		together := stay()
		if len(together) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
		defer cancel()
		return write(ctx, together)
	}
	g.alone = func(key struct{}, one *T) error {
		return g.write(key, nil, func() []*T { return []*T{one} })
	}
	return g
}

// load reads an email with its whole content. It returns [ErrNotFound] for one that
// does not exist.
func (g *deliveryGroups) load(ctx context.Context, keys *KeyRing, id uuid.UUID) (*delivery, error) {
	one := &loading{id: id}
	if err := g.loads.do(ctx, struct{}{}, one); err != nil {
		return nil, err
	}
	if one.found == nil {
		return nil, ErrNotFound
	}
	return one.found.complete(ctx, g.pool, keys)
}

func (g *deliveryGroups) loadTogether(ctx context.Context, together []*loading) error {
	ids := make([]uuid.UUID, len(together))
	for i, l := range together {
		ids[i] = l.id
	}
	found, err := load(ctx, g.pool, ids)
	for _, l := range together {
		l.found = found[l.id]
	}
	return err
}

// begin records the intent to send, and reports whether the attempt may go on.
func (g *deliveryGroups) begin(ctx context.Context, b beginning) (bool, error) {
	one := &begun{beginning: b}
	err := g.begins.do(ctx, struct{}{}, one)
	return one.did, err
}

func (g *deliveryGroups) beginTogether(ctx context.Context, together []*begun) error {
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

// end records an outcome, and reports whether it changed anything.
func (g *deliveryGroups) end(ctx context.Context, e ending) (bool, error) {
	one := &ended{ending: e}
	err := g.ends.do(ctx, struct{}{}, one)
	return err == nil && one.did, err
}

func (g *deliveryGroups) endTogether(ctx context.Context, together []*ended) error {
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
