package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
)

// Membership makes a River client one of outboxd's workers: a liveness session,
// under whose id the client works, and the sweep that takes over what dead
// workers left.
type Membership struct {
	session *session
	// stopSweep ends the sweep, and swept is closed when it has ended.
	stopSweep context.CancelFunc
	swept     chan struct{}
}

// AddWorkers makes the River client that is built from config deliver emails,
// beside the jobs that the application has for it. It adds workers, queues and
// periodic jobs, sets the client's ID and schema, and leaves the rest alone.
// The client's own jobs are in [Schema] then, too. An application without jobs
// of its own takes a [Worker], which does all that follows.
//
// From now on the sweep runs. Start the client next. When it has stopped, close
// the membership, and not before: while it stands, the client owns what it is
// sending. When the membership is lost, nothing new is sent: stop the client,
// and build another with another membership.
func AddWorkers(ctx context.Context, config *river.Config, pool *pgxpool.Pool, cfg WorkerConfig) (*Membership, error) {
	if config.Schema != "" && config.Schema != Schema {
		return nil, fmt.Errorf("the River client is in the schema %q, and the jobs that deliver emails are in %q", config.Schema, Schema)
	}
	if config.ID != "" {
		return nil, fmt.Errorf("the River client has the ID %q: leave it to AddWorkers, which needs a new one for each start", config.ID)
	}
	w, err := NewWorker(pool, cfg)
	if err != nil {
		return nil, err
	}
	return w.join(ctx, config)
}

// join opens a session and starts the sweep. The deliverer is a copy that knows
// the session, and shares with all others of this process what is under way.
func (w *Worker) join(ctx context.Context, config *river.Config) (*Membership, error) {
	sweeper, err := w.newSweeper()
	if err != nil {
		return nil, err
	}
	session, err := openSession(ctx, w.pool, w.cfg.Version)
	if err != nil {
		return nil, err
	}
	if err := w.recognize(ctx, session); err != nil {
		session.close(context.WithoutCancel(ctx))
		return nil, err
	}
	if err := w.deliverer.flow.register(ctx); err != nil {
		session.close(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("register providers: %w", err)
	}
	m := &Membership{session: session, swept: make(chan struct{})}
	config.ID = session.id
	if config.Test.Time == nil {
		// Meant for tests, and the only way to give River another clock.
		config.Test.Time = &session.clock
	}
	if config.SoftStopTimeout == 0 {
		config.SoftStopTimeout = w.deliverer.softStop()
	}
	deliverer := *w.deliverer
	deliverer.session, deliverer.worker = session, session.id
	if err := deliverer.configure(config); err != nil {
		session.close(context.WithoutCancel(ctx))
		return nil, err
	}
	m.sweep(context.WithoutCancel(ctx), sweeper)
	return m, nil
}

func (w *Worker) newSweeper() (*sweeper, error) {
	client, err := NewClient(w.pool, Config{Logger: w.log})
	if err != nil {
		return nil, err
	}
	return &sweeper{
		pool: w.pool, log: w.log, jobs: client, jobBudget: w.deliverer.Timeout(nil), metrics: w.deliverer.cfg.Metrics,
	}, nil
}

// sweep sweeps until the session is lost or closed.
func (m *Membership) sweep(ctx context.Context, s *sweeper) {
	ctx, m.stopSweep = context.WithCancel(ctx)
	go func() {
		defer close(m.swept)
		s.run(ctx)
	}()
	go func() {
		<-m.session.lost
		m.stopSweep()
	}()
}

// ID is the id of the worker, on its attempts and as River's client id.
func (m *Membership) ID() string { return m.session.id }

// Lost is closed when the membership has ended: others may take over what the
// client had begun.
func (m *Membership) Lost() <-chan struct{} { return m.session.lost }

// Close gives the membership up. The River client must have stopped.
func (m *Membership) Close(ctx context.Context) {
	m.session.close(context.WithoutCancel(ctx))
	m.stopSweep()
	<-m.swept
}
