package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/migrations"
)

// stopTimeout bounds how long requests may take to end after a stop began.
const stopTimeout = 15 * time.Second

// readiness tells load balancers whether to send requests here.
type readiness struct {
	pool     *pgxpool.Pool
	stopping atomic.Bool
}

var (
	errStarting = errors.New("starting")
	errStopping = errors.New("stopping")
)

func (r *readiness) check(req *http.Request) error {
	if r.stopping.Load() {
		return errStopping
	}
	ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
	defer cancel()
	return migrations.Suffices(ctx, r.pool)
}

// serve runs the listeners, and the work if there is any, until ctx ends or one
// of them fails. Then readiness turns false, the work ends, and the listeners
// drain.
func (r *readiness) serve(ctx context.Context, log *slog.Logger, work func(context.Context) error, listeners ...*listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for _, l := range listeners {
		log.InfoContext(ctx, "listening", "name", l.name, "addr", l.socket.Addr().String())
		go func() { stop(l.serve()) }()
	}
	context.AfterFunc(ctx, func() {
		log.InfoContext(ctx, "stopping")
		r.stopping.Store(true)
	})
	var err error
	if work != nil {
		err = work(ctx)
		stop(err)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(err, cause) {
		err = errors.Join(err, cause) // a listener failed
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	for _, l := range listeners {
		err = errors.Join(err, l.shutdown(drain))
	}
	log.InfoContext(ctx, "stopped")
	return err
}

// inBackground runs work until stop is called, whatever becomes of ctx. stop waits
// for its end.
func inBackground(ctx context.Context, work func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}
