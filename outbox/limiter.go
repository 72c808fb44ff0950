package outbox

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// maxQueueing is how long a worker lets an email wait for its turn at a
	// provider. One that would wait longer goes back to the queue, and makes
	// room for emails of other providers and orgs.
	maxQueueing = time.Second

	// maxPostponed bounds how far away the next look at an email is put: by
	// then the provider may be back, or its rate another.
	maxPostponed = 15 * time.Minute
)

// limiter gives turns at one provider to the deliveries of this process: to the
// first lane first, and in each in the order in which they came.
type limiter struct {
	// slots reserves the next few turns, one at least, for as many as wait. It
	// may fail, and it may take its time.
	slots func(ctx context.Context, waiting int) ([]time.Time, error)

	mu      sync.Mutex
	queue   turns
	arrived int
	running bool
	// reserved are turns that are taken and not yet given.
	reserved []time.Time
	// later is when the last email was told to come back.
	later time.Time
}

// turn is a delivery that waits.
type turn struct {
	lane, arrival int
	index         int // in the queue; -1: not in it
	ready         chan struct{}
}

// wait waits for a turn. It returns zero when it has come, and otherwise how
// long the email should stay away. every is how long one turn takes.
func (l *limiter) wait(ctx context.Context, lane int, every time.Duration) (time.Duration, error) {
	t := l.enter(lane, every)
	if t == nil {
		return l.comeBack(time.Now().Add(maxQueueing), every), nil
	}
	// Turns come late when the database does, or when other workers take them.
	patience := time.NewTimer(2 * maxQueueing)
	defer patience.Stop()
	select {
	case <-t.ready:
		return 0, nil
	case <-patience.C:
	case <-ctx.Done():
	}
	if !l.leave(t) {
		return 0, nil // it came in this moment
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return l.comeBack(time.Now(), every), nil
}

// enter queues up, unless the line is too long.
func (l *limiter) enter(lane int, every time.Duration) *turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	ahead := 0
	for _, t := range l.queue {
		if t.lane <= lane {
			ahead++
		}
	}
	if ahead > 0 && time.Duration(ahead)*every > maxQueueing {
		return nil
	}
	l.arrived++
	t := &turn{lane: lane, arrival: l.arrived, ready: make(chan struct{})}
	heap.Push(&l.queue, t)
	if !l.running {
		l.running = true
		go l.run()
	}
	return t
}

// leave reports false if the turn has come.
func (l *limiter) leave(t *turn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.index < 0 {
		return false
	}
	heap.Remove(&l.queue, t.index)
	return true
}

// comeBack spreads those who are sent away, one after the other from a time
// on, so that they do not return all at once.
func (l *limiter) comeBack(from time.Time, every time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.later.Before(from) {
		l.later = from
	}
	l.later = l.later.Add(every)
	wait := time.Until(l.later)
	if wait > maxPostponed {
		l.later = time.Now().Add(maxPostponed)
		wait = maxPostponed/2 + rand.N(maxPostponed/2)
	}
	return max(wait, time.Millisecond)
}

// run gives turns as long as somebody waits.
func (l *limiter) run() {
	for {
		slot, ok := l.next()
		if !ok {
			return
		}
		time.Sleep(time.Until(slot))
		l.give()
	}
}

// next returns the time of the next turn; false: nobody waits for one.
func (l *limiter) next() (time.Time, bool) {
	for {
		l.mu.Lock()
		waiting := len(l.queue)
		if waiting == 0 {
			l.running = false
			l.mu.Unlock()
			return time.Time{}, false
		}
		if len(l.reserved) > 0 {
			slot := l.reserved[0]
			l.reserved = l.reserved[1:]
			l.mu.Unlock()
			if time.Since(slot) > maxQueueing {
				continue // left over from an earlier rush
			}
			return slot, true
		}
		l.mu.Unlock()
		l.reserve(waiting)
	}
}

// reserve takes new turns, or waits a moment if there are none.
func (l *limiter) reserve(waiting int) {
	ctx, cancel := context.WithTimeout(context.Background(), maxQueueing)
	defer cancel()
	slots, err := l.slots(ctx, waiting)
	if err != nil || len(slots) == 0 {
		time.Sleep(50*time.Millisecond + rand.N(50*time.Millisecond))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved = slots
}

// give hands the turn to the first in line. If nobody is left it lapses.
func (l *limiter) give() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return
	}
	t, _ := heap.Pop(&l.queue).(*turn)
	close(t.ready)
}

// turns is the line, for [container/heap].
type turns []*turn

func (q turns) Len() int { return len(q) }

func (q turns) Less(i, j int) bool {
	if q[i].lane != q[j].lane {
		return q[i].lane < q[j].lane
	}
	return q[i].arrival < q[j].arrival
}

func (q turns) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements [heap.Interface].
func (q *turns) Push(x any) {
	t, _ := x.(*turn)
	t.index = len(*q)
	*q = append(*q, t)
}

// Pop implements [heap.Interface].
func (q *turns) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	t.index = -1
	return t
}
