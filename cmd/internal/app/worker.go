package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/outboxd/outboxd/outbox"
)

// RunWorker delivers emails until ctx ends, then lets what is being sent end.
func RunWorker(ctx context.Context, cfg Config, log *slog.Logger) error {
	list, err := cfg.newProviders()
	if err != nil {
		return err
	}
	// A delivery holds a connection only for its short statements.
	conns := int32(min(max(cfg.Concurrency/2, 8), 32))
	pool, err := openPool(ctx, cfg.DatabaseURL, "worker", workerSettings, conns)
	if err != nil {
		return err
	}
	defer pool.Close()

	id := newWorkerID()
	log = log.With("worker", id)
	deliverer, err := outbox.NewDeliverer(pool, outbox.DelivererConfig{
		Providers: list, WorkerID: id, Logger: log,
		SendTimeout: cfg.SendTimeout.D(), GiveUpAfter: cfg.GiveUpAfter.D(),
	})
	if err != nil {
		return err
	}
	riverCfg := &river.Config{
		ID:     id,
		Logger: log,
		// What has not ended by then is cut off, and is in doubt.
		SoftStopTimeout: cfg.SendTimeout.D() + 5*time.Second,
	}
	if err := deliverer.Configure(riverCfg, cfg.Concurrency); err != nil {
		return err
	}
	jobs, err := river.NewClient(riverpgxv5.New(pool), riverCfg)
	if err != nil {
		return fmt.Errorf("river: %w", err)
	}
	ready := &readiness{pool: pool}
	ops, err := listen("ops", cmp.Or(cfg.OpsAddr, defaultWorkerOpsAddr), cfg.opsHandler(ready.check, nil), log)
	if err != nil {
		return err
	}
	// Ending ctx must not cancel what is being sent: Stop is called instead.
	if err := jobs.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("river: %w", err)
	}
	return ready.serve(ctx, log, jobs.Stop, ops)
}

// newWorkerID names this start of the process. It is never the same twice: a
// successor under the same name would hide what its predecessor left behind.
func newWorkerID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%.40s/%d/%s", host, os.Getpid(), rand.Text()[:8])
}
