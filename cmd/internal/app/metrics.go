package app

import (
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// newRegistry returns a registry with what every program shows: the Go runtime,
// the process, and its connections to Postgres.
func newRegistry(pool *pgxpool.Pool) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, p := range poolFigures {
		value := func() float64 { return p.value(pool.Stat()) }
		if p.total {
			registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: p.name, Help: p.help}, value))
		} else {
			registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p.name, Help: p.help}, value))
		}
	}
	return registry
}

// poolFigure is what the pool says about itself.
type poolFigure struct {
	name, help string
	total      bool // it only goes up
	value      func(*pgxpool.Stat) float64
}

var poolFigures = []poolFigure{
	{
		"outboxd_pool_connections_max", "Connections to Postgres that the pool may have.", false,
		func(s *pgxpool.Stat) float64 { return float64(s.MaxConns()) },
	},
	{
		"outboxd_pool_connections_acquired", "Connections in use.", false,
		func(s *pgxpool.Stat) float64 { return float64(s.AcquiredConns()) },
	},
	{
		"outboxd_pool_connections_idle", "Connections that are open and not in use.", false,
		func(s *pgxpool.Stat) float64 { return float64(s.IdleConns()) },
	},
	{
		"outboxd_pool_acquires_total", "Times that a connection was taken from the pool.", true,
		func(s *pgxpool.Stat) float64 { return float64(s.AcquireCount()) },
	},
	{
		"outboxd_pool_acquire_seconds_total", "Time spent waiting for a connection.", true,
		func(s *pgxpool.Stat) float64 { return s.AcquireDuration().Seconds() },
	},
	{
		"outboxd_pool_empty_acquires_total", "Times that somebody had to wait because no connection was idle.", true,
		func(s *pgxpool.Stat) float64 { return float64(s.EmptyAcquireCount()) },
	},
	{
		"outboxd_pool_canceled_acquires_total", "Times that somebody gave up waiting for a connection.", true,
		func(s *pgxpool.Stat) float64 { return float64(s.CanceledAcquireCount()) },
	},
}

// metricsHandler serves a registry. One figure that fails does not keep the
// others away.
func metricsHandler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4,
	})
}
