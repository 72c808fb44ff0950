package providertest

import (
	"context"
	"io"
	"sync"
)

// life is the time that a provider runs: it knows its goroutines and ends them.
type life struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	done   sync.WaitGroup
}

func newLife() *life {
	l := &life{}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// enter counts a goroutine in; it reports false when the provider has ended.
func (l *life) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.done.Add(1)
	return true
}

func (l *life) leave() { l.done.Done() }

// run starts f on a goroutine of the provider.
func (l *life) run(f func()) {
	if l.enter() {
		go func() {
			defer l.leave()
			f()
		}()
	}
}

// over is closed when the provider ends.
func (l *life) over() <-chan struct{} { return l.ctx.Done() }

// closeWith closes c when the provider ends, until the returned function is
// called.
func (l *life) closeWith(c io.Closer) (release func() bool) {
	return context.AfterFunc(l.ctx, func() { _ = c.Close() })
}

// end ends the provider and waits for its goroutines.
func (l *life) end(stop func()) {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	stop()
	l.done.Wait()
}
