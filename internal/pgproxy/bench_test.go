package pgproxy_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxd/outboxd/internal/pgproxy"
	"github.com/outboxd/outboxd/internal/testdb"
)

// patience bounds every wait; what is waited for ends it at once.
const patience = time.Minute

func TestMain(m *testing.M) { testdb.Main(m) }

// bench is a database with a table, a proxy in front of it, and a connection
// that does not go through the proxy.
type bench struct {
	t      *testing.T
	url    string
	proxy  *pgproxy.Proxy
	direct *pgx.Conn
}

func newBench(t *testing.T) *bench {
	t.Helper()
	url := testdb.URL(t)
	b := &bench{t: t, url: url, proxy: pgproxy.New(t, url)}
	b.direct = b.connect(url)
	b.exec(b.direct, "CREATE TABLE orders (number int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	return b
}

func (b *bench) connect(url string) *pgx.Conn {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), url)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// client connects through the proxy, under a name.
func (b *bench) client(name string) *pgx.Conn {
	b.t.Helper()
	config, err := pgx.ParseConfig(b.proxy.URL())
	if err != nil {
		b.t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = name
	conn, err := pgx.ConnectConfig(b.t.Context(), config)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (b *bench) exec(conn *pgx.Conn, sql string, args ...any) {
	b.t.Helper()
	if _, err := conn.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

const insert = "INSERT INTO orders VALUES ($1)"

// begin begins a transaction that has inserted a row.
func (b *bench) begin(conn *pgx.Conn, number int) pgx.Tx {
	b.t.Helper()
	tx, err := conn.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := tx.Exec(b.t.Context(), insert, number); err != nil {
		b.t.Fatal(err)
	}
	return tx
}

// wantRows compares the number of rows that are committed.
func (b *bench) wantRows(want int) {
	b.t.Helper()
	if got := b.count("SELECT count(*) FROM orders"); got != want {
		b.t.Errorf("%d rows are committed, want %d", got, want)
	}
}

func (b *bench) count(sql string, args ...any) (n int) {
	b.t.Helper()
	if err := b.direct.QueryRow(b.t.Context(), sql, args...).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bench) awaitCount(want int, sql string, args ...any) {
	b.t.Helper()
	if !becomes(want, func() int { return b.count(sql, args...) }) {
		b.t.Fatalf("%s never gave %d", sql, want)
	}
}

// becomes waits until a count has reached what is wanted.
func becomes(want int, count func() int) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for count() != want {
		select {
		case <-tick.C:
		case <-timeout:
			return false
		}
	}
	return true
}

// sessions counts the server's sessions by the name of their client.
const sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()"

func await[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("%s: it did not happen", what)
	}
	return v
}

func wantNotFired(t *testing.T, r *pgproxy.Rule) {
	t.Helper()
	if n := r.Count(); n != 0 {
		t.Errorf("the rule fired %d times, want never", n)
	}
}

// wantCut checks that a call failed as on a broken connection.
func wantCut(t *testing.T, err error) {
	t.Helper()
	_, answered := errors.AsType[*pgconn.PgError](err)
	if err == nil || answered {
		t.Errorf("error %v, want that of a broken connection", err)
	}
}
