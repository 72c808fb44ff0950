package outbox

import "sync"

// group lets things that come at about the same time share a transaction: those that
// come while others are being written wait for them and go together. Nobody waits for
// company: whoever finds nothing being written goes at once, alone. Things under
// different keys do not wait for each other.
type group[K comparable, T any] struct {
	// atOnce is how many writes go on at a time under one key.
	atOnce int
	// fits reports whether one more may join those that go together; nil: any number.
	fits func(together []T, more T) bool
	// write writes what goes together. It tells those who wait.
	write func(key K, together []T)

	mu     sync.Mutex
	queues map[K]*groupQueue[T]
}

type groupQueue[T any] struct {
	waiting []T
	writers int
}

// add has one thing written.
func (g *group[K, T]) add(key K, one T) {
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
	q.waiting = append(q.waiting, one)
	if q.writers < g.atOnce {
		q.writers++
		go g.work(key, q)
	}
}

// work writes until nothing waits.
func (g *group[K, T]) work(key K, q *groupQueue[T]) {
	for together := g.next(key, q); together != nil; together = g.next(key, q) {
		g.write(key, together)
	}
}

// next takes what goes together, the longest waiting first; nil: the writer is done.
func (g *group[K, T]) next(key K, q *groupQueue[T]) []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(q.waiting) == 0 {
		if q.writers--; q.writers == 0 {
			delete(g.queues, key)
		}
		return nil
	}
	n := 1
	for n < len(q.waiting) && (g.fits == nil || g.fits(q.waiting[:n], q.waiting[n])) {
		n++
	}
	together := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	if len(q.waiting) == 0 {
		q.waiting = nil // do not keep what is written
	}
	return together
}
