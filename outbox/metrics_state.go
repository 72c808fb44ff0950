package outbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// stateTimeout bounds the reading of the state for a scrape, and stateKept is
	// how long what was read is shown again: several scrapers cost no more than one.
	stateTimeout = 2 * time.Second
	stateKept    = 5 * time.Second

	// stateLimit bounds what a scrape counts: so many emails that are scheduled,
	// so many others, and so many jobs of a state. Figures stop there.
	stateLimit = 100_000
)

// sqlState reads the state in one go, as rows of a metric, its labels and its
// value. The emails come by the index of those that have not ended, the oldest
// first, so what is stored beyond them costs nothing. An email that waits for a
// later time is counted and has no age; one in doubt is as old as its doubt. The
// states of jobs are constants, each by itself: otherwise Postgres takes them for
// common and reads the whole table. An application that shares River with outboxd has
// queues of its own, which are its to count.
const sqlState = `
WITH open AS (
    (SELECT id, status, priority, greatest(created_at, scheduled_at, next_attempt_at) AS due FROM outbox.emails
    WHERE ended_at IS NULL AND status <> 'scheduled' ORDER BY id LIMIT $2)
    UNION ALL
    (SELECT id, status, priority, greatest(created_at, scheduled_at, next_attempt_at) FROM outbox.emails
    WHERE ended_at IS NULL AND status = 'scheduled' ORDER BY id LIMIT $2)
), aged AS (
    SELECT o.status, o.priority,
        CASE WHEN o.status = 'unknown' THEN (
            SELECT a.in_doubt_at FROM outbox.attempts a WHERE a.email_id = o.id AND a.stage = 'sending')
        ELSE o.due END AS due
    FROM open o
), emails AS (
    SELECT status, priority, count(*) AS n, extract(epoch FROM now() - min(due)) AS age FROM aged GROUP BY status, priority
), grid AS (
    SELECT s.status, p.priority, p.name, e.n, e.age
    FROM unnest(ARRAY['scheduled', 'queued', 'sending', 'unknown']) AS s (status)
        CROSS JOIN (VALUES (1::smallint, 'high'), (2::smallint, 'normal'), (3::smallint, 'low')) AS p (priority, name)
        LEFT JOIN emails e ON e.status = s.status AND e.priority = p.priority
), jobs AS (
    (SELECT queue, state FROM outbox.river_job WHERE state = 'available' AND queue = ANY ($3::text[]) LIMIT $2)
    UNION ALL (SELECT queue, state FROM outbox.river_job WHERE state = 'pending' AND queue = ANY ($3::text[]) LIMIT $2)
    UNION ALL (SELECT queue, state FROM outbox.river_job WHERE state = 'retryable' AND queue = ANY ($3::text[]) LIMIT $2)
    UNION ALL (SELECT queue, state FROM outbox.river_job WHERE state = 'running' AND queue = ANY ($3::text[]) LIMIT $2)
    UNION ALL (SELECT queue, state FROM outbox.river_job WHERE state = 'scheduled' AND queue = ANY ($3::text[]) LIMIT $2)
), waiting AS (
    SELECT queue, state, count(*) AS n FROM jobs GROUP BY queue, state
)
SELECT 'outboxd_emails', status, name, coalesce(n, 0)::float8 FROM grid
UNION ALL
SELECT 'outboxd_oldest_email_seconds', status, name, coalesce(greatest(age, 0), 0)::float8 FROM grid
UNION ALL
SELECT 'outboxd_provider_in_order', name, '', (reason IS NULL)::integer::float8 FROM outbox.providers
UNION ALL
SELECT 'outboxd_workers_alive', '', '', count(DISTINCT w.id)::float8
FROM ` + aliveSQL + `
WHERE w.ended_at IS NULL
UNION ALL
SELECT 'outboxd_jobs', q.name, s.state::text, coalesce(j.n, 0)::float8
FROM unnest($3::text[]) AS q (name)
    CROSS JOIN unnest(ARRAY['available', 'pending', 'retryable', 'running', 'scheduled']::outbox.river_job_state[]) AS s (state)
    LEFT JOIN waiting j ON j.queue = q.name AND j.state = s.state
UNION ALL
SELECT 'outboxd_webhooks_failing', '', '', count(*)::float8
FROM outbox.webhooks WHERE status = 'enabled' AND failing_since IS NOT NULL`

