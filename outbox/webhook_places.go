package outbox

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// slowEndpoint is how long an answer may take before the endpoint counts as
	// slow.
	slowEndpoint = 2 * time.Second
	// quickAnswer is the least that an answer is thought to take.
	quickAnswer = 50 * time.Millisecond
	// maxEndpoints bounds what is remembered.
	maxEndpoints = 10_000
)

// endpointPlaces shares this process's requests between endpoints: a few at a
// time to each, and one to those that are slow or failing. So an endpoint that
// answers nobody holds up its own messages and no others.
type endpointPlaces struct {
	mu   sync.Mutex
	seen map[uuid.UUID]*endpointLoad
}

// endpointLoad is what an endpoint has to do.
type endpointLoad struct {
	busy int
	took time.Duration // the last answer
	// later is when the last message was told to come back.
	later time.Time
}

// enter takes a place. leave gives it back, with how long the answer took. Where
// there is none, leave is nil, and the message comes back after wait.
func (p *endpointPlaces) enter(webhook uuid.UUID, failing bool) (leave func(took time.Duration), wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.find(webhook)
	share := endpointShare
	if failing || e.took > slowEndpoint {
		share = 1
	}
	if e.busy >= share {
		return nil, e.comeBack(time.Now(), max(e.took, quickAnswer)/time.Duration(share))
	}
	e.busy++
	return func(took time.Duration) {
		p.mu.Lock()
		defer p.mu.Unlock()
		e.busy--
		e.took = took
	}, 0
}

// find forgets idle endpoints now and then.
func (p *endpointPlaces) find(webhook uuid.UUID) *endpointLoad {
	if e, ok := p.seen[webhook]; ok {
		return e
	}
	if p.seen == nil {
		p.seen = map[uuid.UUID]*endpointLoad{}
	}
	if len(p.seen) >= maxEndpoints {
		for id, e := range p.seen {
			if e.busy == 0 {
				delete(p.seen, id)
			}
		}
	}
	e := new(endpointLoad)
	p.seen[webhook] = e
	return e
}

// comeBack spreads those who are sent away, one after the other, so that they do
// not return all at once.
func (e *endpointLoad) comeBack(now time.Time, every time.Duration) time.Duration {
	if e.later.Before(now) {
		e.later = now
	}
	e.later = e.later.Add(every)
	wait := e.later.Sub(now)
	if wait > maxPostponed {
		e.later = now.Add(maxPostponed)
		wait = maxPostponed/2 + rand.N(maxPostponed/2)
	}
	return wait
}
