package e2e_test

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
)

// session is a connection to the database of an installation, past its programs. It
// is kept: tests ask many times a second, and a new connection takes Postgres many
// times as long as an answer.
type session struct {
	mu   sync.Mutex
	conn *pgx.Conn
}

// ask has the session for one use. One that broke, as when the server went, is
// replaced.
func (in *installation) ask(use func(*pgx.Conn) error) {
	in.t.Helper()
	ctx := context.Background()
	in.session.mu.Lock()
	defer in.session.mu.Unlock()
	if in.session.conn == nil || in.session.conn.Ping(ctx) != nil {
		conn, err := pgx.Connect(ctx, in.databaseURL)
		if err != nil {
			in.t.Fatal(err)
		}
		in.session.conn = conn
		in.t.Cleanup(func() { _ = conn.Close(ctx) })
	}
	if err := use(in.session.conn); err != nil {
		in.t.Fatal(err)
	}
}

// exec changes the database behind the programs' back.
func (in *installation) exec(sql string, args ...any) {
	in.t.Helper()
	in.ask(func(conn *pgx.Conn) error {
		_, err := conn.Exec(context.Background(), sql, args...)
		return err
	})
}

// count runs a query that returns one number.
func (in *installation) count(sql string, args ...any) (n int) {
	in.t.Helper()
	in.ask(func(conn *pgx.Conn) error {
		return conn.QueryRow(context.Background(), sql, args...).Scan(&n)
	})
	return n
}

// texts runs a query for one column of text.
func (in *installation) texts(sql string) (texts []string) {
	in.t.Helper()
	in.ask(func(conn *pgx.Conn) error {
		rows, err := conn.Query(context.Background(), sql)
		if err != nil {
			return err
		}
		texts, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return texts
}
