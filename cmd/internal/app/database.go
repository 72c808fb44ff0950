package app

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/migrations"
	"github.com/outboxd/outboxd/outbox"
)

const connectTimeout = 5 * time.Second

// apiSettings bound what one request can hold up. A process that is frozen
// between its INSERT and its COMMIT keeps its idempotency keys locked: Postgres
// ends such a session, and those who wait give up before their clients do. A
// statement that was not given an org sees the rows of none.
var apiSettings = map[string]string{
	outbox.OrgSetting:                     outbox.NoOrg,
	"lock_timeout":                        "500ms",
	"statement_timeout":                   "10s",
	"idle_in_transaction_session_timeout": "2s",
}

var workerSettings = map[string]string{
	"lock_timeout":                        "10s",
	"statement_timeout":                   "60s",
	"idle_in_transaction_session_timeout": "10s",
}

// APIPool configures the connections of an api process.
func (c *Config) APIPool() (*pgxpool.Config, error) { return c.poolConfig("api", apiSettings, 16) }

// WorkerPool configures the connections of a worker process, but for its liveness
// session. A delivery holds one only for its short statements.
func (c *Config) WorkerPool() (*pgxpool.Config, error) {
	return c.poolConfig("worker", workerSettings, int32(min(max(c.Concurrency/2, 8), 32)))
}

// poolConfig adds settings to those in DATABASE_URL, which win.
func (c *Config) poolConfig(program string, settings map[string]string, maxConns int32) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	params := cfg.ConnConfig.RuntimeParams
	setDefault(params, "application_name", "outboxd-"+program)
	// Idempotency relies on each statement seeing what is committed.
	params["default_transaction_isolation"] = "read committed"
	for name, value := range settings {
		setDefault(params, name, value)
	}
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	if cfg.MaxConns < maxConns {
		cfg.MaxConns = maxConns
	}
	return cfg, nil
}

// openPool connects and checks that the database is migrated.
func openPool(ctx context.Context, configure func() (*pgxpool.Config, error)) (*pgxpool.Pool, error) {
	cfg, err := configure()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	if err := migrations.Check(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	if _, walled := cfg.ConnConfig.RuntimeParams[outbox.OrgSetting]; walled {
		if err := checkWall(ctx, pool); err != nil {
			pool.Close()
			return nil, err
		}
	}
	return pool, nil
}

const sqlGetOrgSetting = `SELECT coalesce(current_setting('outbox.org', true), '')`

// checkWall refuses a pool whose sessions would see the rows of all orgs, because
// a pooler drops the settings that sessions begin with.
func checkWall(ctx context.Context, pool *pgxpool.Pool) error {
	var org string
	if err := pool.QueryRow(ctx, sqlGetOrgSetting).Scan(&org); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if org == "" {
		return fmt.Errorf("the wall between orgs is down: the pooler in front of Postgres drops the startup parameter %[1]s; "+
			"connect directly, or give the API a role of its own and ALTER ROLE ... SET %[1]s = '%[2]s'", outbox.OrgSetting, outbox.NoOrg)
	}
	return nil
}

func setDefault(params map[string]string, name, value string) {
	if _, set := params[name]; !set {
		params[name] = value
	}
}
