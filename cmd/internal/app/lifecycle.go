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

var errStopping = errors.New("stopping")

func (r *readiness) check(req *http.Request) error {
	if r.stopping.Load() {
		return errStopping
	}
	ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
	defer cancel()
	return migrations.Check(ctx, r.pool)
}

// serve runs the listeners until ctx ends or one of them fails. Then readiness
// turns false, work stops, and the listeners drain.
func (r *readiness) serve(ctx context.Context, log *slog.Logger, stopWork func(context.Context) error, listeners ...*listener) error {
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		log.InfoContext(ctx, "listening", "name", l.name, "addr", l.socket.Addr().String())
		go func() { failed <- l.serve() }()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	log.InfoContext(ctx, "stopping")
	r.stopping.Store(true)
	ctx = context.WithoutCancel(ctx)
	if stopWork != nil {
		err = errors.Join(err, stopWork(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for _, l := range listeners {
		err = errors.Join(err, l.shutdown(ctx))
	}
	log.InfoContext(ctx, "stopped")
	return err
}
