package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/localpg"
	"github.com/outboxd/outboxd/migrations"
)

// template is the migrated database that those of the cells are copies of.
const template = "crash_template"

// server is a Postgres server that the harness may crash.
type server struct {
	options localpg.Options
	running *localpg.Server
	url     *url.URL
	made    atomic.Int64
}

func startServer(ctx context.Context, folder, name string) (*server, error) {
	s := &server{options: localpg.Options{DataDir: filepath.Join(folder, name), Ephemeral: true}}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	// A killed server keeps what it has handed to the operating system, which an
	// asynchronous commit has not.
	for _, sql := range []string{"ALTER ROLE CURRENT_USER SET synchronous_commit = on", "CREATE DATABASE " + template} {
		if err := s.exec(ctx, sql); err != nil {
			return nil, errors.Join(err, s.stop())
		}
	}
	if err := migrations.Up(ctx, s.database(template), slog.New(slog.DiscardHandler)); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// start starts the server, after a crash on the port that it had.
func (s *server) start(ctx context.Context) error {
	running, err := localpg.Start(ctx, s.options)
	if err != nil {
		return err
	}
	s.running, s.options.Port = running, running.Port()
	s.url, err = url.Parse(running.URL())
	return err
}

func (s *server) crash() error { return s.running.Kill() }
func (s *server) stop() error  { return s.running.Stop() }

func (s *server) database(name string) string {
	u := *s.url
	u.Path = "/" + name
	return u.String()
}

func (s *server) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.url.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

// database is that of one cell.
type database struct {
	server *server
	name   string
	url    string
	pool   *pgxpool.Pool // past the proxy
}

func (s *server) newDatabase(ctx context.Context) (*database, error) {
	d := &database{server: s, name: fmt.Sprintf("crash_%d", s.made.Add(1))}
	d.url = s.database(d.name)
	if err := s.exec(ctx, "CREATE DATABASE "+d.name+" TEMPLATE "+template); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 2
	cfg.ConnConfig.RuntimeParams["application_name"] = "crash-harness"
	d.pool, err = pgxpool.NewWithConfig(ctx, cfg)
	return d, err
}

func (d *database) drop(ctx context.Context) {
	d.pool.Close()
	_ = d.server.exec(ctx, "DROP DATABASE IF EXISTS "+d.name+" WITH (FORCE)")
}

// endSessions ends the workers' sessions, as an administrator does, or
// Postgres itself when the other end is gone.
func (d *database) endSessions(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, `
		SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name LIKE 'outboxd-%'`)
	return err
}

// settled reports whether the email has come to its end: also one that is held
// in doubt until a person comes, which its job looks at every 15 minutes.
func (d *database) settled(ctx context.Context) bool {
	var settled bool
	err := d.pool.QueryRow(ctx, `
		SELECT ended_at IS NOT NULL OR status = 'unknown' AND EXISTS (
			SELECT FROM outbox.river_job WHERE kind = 'deliver_email'
				AND state = 'scheduled' AND scheduled_at > now() + interval '5 minutes')
		FROM outbox.emails`).Scan(&settled)
	return err == nil && settled
}

// idle reports whether no job is running.
func (d *database) idle(ctx context.Context) bool {
	var idle bool
	err := d.pool.QueryRow(ctx,
		`SELECT NOT EXISTS (SELECT FROM outbox.river_job WHERE state = 'running')`).Scan(&idle)
	return err == nil && idle
}

// collect reads what the database holds into the history.
func (d *database) collect(ctx context.Context, h *History) error {
	err := d.pool.QueryRow(ctx, `
		SELECT id::text, status, coalesce(reason, ''), possible_duplicate, attempts,
			(SELECT count(*) FROM outbox.events WHERE provider IS NOT NULL)
		FROM outbox.emails`).
		Scan(&h.Email.ID, &h.Email.Status, &h.Email.Reason, &h.Email.Flagged, &h.Email.Attempts, &h.Events)
	if err != nil {
		return fmt.Errorf("read email: %w", err)
	}
	// An attempt that was given up on and is "accepted" by later evidence shows
	// by the attempt that came after the doubt.
	rows, err := d.pool.Query(ctx, `
		SELECT a.number, a.provider_key::text, a.stage, encode(a.payload_sha256, 'hex'), a.possible_duplicate,
			a.stage = 'unknown' OR a.stage = 'accepted' AND a.in_doubt_at IS NOT NULL
				AND a.number < (SELECT max(number) FROM outbox.attempts)
		FROM outbox.attempts a ORDER BY a.number`)
	if err != nil {
		return fmt.Errorf("read attempts: %w", err)
	}
	h.Attempts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Attempt])
	if err != nil {
		return fmt.Errorf("read attempts: %w", err)
	}
	return d.collectResidue(ctx, &h.Residue)
}

// collectResidue looks at what is left. Postgres takes a moment to notice that
// a process has gone.
func (d *database) collectResidue(ctx context.Context, r *Residue) error {
	var err error
	look := func() bool {
		err = d.pool.QueryRow(ctx, `
			SELECT (SELECT count(*) FROM outbox.river_job WHERE state = 'running'),
				(SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND state LIKE 'idle in transaction%'),
				(SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
					WHERE l.locktype = 'advisory' AND d.datname = current_database()),
				(SELECT count(*) FROM outbox.attempts WHERE stage = 'sending')`).
			Scan(&r.RunningJobs, &r.IdleTransactions, &r.AdvisoryLocks, &r.OpenAttempts)
		return err != nil || r.IdleTransactions+r.AdvisoryLocks == 0
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_ = until(ctx, look) // what is left then is what the checker judges
	if err != nil {
		return fmt.Errorf("read what is left: %w", err)
	}
	return nil
}

// hexID is a UUID as the fault points write it.
func hexID(id string) string { return strings.ReplaceAll(id, "-", "") }
