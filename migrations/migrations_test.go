package migrations_test

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/migrations"
)

var update = flag.Bool("update", false, "write schema.sql from the migrated database")

func TestMain(m *testing.M) { testdb.Main(m) }

// TestSchemaPicture compares schema.sql, which reviewers read, with what the
// migrations make. Run the test with -update to write it anew.
func TestSchemaPicture(t *testing.T) {
	t.Parallel()
	got := picture(t, testdb.Tx(t))
	if *update {
		if err := os.WriteFile("schema.sql", []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("schema.sql is not the migrated schema; run: go test ./migrations -update\n%s", diff)
	}
}

const pictureHead = `-- The schema that the migrations make, River's tables included, written by
-- go test ./migrations -update and checked by the same test. Not for running.
`

// sqlPicture describes the schema from the catalog, in words that do not
// depend on the version of a dump program.
const sqlPicture = `
SELECT format(E'\nTABLE %s%s\n', c.relname, coalesce(' WITH (' || array_to_string(c.reloptions, ', ') || ')', '')) ||
    CASE WHEN c.relrowsecurity AND c.relforcerowsecurity THEN E'    FORCE ROW LEVEL SECURITY\n' ELSE '' END ||
    coalesce((SELECT string_agg(format(E'    POLICY %s USING %s\n', p.polname, pg_get_expr(p.polqual, p.polrelid)), '')
        FROM pg_policy p WHERE p.polrelid = c.oid), '') ||
    (SELECT string_agg(format('    %s %s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
            CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END,
            coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '')), E'\n' ORDER BY a.attnum)
     FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) ||
    coalesce(E'\n' || (SELECT string_agg(format('    %s %s', conname, pg_get_constraintdef(oid)), E'\n' ORDER BY conname)
        FROM pg_constraint WHERE conrelid = c.oid AND contype IN ('c', 'f', 'u', 'p', 'x')), '') ||
    coalesce(E'\n' || (SELECT string_agg('    ' || pg_get_indexdef(indexrelid), E'\n' ORDER BY pg_get_indexdef(indexrelid))
        FROM pg_index WHERE indrelid = c.oid AND NOT indisprimary), '')
FROM pg_class c
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p')
    AND c.relname <> 'schema_migrations'
UNION ALL
SELECT format(E'\nTYPE %s (%s)', t.typname, string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder))
FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid
WHERE t.typnamespace = 'outbox'::regnamespace GROUP BY t.typname
UNION ALL
SELECT E'\n' || pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace
UNION ALL
SELECT E'\n' || pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'outbox'::regnamespace AND NOT t.tgisinternal
ORDER BY 1`

func picture(t *testing.T, tx pgx.Tx) string {
	t.Helper()
	rows, err := tx.Query(context.Background(), sqlPicture)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return pictureHead + strings.Join(parts, "\n") + "\n"
}

func emptyDatabase(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	url = testdb.URL(t)
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(context.Background(), "DROP SCHEMA outbox CASCADE"); err != nil {
		t.Fatal(err)
	}
	return url, conn
}

func TestCheckSaysWhatToDo(t *testing.T) {
	t.Parallel()
	url, conn := emptyDatabase(t)
	ctx := context.Background()

	err := migrations.Check(ctx, conn)
	if err == nil || !strings.Contains(err.Error(), "outboxctl migrate up") {
		t.Errorf("error on an empty database = %v, want what to type", err)
	}
	status, err := migrations.Status(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range status {
		if m.Applied {
			t.Errorf("%s %d is applied in an empty database", m.Line, m.Version)
		}
	}
	if err := migrations.Up(ctx, url, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Check(ctx, conn); err != nil {
		t.Errorf("error on a migrated database = %v", err)
	}
	if _, err := conn.Exec(ctx, "INSERT INTO outbox.schema_migrations (version_id, is_applied) VALUES (9999, true)"); err != nil {
		t.Fatal(err)
	}
	err = migrations.Check(ctx, conn)
	if err == nil || !strings.Contains(err.Error(), "newer than this program") {
		t.Errorf("error on a newer database = %v", err)
	}
	if err := migrations.Suffices(ctx, conn); err != nil {
		t.Errorf("a program that runs is stopped by a newer database: %v", err)
	}
	if _, err := conn.Exec(ctx, "DELETE FROM outbox.schema_migrations WHERE version_id = 1"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Suffices(ctx, conn); err == nil || !strings.Contains(err.Error(), "outbox 1") {
		t.Errorf("error without a migration = %v", err)
	}
}

// Processes that start together wait for one another.
func TestConcurrentUp(t *testing.T) {
	t.Parallel()
	url, conn := emptyDatabase(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := migrations.Up(context.Background(), url, slog.New(slog.DiscardHandler)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := migrations.Check(context.Background(), conn); err != nil {
		t.Error(err)
	}
	// A server process lives on for a moment after its client has closed the
	// connection.
	locks := -1
	for end := time.Now().Add(time.Minute); locks != 0 && time.Now().Before(end); {
		err := conn.QueryRow(context.Background(),
			"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&locks)
		if err != nil {
			t.Fatal(err)
		}
	}
	if locks != 0 {
		t.Errorf("%d advisory locks are left", locks)
	}
}
