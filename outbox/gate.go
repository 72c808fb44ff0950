package outbox

import (
	"context"
	"maps"
	"sync"
	"time"
)

const (
	// perKey is how many submissions with one key one process has in the
	// database at a time. Each of them can wait there for somebody else's
	// transaction, and holds a connection meanwhile: without a bound, clients
	// that hammer one held key would keep all others from the pool.
	perKey = 4

	// gateTimeout is how long the further ones wait for their turn.
	gateTimeout = 2 * time.Second

	// heldFor is how long a key is remembered that somebody else was found to hold.
	heldFor = 5 * time.Second
)

// keyGate lets a few submissions with the same key through at a time.
type keyGate struct {
	mu    sync.Mutex
	doors map[keyScope]*door
	held  map[keyScope]time.Time // until when
}

type door struct {
	slots chan struct{}
	users int // those inside and those who wait
}

// enter waits for a turn. It returns [ErrSubmissionInProgress] when none came
// in time, and otherwise what ends the turn.
func (g *keyGate) enter(ctx context.Context, key keyScope) (leave func(), err error) {
	d := g.approach(key)
	timeout := time.NewTimer(gateTimeout)
	defer timeout.Stop()
	select {
	case d.slots <- struct{}{}:
		return func() {
			<-d.slots
			g.depart(key, d)
		}, nil
	case <-timeout.C:
		err = ErrSubmissionInProgress
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.depart(key, d)
	return nil, err
}

func (g *keyGate) approach(key keyScope) *door {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.doors == nil {
		g.doors = map[keyScope]*door{}
	}
	d := g.doors[key]
	if d == nil {
		d = &door{slots: make(chan struct{}, perKey)}
		g.doors[key] = d
	}
	d.users++
	return d
}

func (g *keyGate) depart(key keyScope, d *door) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d.users--; d.users == 0 {
		delete(g.doors, key)
	}
}

// hold remembers that somebody else, in another process, holds a key.
func (g *keyGate) hold(key keyScope) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(g.held, func(_ keyScope, until time.Time) bool { return now.After(until) })
	if g.held == nil {
		g.held = map[keyScope]time.Time{}
	}
	g.held[key] = now.Add(heldFor)
}

// isHeld reports whether somebody else held a key a moment ago.
func (g *keyGate) isHeld(key keyScope) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	until, ok := g.held[key]
	return ok && time.Now().Before(until)
}
