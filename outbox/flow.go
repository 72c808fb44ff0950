package outbox

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/providers"
)

// A provider has bad days: it asks to be left alone, it is down, its key is
// wrong. All workers then leave it alone, and emails go to another or wait,
// without an attempt. After a while one email of all tries it; when that is
// taken, the rate rises from a few a second, so that what has piled up does not
// knock the provider over again. The state is in Postgres, see availability.go.

const (
	// stateAge is how old what a process knows of the providers may be.
	stateAge = 100 * time.Millisecond

	// breakerThreshold is how many calls in a row have to fail without a word
	// from the provider before it counts as down.
	breakerThreshold = 5

	// rampStart is the rate of each worker, per second, right after a recovery.
	// It doubles each second, and past rampEnd it is not bounded any more.
	rampStart = 10.0
	rampEnd   = 5000.0

	// reportTimeout bounds what is written down about a provider after a call.
	reportTimeout = 5 * time.Second

	// returnEvery spaces those who waited for a provider that was out.
	returnEvery = 5 * time.Millisecond
)

// The back-off of providers that are out: first wait and longest wait. Where the
// provider says how long, that counts.
var (
	rateLimitedWait   = [2]time.Duration{time.Second, time.Minute}
	unavailableWait   = [2]time.Duration{5 * time.Second, time.Minute}
	misconfiguredWait = [2]time.Duration{30 * time.Second, 5 * time.Minute}
)

// flow decides which provider may be used when.
type flow struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	// lease is how long others wait for a probe. One that takes longer, or whose
	// worker has died, is followed by another.
	lease time.Duration
	gates map[string]*gate

	mu     sync.Mutex // held while reading
	readAt time.Time
}

// gate is the way to one provider.
type gate struct {
	name string
	// every is the distance of sends at the configured rate; zero: no bound.
	every    time.Duration
	limiter  limiter
	failures atomic.Int32 // in a row, in this process
	state    atomic.Pointer[gateState]
	last     time.Time // newest turn; used by the limiter's goroutine alone
}

// gateState is a [ProviderState] on this process's monotonic clock.
type gateState struct {
	reason      string
	probeAt     time.Time
	recoveredAt time.Time // zero: long ago, or never out
}

// permit lets one email through to a provider.
type permit struct {
	gate  *gate
	probe bool
	at    time.Time
	// reported is set when a call has shown how the provider is.
	reported bool
}

// hold is why an email has to wait, and for how long. A zero wait: it need not.
type hold struct {
	reason string
	wait   time.Duration
}

func newFlow(pool *pgxpool.Pool, cfg WorkerConfig) *flow {
	f := &flow{pool: pool, log: cfg.Logger, lease: cfg.SendTimeout, gates: map[string]*gate{}}
	for _, p := range cfg.Providers {
		g := &gate{name: p.Name()}
		if rate := cfg.Rates[g.name]; rate > 0 {
			g.every = time.Duration(float64(time.Second) / rate)
		}
		g.state.Store(&gateState{})
		g.limiter.slots = func(ctx context.Context, waiting int) ([]time.Time, error) {
			return f.slots(ctx, g, waiting)
		}
		f.gates[g.name] = g
	}
	return f
}

// register makes the providers known to operators. A worker that starts may have
// been given another key, so a wrong one is tried again.
func (f *flow) register(ctx context.Context) error {
	names := make([]string, 0, len(f.gates))
	for name := range f.gates {
		names = append(names, name)
	}
	_, err := f.pool.Exec(ctx, sqlRegisterProviders, names)
	return err
}

