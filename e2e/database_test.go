package e2e_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connect has an installation that is a database so far, with connections past its
// programs. They are kept: tests ask many times a second, and a new connection takes
// Postgres many times as long as an answer. One that broke, as when the server went,
// is replaced.
func connect(t *testing.T, databaseURL string) *installation {
	t.Helper()
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 2
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &installation{t: t, databaseURL: databaseURL, pool: pool}
}

// exec changes the database behind the programs' back.
func (in *installation) exec(sql string, args ...any) {
	in.t.Helper()
	if _, err := in.pool.Exec(context.Background(), sql, args...); err != nil {
		in.t.Fatal(err)
	}
}

// count runs a query that returns one number.
func (in *installation) count(sql string, args ...any) (n int) {
	in.t.Helper()
	if err := in.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		in.t.Fatal(err)
	}
	return n
}

// texts runs a query for one column of text.
func (in *installation) texts(sql string) []string {
	in.t.Helper()
	return rowsOf(in, pgx.RowTo[string], sql)
}

// rowsOf runs a query and returns what of makes of each row.
func rowsOf[T any](in *installation, of pgx.RowToFunc[T], sql string, args ...any) []T {
	in.t.Helper()
	rows, err := in.pool.Query(context.Background(), sql, args...)
	if err != nil {
		in.t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, of)
	if err != nil {
		in.t.Fatal(err)
	}
	return found
}
