package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/outboxd/outboxd/outbox"
)

// RunWorker delivers emails until ctx ends, then lets what is being sent end.
func RunWorker(ctx context.Context, cfg Config, log *slog.Logger) error {
	workerConfig, err := cfg.WorkerConfig(log)
	if err != nil {
		return err
	}
	pool, err := openPool(ctx, cfg.WorkerPool)
	if err != nil {
		return err
	}
	defer pool.Close()

	traces, err := cfg.Traces.start(ctx, "outboxd-worker", log)
	if err != nil {
		return err
	}
	defer traces.stop(ctx)
	workerConfig.TracerProvider = traces.provider()
	registry := newRegistry(pool)
	workerConfig.Metrics = outbox.NewMetrics(registry)
	worker, err := outbox.NewWorker(pool, workerConfig)
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
	ops, err := listen("ops", cmp.Or(cfg.OpsAddr, defaultWorkerOpsAddr), cfg.opsHandler(isReady, nil, metricsHandler(registry)), log)
	if err != nil {
		return err
	}
	return ready.serve(ctx, log, func(ctx context.Context) error {
		return worker.Run(ctx, func() { working.Store(true) })
	}, ops)
}

// WorkerConfig is what a worker process is told. The error names the providers that
// cannot be used; the rest of the configuration is complete all the same.
func (c *Config) WorkerConfig(log *slog.Logger) (outbox.WorkerConfig, error) {
	list, err := c.newProviders()
	suppressOn, wrong := c.suppressOn()
	keys, wrongKeys := c.keys()
	return outbox.WorkerConfig{
		Providers: list, Rates: c.rates(), Logger: log,
		SendTimeout: c.SendTimeout.D(), GiveUpAfter: c.GiveUpAfter.D(),
		UnknownWait: c.UnknownWait.D(), OnUnknown: outbox.Policy(c.OnUnknown),
		Concurrency: c.Concurrency, AllowPrivateWebhooks: c.WebhookAllowPrivate, Version: Version,
		PublicURL: c.PublicURL, SuppressOn: suppressOn, Installation: c.Installation, Keys: keys,
		ContentRetention: c.ContentRetention.D(),
	}, errors.Join(err, wrong, wrongKeys)
}