// refresh brings what is known of the providers up to date. If the database
// does not answer, the old state stands: what follows needs it anyway.
func (f *flow) refresh(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.readAt) < stateAge {
		return
	}
	states, err := ProviderStates(ctx, f.pool)
	if err != nil {
		f.log.WarnContext(ctx, "what is known of the providers is old", "error", err)
		return
	}
	now := time.Now()
	for _, s := range states {
		if g := f.gates[s.Name]; g != nil {
			if g.state.Load().reason != "" && s.Reason == "" {
				g.failures.Store(0)
			}
			state := &gateState{reason: s.Reason, probeAt: now.Add(s.ProbeIn)}
			if s.RecoveredFor > 0 {
				state.recoveredAt = now.Add(-s.RecoveredFor)
			}
			g.state.Store(state)
		}
	}
	f.readAt = now
}

// closed returns why an email has to wait that needs the provider; a zero hold:
// it can be tried, as far as this process knows.
func (f *flow) closed(ctx context.Context, name string) hold {
	f.refresh(ctx)
	g := f.gates[name]
	s := g.state.Load()
	if s.reason == "" || time.Now().After(s.probeAt) {
		return hold{}
	}
	return g.comeBack(s)
}

// comeBack spreads those who wait for a provider that is out.
func (g *gate) comeBack(s *gateState) hold {
	return hold{s.reason, g.limiter.comeBack(s.probeAt, returnEvery)}
}

// admit waits for the email's turn at a provider, for a second at most. Without
// a permit, the hold says why and how long the email should stay away.
func (f *flow) admit(ctx context.Context, name string, lane int) (*permit, hold, error) {
	g := f.gates[name]
	f.refresh(ctx)
	s := g.state.Load()
	if s.reason != "" {
		return f.probe(ctx, g, s)
	}
	if every := max(g.every, s.ramp(time.Now())); every > 0 {
		wait, err := g.limiter.wait(ctx, lane, every)
		if wait > 0 || err != nil {
			return nil, hold{reasonRateLimited, wait}, err
		}
		// The provider may have gone while the email was in line.
		f.refresh(ctx)
		if s = g.state.Load(); s.reason != "" {
			return f.probe(ctx, g, s)
		}
	}
	return &permit{gate: g, at: time.Now()}, hold{}, nil
}

// probe lets the email try a provider that is out, if it is time and nobody
// else does.
func (f *flow) probe(ctx context.Context, g *gate, s *gateState) (*permit, hold, error) {
	if time.Now().After(s.probeAt) {
		mine, err := claimProbe(ctx, f.pool, g.name, f.lease)
		if err != nil {
			return nil, hold{}, err
		}
		if mine {
			return &permit{gate: g, probe: true, at: time.Now()}, hold{}, nil
		}
		// Another email tries it. That is over soon, one way or the other.
		s = &gateState{reason: s.reason, probeAt: time.Now().Add(time.Second)}
	}
	return nil, g.comeBack(s), nil
}

// isRamping reports whether the provider is back for only a moment.
func (f *flow) isRamping(name string) bool {
	return f.gates[name].state.Load().ramp(time.Now()) > 0
}

// ramp is the distance of sends after a recovery; zero: no bound any more.
func (s *gateState) ramp(now time.Time) time.Duration {
	if s.recoveredAt.IsZero() {
		return 0
	}
	rate := rampStart * math.Exp2(now.Sub(s.recoveredAt).Seconds())
	if rate >= rampEnd {
		return 0
	}
	return time.Duration(float64(time.Second) / rate)
}

// slots returns the next turns at a provider: from those that all workers
// share, where a rate is set, and not faster than after a recovery.
func (f *flow) slots(ctx context.Context, g *gate, waiting int) ([]time.Time, error) {
	ramp := g.state.Load().ramp(time.Now())
	slots := []time.Time{time.Now()}
	if g.every > 0 {
		n := 1
		if ramp == 0 {
			// A tenth of a second at a time, so that a high rate does not cost
			// a statement for each email.
			n = max(1, min(waiting, int(stateAge/g.every)))
		}
		var err error
		if slots, err = reserveSlots(ctx, f.pool, g.name, n, g.every); err != nil || len(slots) == 0 {
			return nil, err
		}
	}
	if next := g.last.Add(ramp); ramp > 0 && slots[0].Before(next) {
		slots[0] = next
	}
	g.last = slots[len(slots)-1]
	return slots, nil
}

