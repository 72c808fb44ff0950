// Package testdb gives tests a migrated PostgreSQL database.
//
//	func TestMain(m *testing.M) { testdb.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		t.Parallel()
//		tx := testdb.Tx(t)
//		...
//	}
//
// Tx is the cheap default. New and URL are for tests in which commits,
// several connections or LISTEN matter: each call makes a database of its own.
//
// The server is the one that DATABASE_URL names, where an ordinary role with
// CREATEDB is enough and best: for a superuser there is no row-level security. Or
// else it is a private one that lives as long as the test
// process. Any number of test processes can share a server.
package testdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// KeepEnv names the environment variable that, set to anything, keeps the
// databases of New and URL for inspection. It needs DATABASE_URL: a private
// server does not outlive the test process.
const KeepEnv = "OUTBOXD_KEEP_TEST_DB"

const (
	// maxConns is small because every parallel test has a pool.
	maxConns = 8
	// maxShared bounds the tests that are inside Tx at the same time.
	maxShared = 32
	// cleanupTimeout bounds what happens after a test, when its own context
	// has ended already.
	cleanupTimeout = time.Minute
	// leakPatience is how long a test's pool may take to close.
	leakPatience = 10 * time.Second
)

// process is what the tests of this process share; Main sets it.
var process *suite

// Main runs a package's tests and cleans up after them. It takes the
// [testing.M], or what wraps one to do something after the tests, and does not
// return.
func Main(m interface{ Run() int }) {
	process = newSuite(os.Getenv("DATABASE_URL"), currentSchema())
	os.Exit(runAndClose(m))
}

func runAndClose(m interface{ Run() int }) (code int) {
	code = m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := process.close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "testdb:", err)
		code = max(code, 1)
	}
	return code
}

// New makes a database for this test alone and returns a pool to it. Both go
// when the test ends.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return newPool(t, URL(t))
}

// Reopen returns another pool to the database of a pool, with a setting of
// Postgres of its own.
func Reopen(t testing.TB, pool *pgxpool.Pool, setting, value string) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	config.ConnConfig.RuntimeParams[setting] = value
	other, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	t.Cleanup(func() { closePool(t, other) })
	return other
}

// URL makes a database for this test alone and returns its connection string,
// in the form of DATABASE_URL. The database is dropped when the test ends,
// together with the connections that are still open, and its address is
// logged if the test failed.
func URL(t testing.TB) string {
	t.Helper()
	return newURL(t, running(t))
}

// Tx begins a transaction in a database that all tests of this process share,
// and rolls it back when the test ends. Committing it fails the test.
func Tx(t testing.TB) pgx.Tx {
	t.Helper()
	return newTx(t, running(t))
}

// Superuser connects as a role that row-level security does not hold for and that
// may make others; the connection is closed when the test ends. Where the server
// is not ours it is the role of DATABASE_URL, and a test that needs more of it
// skips.
func Superuser(t testing.TB) *pgx.Conn {
	t.Helper()
	s := running(t)
	conn, err := pgx.Connect(t.Context(), cmp.Or(s.superuserURL, s.url))
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// running returns the process's suite, started.
func running(t testing.TB) *suite {
	t.Helper()
	if process == nil {
		t.Fatal("testdb: the package needs `func TestMain(m *testing.M) { testdb.Main(m) }`")
	}
	if err := process.start(); err != nil {
		t.Fatalf("testdb: %v", err)
	}
	return process
}

func newURL(t testing.TB, s *suite) string {
	t.Helper()
	prefix, keep := s.ownPrefix(), os.Getenv(KeepEnv) != ""
	if keep {
		prefix = s.keptPrefix()
	}
	name, url, err := s.create(t.Context(), prefix)
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	t.Cleanup(func() {
		if keep || t.Failed() {
			t.Logf("testdb: the database was %s", url)
		}
		if keep {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			t.Errorf("testdb: %v", err)
		}
	})
	return url
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	config.MaxConns = maxConns
	config.ConnConfig.RuntimeParams["application_name"] = applicationName(t)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// closePool closes the pool, which waits for connections in use. One that was
// never given back must fail the test, not hang it.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	timeout := time.NewTimer(leakPatience)
	defer timeout.Stop()
	select {
	case <-closed:
	case <-timeout.C:
		t.Errorf("testdb: %d connections of the test's pool were not released",
			pool.Stat().AcquiredConns())
	}
}

func newTx(t testing.TB, s *suite) pgx.Tx {
	t.Helper()
	pool, err := s.sharedPool(t.Context())
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("testdb: %v", err)
		}
	})
	const name = `SELECT set_config('application_name', $1, true)`
	if _, err := tx.Exec(t.Context(), name, applicationName(t)); err != nil {
		t.Fatalf("testdb: %v", err)
	}
	return rollbackTx{Tx: tx, t: t}
}

// rollbackTx is a transaction that must not change the shared database.
type rollbackTx struct {
	pgx.Tx
	t testing.TB
}

// Commit fails the test and rolls back.
func (tx rollbackTx) Commit(ctx context.Context) error {
	tx.t.Helper()
	tx.t.Error("testdb: a Tx was committed; a test that commits needs testdb.New")
	return errors.Join(errors.New("testdb: this transaction can only be rolled back"), tx.Rollback(ctx))
}

// applicationName shows in pg_stat_activity which test a connection is of.
// PostgreSQL keeps 63 bytes; the end of a test's name says more than its start.
func applicationName(t testing.TB) string {
	name := t.Name()
	name = name[max(0, len(name)-63):]
	return strings.ToValidUTF8(name, "")
}
