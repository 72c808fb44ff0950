// Package migrations brings a database to the schema that this version of
// outboxd needs. Everything lives in the Postgres schema "outbox", River's
// tables too, so that outboxd can share an application's own database.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// Schema is the Postgres schema that holds every table of outboxd and River.
const Schema = "outbox"

const (
	versionTable = Schema + ".schema_migrations"
	// advisoryLock is an arbitrary constant that all versions of outboxd
	// share: two of them never migrate one database at the same time.
	advisoryLock int64 = 0x6f7574626f786401
)

// FS holds the numbered SQL files.
//
//go:embed [0-9]*.sql
var FS embed.FS

// Migration is one step of one of the two lines: "outbox", ours, and "river".
type Migration struct {
	Line    string `json:"line"`
	Version int64  `json:"version"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
}

// Up applies what is missing and returns when the database is current. It
// holds a session advisory lock, so processes that start together wait for
// one another. It needs a direct connection, not a transaction pooler.
func Up(ctx context.Context, databaseURL string, log *slog.Logger) error {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	defer pool.Close()

	unlock, err := lock(ctx, pool)
	if err != nil {
		return err
	}
	defer unlock()
	return up(ctx, pool, log)
}

func up(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	if _, err := pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+Schema); err != nil {
		return fmt.Errorf("create schema %s: %w", Schema, err)
	}
	// One transaction per version, not one for all: Postgres refuses to use a
	// new enum value in the transaction that added it, and River's line does.
	river, err := riverMigrator(pool, log)
	if err != nil {
		return err
	}
	if _, err := river.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate River's tables: %w", err)
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	ours, err := goose.NewProvider(goose.DialectPostgres, db, FS,
		goose.WithTableName(versionTable), goose.WithSlog(log), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if _, err := ours.Up(ctx); err != nil {
		return fmt.Errorf("migrate outboxd's tables: %w", err)
	}
	return nil
}

// lock takes the migration lock. It asks again and again instead of waiting
// inside one statement: a waiting statement holds a snapshot, and building an
// index concurrently waits for all older snapshots to end.
func lock(ctx context.Context, pool *pgxpool.Pool) (unlock func(), err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for {
		var locked bool
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", advisoryLock).Scan(&locked); err != nil {
			conn.Release()
			return nil, fmt.Errorf("lock the database for migration: %w", err)
		}
		if locked {
			// Closing the session, rather than unlocking, leaves no way for
			// the lock to stay behind in the pool.
			return func() { _ = conn.Hijack().Close(context.WithoutCancel(ctx)) }, nil
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			conn.Release()
			return nil, fmt.Errorf("wait for another migration to end: %w", ctx.Err())
		}
	}
}

// Status lists every known migration of both lines, and whether the database
// has it. It changes nothing.
func Status(ctx context.Context, db Querier) ([]Migration, error) {
	known, err := known()
	if err != nil {
		return nil, err
	}
	applied, err := applied(ctx, db)
	if err != nil {
		return nil, err
	}
	for i, m := range known {
		known[i].Applied = slices.Contains(applied[m.Line], m.Version)
	}
	return known, nil
}

// Check returns nil if the database has exactly the migrations that this
// program knows, and otherwise an error that says what to do.
func Check(ctx context.Context, db Querier) error {
	known, applied, err := both(ctx, db)
	if err != nil {
		return err
	}
	if err := refuseNewer(known, applied); err != nil {
		return err
	}
	return refuseMissing(known, applied)
}

// Suffices returns nil if the database has every migration that this program knows,
// and perhaps later ones. A program that runs while the next release migrates goes
// on: a migration is made such that the release before it still works. One that
// starts asks [Check].
func Suffices(ctx context.Context, db Querier) error {
	known, applied, err := both(ctx, db)
	if err != nil {
		return err
	}
	return refuseMissing(known, applied)
}

func both(ctx context.Context, db Querier) ([]Migration, map[string][]int64, error) {
	list, err := known()
	if err != nil {
		return nil, nil, err
	}
	there, err := applied(ctx, db)
	return list, there, err
}

func refuseNewer(known []Migration, applied map[string][]int64) error {
	newest := map[string]int64{}
	for _, m := range known {
		newest[m.Line] = max(newest[m.Line], m.Version)
	}
	for _, line := range slices.Sorted(maps.Keys(applied)) {
		if there := slices.Max(append(applied[line], 0)); there > newest[line] {
			return fmt.Errorf("the database is newer than this program (%s migration %d, known up to %d): run a newer release",
				line, there, newest[line])
		}
	}
	return nil
}

func refuseMissing(known []Migration, applied map[string][]int64) error {
	var missing []string
	for _, m := range known {
		if !slices.Contains(applied[m.Line], m.Version) {
			missing = append(missing, fmt.Sprintf("%s %d", m.Line, m.Version))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the database is not migrated (missing: %s): run `outboxctl migrate up`",
			strings.Join(missing, ", "))
	}
	return nil
}

// Querier is the part of a pgx pool, connection or transaction used here.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const (
	lineOutbox = "outbox"
	lineRiver  = "river"
)

func known() ([]Migration, error) {
	river, err := riverMigrator(nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	var all []Migration
	for _, m := range river.AllVersions() {
		all = append(all, Migration{Line: lineRiver, Version: int64(m.Version), Name: m.Name})
	}
	files, err := fs.Glob(FS, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	for _, file := range files {
		version, err := goose.NumericComponent(file)
		if err != nil {
			return nil, fmt.Errorf("read migrations: %s: %w", file, err)
		}
		_, name, _ := strings.Cut(strings.TrimSuffix(file, ".sql"), "_")
		all = append(all, Migration{Line: lineOutbox, Version: version, Name: name})
	}
	return all, nil
}

// applied reads the versions that the database has, per line. A database that
// was never migrated has neither table.
func applied(ctx context.Context, db Querier) (map[string][]int64, error) {
	queries := map[string]string{
		lineOutbox: sqlAppliedOutbox,
		lineRiver:  sqlAppliedRiver,
	}
	applied := map[string][]int64{}
	for line, query := range queries {
		rows, err := db.Query(ctx, query)
		if err == nil {
			applied[line], err = pgx.CollectRows(rows, pgx.RowTo[int64])
		}
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == pgerrcode.UndefinedTable {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the database's version: %w", err)
		}
	}
	return applied, nil
}

const (
	// goose numbers an empty line's start with a version 0.
	sqlAppliedOutbox = `SELECT version_id FROM ` + versionTable + ` WHERE is_applied AND version_id > 0`
	sqlAppliedRiver  = `SELECT version FROM ` + Schema + `.river_migration WHERE line = 'main'`
)

func riverMigrator(pool *pgxpool.Pool, log *slog.Logger) (*rivermigrate.Migrator[pgx.Tx], error) {
	m, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: Schema, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("read River's migrations: %w", err)
	}
	return m, nil
}
