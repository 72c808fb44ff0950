// Package doctor examines an installation: its configuration, its database, and
// what is in it. It changes nothing.
package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/cmd/internal/app"
	"github.com/outboxd/outboxd/migrations"
	"github.com/outboxd/outboxd/outbox"
)

// Verdict is what a check comes to.
type Verdict string

// The verdicts.
const (
	OK Verdict = "ok"
	// Warning is what an operator should know, and may have wanted.
	Warning Verdict = "warning"
	// Problem is what loses mail, stops it or exposes it.
	Problem Verdict = "problem"
)

// Finding is what a check found.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	// Advice is what to type or to change. Empty: nothing.
	Advice string `json:"advice"`
}

// need is what has to be there before a check makes sense.
type need int

const (
	needNothing need = iota
	needDatabase
	needSchema
)

// check is one question and how it is answered.
type check struct {
	name string
	need need
	ask  func(context.Context, *patient) Finding
}

// patient is what is examined.
type patient struct {
	cfg       app.Config
	configErr error
	// worker is what workers are told, and workerErr why they would not start.
	worker    outbox.WorkerConfig
	workerErr error
	// pool has the connections of a worker; nil: there is no way to the database.
	pool    *pgxpool.Pool
	poolErr error
}

// checkTimeout bounds one check.
const checkTimeout = 20 * time.Second

// Names lists the checks.
func Names() []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.name
	}
	return names
}

// Examine makes all checks that make sense, on what an api and a worker process
// with this environment would find. environ has the form of [os.Environ].
func Examine(ctx context.Context, environ []string) []Finding {
	p := &patient{}
	p.cfg, p.configErr = app.LoadConfig(environ)
	p.worker, p.workerErr = p.cfg.WorkerConfig(slog.New(slog.DiscardHandler))
	p.connect(ctx)
	if p.pool != nil {
		defer p.pool.Close()
	}
	has := needNothing
	if p.pool != nil {
		has = needDatabase
		if migrations.Check(ctx, p.pool) == nil {
			has = needSchema
		}
	}
	var findings []Finding
	for _, c := range checks {
		if c.need <= has {
			findings = append(findings, c.run(ctx, p))
		}
	}
	return findings
}

// connect opens what a worker opens, but for its settings for many deliveries.
func (p *patient) connect(ctx context.Context) {
	cfg, err := p.cfg.WorkerPool()
	if err != nil {
		p.poolErr = err
		return
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = "outboxd-doctor"
	cfg.MaxConns, cfg.MinConns = 4, 0
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		p.poolErr = err
		return
	}
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if p.poolErr = pool.Ping(bounded); p.poolErr != nil {
		pool.Close()
		return
	}
	p.pool = pool
}

func (c check) run(ctx context.Context, p *patient) Finding {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	f := c.ask(ctx, p)
	f.Check = c.name
	return f
}

// unclear is what a check comes to that could not be made.
func unclear(err error) Finding {
	return warning("it could not be found out: "+oneLine(err.Error()), "Run doctor with the rights and the environment of a worker.")
}

func ok(format string, args ...any) Finding {
	return Finding{Verdict: OK, Found: fmt.Sprintf(format, args...)}
}

func warning(found, advice string) Finding {
	return Finding{Verdict: Warning, Found: found, Advice: advice}
}

func problem(found, advice string) Finding {
	return Finding{Verdict: Problem, Found: found, Advice: advice}
}

// checks are all there are, in the order in which they are shown. docs/doctor.md
// has a row for each.
var checks = []check{
	{"configuration", needNothing, configuration},
	{"providers", needNothing, providersUsable},
	{"provider-encryption", needNothing, providerEncryption},
	{"time-relations", needNothing, timeRelations},
	{"idempotency-retention", needNothing, idempotencyRetention},
	{"doubt-times", needNothing, doubtTimes},
	{"public-url", needNothing, publicURL},
	{"ops-address", needNothing, opsAddress},
	{"admin-password", needNothing, adminPassword},
	{"private-webhooks", needNothing, privateWebhooks},
	{"rate-limits", needNothing, rateLimits},
	{"database", needNothing, reachable},
	{"database-hosts", needNothing, databaseHosts},
	{"database-encryption", needDatabase, databaseEncryption},
	{"read-write", needDatabase, readWrite},
	{"sessions", needDatabase, sessions},
	{"vanished-hosts", needDatabase, vanishedHosts},
	{"time-outs", needDatabase, timeOuts},
	{"connections", needDatabase, connections},
	{"durability", needDatabase, durability},
	{"clock", needDatabase, clock},
	{"role", needDatabase, role},
	{"vacuum", needDatabase, vacuum},
	{"long-transactions", needDatabase, longTransactions},
	{"replication-slots", needDatabase, replicationSlots},
	{"migrations", needDatabase, migrated},
	{"unlogged-tables", needSchema, unloggedTables},
	{"public-rights", needSchema, publicRights},
	{"installation", needSchema, installation},
	{"workers", needSchema, workersAlive},
	{"providers-out", needSchema, providersOut},
	{"job-kinds", needSchema, jobKinds},
	{"queues", needSchema, queues},
	{"paused-queues", needSchema, pausedQueues},
	{"orphans", needSchema, orphans},
	{"stuck", needSchema, stuck},
	{"admin-keys", needSchema, adminKeys},
	{"encryption-keys", needSchema, encryptionKeys},
}