// giveBack lets another email try a provider that is out, if this one was to and
// has not found out how it is.
func (f *flow) giveBack(ctx context.Context, p *permit) {
	if p == nil || !p.probe || p.reported {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	if err := releaseProbe(ctx, f.pool, p.gate.name); err != nil {
		f.log.WarnContext(ctx, "a probe was not given back, another is made after its lease", "error", err)
	}
}

// report tells what came of a call: err is what the provider's adapter said,
// scrubbed.
func (f *flow) report(ctx context.Context, p *permit, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	o, answered := judge(err)
	p.reported = o != nil || answered
	switch {
	case o != nil:
		o.probe, o.age = p.probe, time.Since(p.at)
		if o.reason == reasonUnavailable && !p.probe && p.gate.failures.Add(1) < breakerThreshold {
			return
		}
		f.takeOut(ctx, p.gate, *o)
	case answered:
		p.gate.failures.Store(0)
		if p.probe {
			f.putBack(ctx, p.gate)
		}
	}
}

func (f *flow) takeOut(ctx context.Context, g *gate, o outage) {
	first, wait, err := takeOut(ctx, f.pool, g.name, o)
	if err != nil {
		f.log.WarnContext(ctx, "the other workers do not know yet that a provider is out", "provider", g.name, "error", err)
		return
	}
	if wait <= 0 {
		return
	}
	g.failures.Store(0)
	g.state.Store(&gateState{reason: o.reason, probeAt: time.Now().Add(wait)})
	level := slog.LevelWarn
	if o.reason == reasonMisconfigured {
		level = slog.LevelError // only a person can mend it
	}
	text := "provider is still out"
	if first {
		text = "provider taken out"
	}
	f.log.LogAttrs(ctx, level, text, slog.String("provider", g.name), slog.String("reason", o.reason),
		slog.String("detail", o.detail), slog.Duration("probe_in", wait))
}

func (f *flow) putBack(ctx context.Context, g *gate) {
	out, err := putBack(ctx, f.pool, g.name)
	if err != nil {
		f.log.WarnContext(ctx, "a provider works again and is still out, another probe follows", "provider", g.name, "error", err)
		return
	}
	if out > 0 {
		g.state.Store(&gateState{recoveredAt: time.Now()})
		f.log.InfoContext(ctx, "provider is back", "provider", g.name, "out", out)
	}
}

// judge says what an adapter's answer means for the provider itself: an outage,
// or that it answers and so is well, or neither.
func judge(err error) (o *outage, answered bool) {
	if err == nil {
		return nil, true
	}
	e := providers.AsError(err)
	outOf := func(reason string, wait [2]time.Duration) (*outage, bool) {
		if e.RetryAfter > 0 {
			wait = [2]time.Duration{}
		}
		return &outage{reason: reason, detail: e.Detail, asked: e.RetryAfter, base: wait[0], limit: wait[1]}, false
	}
	switch {
	case e.Code == providers.CodeNotConfirmed, errors.Is(e.Err, context.Canceled):
		return nil, false // our own doing
	case e.Outcome == providers.Misconfigured:
		return outOf(reasonMisconfigured, misconfiguredWait)
	case e.Outcome == providers.Rejected:
		return nil, true
	case e.Outcome == providers.Deferred && (e.Status == http.StatusTooManyRequests || e.RetryAfter > 0):
		return outOf(reasonRateLimited, rateLimitedWait)
	case e.Status == 0, e.Status >= 500, e.Status == smtpClosing:
		return outOf(reasonUnavailable, unavailableWait)
	}
	return nil, true // about this message or its recipient
}

// smtpClosing is the reply of a server that closes the connection, RFC 5321,
// 4.2.1. The other replies with a 4 are about the message.
const smtpClosing = 421
