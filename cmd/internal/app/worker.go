package app

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"

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

	suppressOn, err := cfg.suppressOn()
	if err != nil {
		return err
	}
	worker, err := outbox.NewWorker(pool, outbox.WorkerConfig{
		Providers: list, Rates: cfg.rates(), Logger: log,
		SendTimeout: cfg.SendTimeout.D(), GiveUpAfter: cfg.GiveUpAfter.D(),
		UnknownWait: cfg.UnknownWait.D(), OnUnknown: outbox.Policy(cfg.OnUnknown),
		Concurrency: cfg.Concurrency, AllowPrivateWebhooks: cfg.WebhookAllowPrivate, Version: Version,
		PublicURL: cfg.PublicURL, SuppressOn: suppressOn, Installation: cfg.Installation,
	})
	if err != nil {
		return err
	}
	var working atomic.Bool
	ready := &readiness{pool: pool}
	isReady := func(r *http.Request) error {
		if !working.Load() {
			return errStarting
		}
		return ready.check(r)
	}
	ops, err := listen("ops", cmp.Or(cfg.OpsAddr, defaultWorkerOpsAddr), cfg.opsHandler(isReady, nil), log)
	if err != nil {
		return err
	}
	return ready.serve(ctx, log, func(ctx context.Context) error {
		return worker.Run(ctx, func() { working.Store(true) })
	}, ops)
}
