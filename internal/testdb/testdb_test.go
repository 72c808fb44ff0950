package testdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxd/outboxd/migrations"
)

func TestMain(m *testing.M) { Main(m) }

func TestNewIsMigratedAndSeparate(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	first, second := New(t), New(t)
	if err := migrations.Check(ctx, first); err != nil {
		t.Error(err)
	}
	if _, err := first.Exec(ctx, "CREATE TABLE mine ()"); err != nil {
		t.Fatal(err)
	}
	_, err := second.Exec(ctx, "SELECT FROM mine")
	if code(err) != pgerrcode.UndefinedTable {
		t.Errorf("the second database: %v, want no such table", err)
	}
	var name string
	if err := first.QueryRow(ctx, "SHOW application_name").Scan(&name); err != nil {
		t.Fatal(err)
	}
	if name != t.Name() {
		t.Errorf("application_name = %q, want %q", name, t.Name())
	}
}

func TestDatabaseGoesWithItsTest(t *testing.T) {
	t.Parallel()
	if os.Getenv(KeepEnv) != "" {
		t.Skip(KeepEnv + " is set")
	}
	var name string
	t.Run("owner", func(t *testing.T) {
		pool := New(t)
		name = pool.Config().ConnConfig.Database
		// A connection that the test forgot must not be in the way.
		if _, err := pgx.Connect(t.Context(), pool.Config().ConnString()); err != nil {
			t.Fatal(err)
		}
	})
	if databaseExists(t, running(t), name) {
		t.Errorf("database %s is still there", name)
	}
}

func TestTxIsRolledBack(t *testing.T) {
	t.Parallel()
	t.Run("first", func(t *testing.T) {
		if _, err := Tx(t).Exec(t.Context(), "CREATE TABLE scratch ()"); err != nil {
			t.Fatal(err)
		}
	})
	_, err := Tx(t).Exec(t.Context(), "SELECT FROM scratch")
	if code(err) != pgerrcode.UndefinedTable {
		t.Errorf("got %v, want no such table", err)
	}
}

func TestTxCannotBeCommitted(t *testing.T) {
	t.Parallel()
	tx := Tx(t).(rollbackTx)
	record := &failureRecorder{TB: t}
	tx.t = record
	if err := tx.Commit(t.Context()); err == nil || !record.failed {
		t.Errorf("Commit: %v, test failed: %v", err, record.failed)
	}
}

// failureRecorder is a test that may fail without failing this one.
type failureRecorder struct {
	testing.TB
	failed bool
}

func (r *failureRecorder) Error(...any) { r.failed = true }

