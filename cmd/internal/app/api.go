package app

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

// The default ops addresses are on the loopback interface: what they serve is
// not for everybody, even with a password.
const (
	defaultAPIOpsAddr    = "127.0.0.1:9090"
	defaultWorkerOpsAddr = "127.0.0.1:9091"
)

// RunAPI serves the HTTP API until ctx ends, then drains it.
func RunAPI(ctx context.Context, cfg Config, log *slog.Logger) error {
	pool, err := openPool(ctx, cfg.APIPool)
	if err != nil {
		return err
	}
	defer pool.Close()
	keys, err := cfg.keys()
	if err != nil {
		return err
	}
	suppressOn, err := cfg.suppressOn()
	if err != nil {
		return err
	}
	hooks, err := cfg.hooks()
	if err != nil {
		return err
	}
	traces, err := cfg.Traces.start(ctx, "outboxd-api", log)
	if err != nil {
		return err
	}
	defer traces.stop(ctx)
	registry := newRegistry(pool)
	outbox.RegisterState(registry, pool)
	client, err := outbox.NewClient(pool, outbox.Config{
		IdempotencyTTL: cfg.IdempotencyTTL.D(), Providers: cfg.judges(ctx, log), Logger: log,
		PublicURL: cfg.PublicURL, SuppressOn: suppressOn, Keys: keys,
		AllowPrivateWebhooks: cfg.WebhookAllowPrivate, MaxQueued: int(cfg.MaxQueued),
		Metrics: outbox.NewMetrics(registry),
	})
	if err != nil {
		return err
	}
	ready := &readiness{pool: pool}

	pagesCtx, stopPages := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPages()
	pages, err := cfg.newAdminPages(pagesCtx, pool, client, keys, log)
	if err != nil {
		return err
	}
	server := api.New(api.Config{
		Pool: pool, Outbox: client, Hooks: hooks, Ready: ready.check, Logger: log,
		MaxBody: int64(cfg.MaxBody), KeyRate: api.Rate(cfg.KeyRate), OrgRate: api.Rate(cfg.OrgRate),
		Metrics: api.NewMetrics(registry), TracerProvider: traces.provider(),
	})
	public, err := listen("api", cfg.Addr, server, log)
	if err != nil {
		return err
	}
	public.atMost(cfg.MaxConnections)
	ops, err := listen("ops", cmp.Or(cfg.OpsAddr, defaultAPIOpsAddr), cfg.opsHandler(ready.check, pages, metricsHandler(registry)), log)
	if err != nil {
		return err
	}
	// It ends after the last request, and before the pool.
	defer inBackground(ctx, server.Run)()
	return ready.serve(ctx, log, nil, public, ops)
}
