package outbox

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// group lets things that come at about the same time share a transaction: those that
// come while others are being written wait for them and go together. Nobody waits for
// company: whoever finds nothing being written goes at once, alone. Things under
// different keys do not wait for each other.
type group[K comparable, T any] struct {
	// atOnce is how many writes go on at a time under one key. While one waits for the
	// disk, the next is on its way; with more, fewer things share one, and each costs
	// more.
	atOnce int
	// fits reports whether one more may join those that go together.
	fits func(together []T, more T) bool
	// write writes what goes together, and leaves in each thing what came of it. Its
	// error is about all of them. Once it has what it needs it calls stay, which
	// returns those that are still wanted: until then, who waits may leave. None may
	// be.
	write func(key K, together []T, stay func() []T) error
	// alone writes one thing that write could not, with all the time that it takes.
	alone func(key K, one T) error

	mu     sync.Mutex
	queues map[K]*groupQueue[T]
}

type groupQueue[T any] struct {
	waiting []*waiter[T]
	writers int
}

// waiter is who waits until a thing is written.
type waiter[T any] struct {
	thing T
	state atomic.Int32
	done  chan error
}

// What becomes of a waiter is up to whoever comes first: the writer, who writes what it
// has, or itself, when it gives up.
const (
	isWaiting int32 = iota
	isWritten
	hasLeft
)

// stay takes one who waits to be written, and reports whether it is there.
func (w *waiter[T]) stay() bool {
	return w.state.CompareAndSwap(isWaiting, isWritten) || w.state.Load() == isWritten
}

// do has a thing written and waits until it is. If ctx ends before its writer has what
// it needs, the error is that of ctx and nothing has been written; from then on it is
// not canceled any more.
func (g *group[K, T]) do(ctx context.Context, key K, thing T) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &waiter[T]{thing: thing, done: make(chan error, 1)}
	g.add(key, w)
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		if w.state.CompareAndSwap(isWaiting, hasLeft) {
			return ctx.Err()
		}
		return <-w.done
	}
}

func (g *group[K, T]) add(key K, w *waiter[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[key]
	if q == nil {
		if g.queues == nil {
			g.queues = map[K]*groupQueue[T]{}
		}
		q = &groupQueue[T]{}
		g.queues[key] = q
	}
	q.waiting = append(q.waiting, w)
	if q.writers < g.atOnce {
		q.writers++
		go g.work(key, q)
	}
}

// work writes until nothing waits.
func (g *group[K, T]) work(key K, q *groupQueue[T]) {
	for {
		// Things come in bursts: what a shared transaction ends goes on at the same
		// moment. Whoever is about to run adds itself first, or the first of a burst
		// would go alone and the others wait for its commit.
		runtime.Gosched()
		waiters := g.next(key, q)
		if waiters == nil {
			return
		}
		g.writeAll(key, waiters)
	}
}

// next takes those who go together, the longest waiting first; nil: nobody waits, and
// the writer is done.
func (g *group[K, T]) next(key K, q *groupQueue[T]) (waiters []*waiter[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var together []T
	for len(q.waiting) > 0 {
		w := q.waiting[0]
		if len(together) > 0 && !g.fits(together, w.thing) {
			break
		}
		q.waiting[0], q.waiting = nil, q.waiting[1:]
		if w.state.Load() != hasLeft {
			waiters, together = append(waiters, w), append(together, w.thing)
		}
	}
	if waiters == nil {
		if q.writers--; q.writers == 0 {
			delete(g.queues, key)
		}
	}
	return waiters
}

// writeAll writes together what goes together. If one of them is why that fails, each
// is tried by itself, one after the other: many connections at once would cost more
// than that. Whose fault it was goes on alone, and nobody waits for it any more.
func (g *group[K, T]) writeAll(key K, waiters []*waiter[T]) {
	together := make([]T, len(waiters))
	for i, w := range waiters {
		together[i] = w.thing
	}
	err := g.write(key, together, func() (wanted []T) {
		for _, w := range waiters {
			if w.stay() {
				wanted = append(wanted, w.thing)
			}
		}
		return wanted
	})
	switch {
	case !isAboutOne(err):
		for _, w := range waiters {
			w.done <- err
		}
	case len(waiters) > 1:
		for i := range waiters {
			g.writeAll(key, waiters[i:i+1])
		}
	case waiters[0].stay():
		go func() { waiters[0].done <- g.alone(key, together[0]) }()
	}
}

// isAboutOne reports whether an error may be about one of the things that went
// together: Postgres refused it, and nothing is written.
func isAboutOne(err error) bool {
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)
	if unconnected || errors.Is(err, ErrOutcomeUnknown) {
		return false
	}
	_, refused := errors.AsType[*pgconn.PgError](err)
	return refused || errors.Is(err, ErrSubmissionInProgress)
}