func TestTemplateIsBuiltOnceByManyProcesses(t *testing.T) {
	t.Parallel()
	var built atomic.Int64
	schema := testSchema(func(ctx context.Context, url string) error {
		built.Add(1)
		return execOn(ctx, url, "CREATE TABLE marker ()")
	})
	url := running(t).url
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := copyOnce(t.Context(), newSuite(url, schema)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := built.Load(); n != 1 {
		t.Errorf("migrated %d times, want once", n)
	}
}

// copyOnce is the life of a test process with one test.
func copyOnce(ctx context.Context, s *suite) error {
	err := s.start()
	if err == nil {
		var name string
		if name, _, err = s.create(ctx, s.ownPrefix()); err == nil {
			err = s.drop(ctx, name)
		}
	}
	return errors.Join(err, s.close(ctx))
}

func TestHalfBuiltTemplateIsBuiltAgain(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	// The first builder dies after its first statement.
	died := errors.New("died")
	var template string
	schema := testSchema(func(ctx context.Context, url string) error {
		if template == "" {
			return died
		}
		return execOn(ctx, url, "CREATE TABLE marker ()")
	})
	broken := newSuite(running(t).url, schema)
	t.Cleanup(func() { _ = broken.close(context.Background()) })
	if err := broken.start(); !errors.Is(err, died) {
		t.Fatalf("got %v, want %v", err, died)
	}
	template = broken.template
	if _, err := broken.admin.Exec(ctx, "CREATE DATABASE "+quote(template+unfinished)); err != nil {
		t.Fatal(err)
	}

	s := startSuite(t, running(t).url, schema)
	if s.template != template {
		t.Fatalf("template %s, want %s", s.template, template)
	}
	if databaseExists(t, s, template+unfinished) {
		t.Error("the unfinished template is still there")
	}
	url := newURL(t, s)
	if err := execOn(ctx, url, "SELECT FROM marker"); err != nil {
		t.Errorf("the copy is not migrated: %v", err)
	}
}

func TestSweepDropsWhatDeadProcessesLeft(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	schema := testSchema(func(context.Context, string) error { return nil })
	alive := startSuite(t, running(t).url, schema)
	dead := startSuite(t, running(t).url, testSchema(func(context.Context, string) error { return nil }))
	kept, _, err := alive.create(ctx, alive.ownPrefix())
	if err != nil {
		t.Fatal(err)
	}
	lost, _, err := dead.create(ctx, dead.ownPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.session.Close(ctx); err != nil { // as a kill would
		t.Fatal(err)
	}

	// The server takes a moment to notice a closed session. Then the suites of
	// the other tests sweep as well, so the drop may be theirs.
	eventually(t, "the locks are free", func() bool {
		return lockIsFree(t, alive, dead.ownPrefix()) && lockIsFree(t, alive, dead.template)
	})
	startSuite(t, running(t).url, schema)
	eventually(t, "what was lost is dropped", func() bool {
		return !databaseExists(t, alive, lost) && !databaseExists(t, alive, dead.template)
	})
	for _, name := range []string{kept, alive.template} {
		if !databaseExists(t, alive, name) {
			t.Errorf("database %s of a living process was dropped", name)
		}
	}
	if err := alive.drop(ctx, kept); err != nil {
		t.Error(err)
	}
}

func TestOrdinaryRoleIsEnough(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := running(t)
	role := "outboxd_test_role_" + s.id
	above := Superuser(t)
	_, err := above.Exec(ctx, fmt.Sprintf("CREATE ROLE %s LOGIN CREATEDB PASSWORD 'ordinary'", role))
	if code(err) == pgerrcode.InsufficientPrivilege {
		t.Skip("the role of DATABASE_URL is an ordinary one itself")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := above.Exec(context.Background(), "DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	config := s.session.Config()
	url := fmt.Sprintf("host=%s port=%d user=%s password=ordinary dbname=%s sslmode=disable",
		config.Host, config.Port, role, config.Database)

	ordinary := startSuite(t, url, currentSchema())
	t.Cleanup(func() {
		if err := ordinary.drop(context.Background(), ordinary.template); err != nil {
			t.Error(err)
		}
	})
	t.Run("tests", func(t *testing.T) {
		if err := migrations.Check(t.Context(), newPool(t, newURL(t, ordinary))); err != nil {
			t.Error(err)
		}
		if err := migrations.Check(t.Context(), newTx(t, ordinary)); err != nil {
			t.Error(err)
		}
	})
}

func TestFingerprintIsStable(t *testing.T) {
	t.Parallel()
	first, err := migrationsFingerprint()
	if err != nil {
		t.Fatal(err)
	}
	if second, _ := migrationsFingerprint(); len(first) != 64 || first != second {
		t.Errorf("got %q, then %q", first, second)
	}
}

func TestWithDatabase(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://user:p%40ss@localhost:5433/app?sslmode=disable",
		"postgresql://user:p%40ss@localhost:5433?sslmode=disable&dbname=app",
		"host=localhost port=5433 user=user password=p@ss dbname=app sslmode=disable",
	} {
		changed, err := withDatabase(dsn, "other")
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		config, err := pgx.ParseConfig(changed)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%s:%s@%s:%d/%s", config.User, config.Password, config.Host, config.Port, config.Database)
		if got != "user:p@ss@localhost:5433/other" || config.TLSConfig != nil {
			t.Errorf("%s: got %s", dsn, changed)
		}
	}
	_, err := withDatabase("postgres://user:hunter2@bad host/app", "other")
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a malformed URL: %v", err)
	}
}

// testSchema is a schema that no other test shares.
func testSchema(migrate func(ctx context.Context, url string) error) schema {
	unique := rand.Text()
	return schema{
		fingerprint: func() (string, error) { return unique, nil },
		migrate: func(ctx context.Context, url string, _ *slog.Logger) error {
			return migrate(ctx, url)
		},
	}
}

// startSuite stands for another test process: nothing but the server is
// common to two suites.
func startSuite(t *testing.T, url string, schema schema) *suite {
	t.Helper()
	s := newSuite(url, schema)
	t.Cleanup(func() {
		if err := s.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func lockIsFree(t *testing.T, s *suite, name string) bool {
	t.Helper()
	free, err := tryLock(t.Context(), s.session, name)
	if err == nil && free {
		err = unlock(t.Context(), s.session, name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return free
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

func databaseExists(t *testing.T, s *suite, name string) (exists bool) {
	t.Helper()
	const query = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
	if err := s.admin.QueryRow(t.Context(), query, name).Scan(&exists); err != nil {
		t.Fatal(err)
	}
	return exists
}

func execOn(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// code is the SQLSTATE of an error, or empty.
func code(err error) string {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return ""
	}
	return pgErr.Code
}

func BenchmarkNew(b *testing.B) {
	running(b)
	for b.Loop() {
		s := running(b)
		name, _, err := s.create(b.Context(), s.ownPrefix())
		if err == nil {
			err = s.drop(b.Context(), name)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