// stateCollector shows what is a state and not an event, as the database has it.
type stateCollector struct {
	pool *pgxpool.Pool
	// kept is how long what was read is shown.
	kept   time.Duration
	errors prometheus.Counter
	descs  map[string]*prometheus.Desc
	// labels counts the labels of each metric.
	labels map[string]int

	mu     sync.Mutex // held while reading
	readAt time.Time
	shown  []prometheus.Metric
}

// RegisterState shows the state of the deployment whenever it is scraped: what
// waits and for how long, the providers, the live workers. It is the same
// wherever it is asked for, so one process shows it: the API.
func RegisterState(registerer prometheus.Registerer, pool *pgxpool.Pool) {
	registerer.MustRegister(newStateCollector(pool))
}

func newStateCollector(pool *pgxpool.Pool) *stateCollector {
	c := &stateCollector{
		pool: pool, kept: stateKept, descs: map[string]*prometheus.Desc{}, labels: map[string]int{},
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outboxd_scrape_errors_total",
			Help: "Scrapes for which the database could not be read in time: the figures that it has are absent.",
		}),
	}
	c.describe("outboxd_emails", "Emails that have not ended. At most 100000 scheduled and 100000 others are counted.", "status", "priority")
	c.describe("outboxd_oldest_email_seconds",
		"Age of the oldest email since it was due, for status unknown since it is in doubt; 0: none is due.", "status", "priority")
	c.describe("outboxd_provider_in_order", "1: emails are handed over to the provider; 0: it is taken out.", "provider")
	c.describe("outboxd_workers_alive", "Workers whose liveness session stands.")
	c.describe("outboxd_jobs", "Jobs that have not ended, in the queues of outboxd. At most 100000 of each state are counted.", "queue", "state")
	c.describe("outboxd_webhooks_failing", "Enabled webhooks of orgs whose last request failed.")
	return c
}

func (c *stateCollector) describe(name, help string, labels ...string) {
	c.descs[name], c.labels[name] = prometheus.NewDesc(name, help, labels, nil), len(labels)
}

// Describe sends what Collect may show.
func (c *stateCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
	c.errors.Describe(to)
}

// Collect shows the state. What cannot be read is absent, so that an old figure
// is never taken for a new one.
func (c *stateCollector) Collect(to chan<- prometheus.Metric) {
	for _, m := range c.current() {
		to <- m
	}
	c.errors.Collect(to)
}

// current returns the state, read at most so long ago. A failure is remembered
// as long, so that a database in trouble is not asked by everybody.
func (c *stateCollector) current() []prometheus.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.readAt.IsZero() && time.Since(c.readAt) < c.kept {
		return c.shown
	}
	ctx, cancel := context.WithTimeout(context.Background(), stateTimeout)
	defer cancel()
	var err error
	if c.shown, err = c.read(ctx); err != nil {
		c.errors.Inc()
		c.shown = nil
	}
	c.readAt = time.Now()
	return c.shown
}

func (c *stateCollector) read(ctx context.Context) ([]prometheus.Metric, error) {
	var shown []prometheus.Metric
	err := AcrossOrgs(c.pool).Query(ctx, func(rows pgx.Rows) (err error) {
		shown, err = pgx.CollectRows(rows, c.metricOf)
		return err
	}, sqlState, lockNamespace, stateLimit, Queues())
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return shown, nil
}

func (c *stateCollector) metricOf(row pgx.CollectableRow) (prometheus.Metric, error) {
	var name string
	var labels [2]string
	var value float64
	if err := row.Scan(&name, &labels[0], &labels[1], &value); err != nil {
		return nil, err
	}
	return prometheus.NewConstMetric(c.descs[name], prometheus.GaugeValue, value, labels[:c.labels[name]]...)
}
