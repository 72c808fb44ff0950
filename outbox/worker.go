package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

// WorkerConfig configures a [Worker].
type WorkerConfig struct {
	DelivererConfig
	// Concurrency is how many emails are delivered at a time. Zero: 50.
	Concurrency int
	// Version is the program's, for operators.
	Version string
}

// Worker delivers emails, as one of any number of processes on a database. It
// holds a liveness session, so that what it was doing is taken over within
// seconds when it dies, and takes over what others left.
type Worker struct {
	pool      *pgxpool.Pool
	deliverer *Deliverer
	cfg       WorkerConfig
	log       *slog.Logger
}

// NewWorker returns a worker on a pool of direct connections: behind a pooler
// in transaction mode there are no sessions.
func NewWorker(pool *pgxpool.Pool, cfg WorkerConfig) (*Worker, error) {
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 50
	}
	deliverer, err := NewDeliverer(pool, cfg.DelivererConfig)
	if err != nil {
		return nil, err
	}
	return &Worker{pool: pool, deliverer: deliverer, cfg: cfg, log: deliverer.log}, nil
}

// shift is the work under one session: an id, a lock, a River client.
type shift struct {
	session *session
	jobs    *river.Client[pgx.Tx]
}

// Run delivers until ctx ends, then lets what is being sent end. It returns
// an error if it cannot start; once started it goes on, through restarts of
// the database too. started is called when the first shift has begun.
//
// When the session is lost while the process lives, nothing new is begun and
// what is being sent ends under the old id, while work goes on under a new
// one. The old id is never used again, so others can safely take it for dead.
func (w *Worker) Run(ctx context.Context, started func()) error {
	var ending sync.WaitGroup
	defer ending.Wait()
	for first := true; ; first = false {
		s, err := w.begin(ctx, !first)
		if err != nil {
			return err
		}
		if s == nil { // ctx ended while the database was away
			return nil
		}
		if first && started != nil {
			started()
		}
		select {
		case <-ctx.Done():
			return w.end(ctx, s)
		case <-s.session.lost:
		}
		w.log.WarnContext(ctx, "liveness session lost, opening another", "worker", s.session.id)
		ending.Go(func() {
			if err := w.end(ctx, s); err != nil {
				w.log.WarnContext(ctx, "end of the lost session's work", "error", err)
			}
		})
	}
}

// begin opens a session and starts to work under it. With patience it tries
// until ctx ends.
func (w *Worker) begin(ctx context.Context, patient bool) (*shift, error) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		s, err := w.tryBegin(ctx)
		if err == nil || !patient {
			return s, err
		}
		w.log.WarnContext(ctx, "no liveness session, trying again", "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

func (w *Worker) tryBegin(ctx context.Context) (*shift, error) {
	session, err := openSession(ctx, w.pool, w.cfg.Version)
	if err != nil {
		return nil, err
	}
	s := &shift{session: session}
	if s.jobs, err = w.newClient(session); err == nil {
		// Ending ctx must not cancel what is being sent: end stops the client.
		err = s.jobs.Start(context.WithoutCancel(ctx))
	}
	if err != nil {
		session.close(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("river: %w", err)
	}
	sweeper, err := w.newSweeper()
	if err != nil {
		return nil, errors.Join(err, w.end(ctx, s))
	}
	sweepCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		<-session.lost
		stop()
	}()
	go sweeper.run(sweepCtx)
	w.log.InfoContext(ctx, "worker started", "worker", session.id)
	return s, nil
}

func (w *Worker) newSweeper() (*sweeper, error) {
	client, err := NewClient(w.pool, Config{Logger: w.log})
	if err != nil {
		return nil, err
	}
	return &sweeper{pool: w.pool, log: w.log, jobs: client, jobBudget: w.deliverer.Timeout(nil)}, nil
}

func (w *Worker) newClient(s *session) (*river.Client[pgx.Tx], error) {
	deliverer := *w.deliverer
	deliverer.session, deliverer.cfg.WorkerID = s, s.id
	cfg := &river.Config{
		ID:     s.id,
		Logger: w.log,
		// What has not ended by then is cut off, and is in doubt.
		SoftStopTimeout: w.deliverer.cfg.SendTimeout + 5*time.Second,
	}
	if err := deliverer.Configure(cfg, w.cfg.Concurrency); err != nil {
		return nil, err
	}
	return river.NewClient(riverpgxv5.New(w.pool), cfg)
}

// end stops fetching, waits for what is being sent, and gives the session up
// last: until then this worker owns its attempts.
func (w *Worker) end(ctx context.Context, s *shift) error {
	ctx = context.WithoutCancel(ctx)
	err := s.jobs.Stop(ctx)
	s.session.close(ctx)
	return err
}
