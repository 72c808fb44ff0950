package outbox_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// execer is what newOrg needs of a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// newOrg stores an org; the SQL function asks for one.
func newOrg(t *testing.T, db execer) uuid.UUID {
	t.Helper()
	org := uuid.New()
	if _, err := db.Exec(context.Background(), "INSERT INTO outbox.orgs (id, name) VALUES ($1, $2)", org, org.String()); err != nil {
		t.Fatal(err)
	}
	return org
}

// wire is a message as the body of POST /emails.
func wire(t fataler, m outbox.Message) string {
	t.Helper()
	body := map[string]any{
		"from": m.From, "to": m.To, "cc": m.Cc, "bcc": m.Bcc, "reply_to": m.ReplyTo, "subject": m.Subject, "html": m.HTML,
		"text": m.Text, "headers": m.Headers, "tags": m.Tags, "metadata": m.Metadata,
		"on_unknown": m.OnUnknown, "priority": m.Priority, "provider": m.Provider,
		"list_unsubscribe": m.ListUnsubscribe,
	}
	files := []map[string]any{}
	for _, a := range m.Attachments {
		files = append(files, map[string]any{
			"filename": a.Filename, "content": append([]byte{}, a.Content...), "content_type": a.ContentType, "content_id": a.ContentID,
		})
	}
	body["attachments"] = files
	for name, at := range map[string]time.Time{"scheduled_at": m.ScheduledAt, "expires_at": m.ExpiresAt} {
		if !at.IsZero() {
			body[name] = at
		}
	}
	encoded, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// callEnqueue is the SQL door; an empty key is none.
const callEnqueue = `SELECT outbox.enqueue_email(org => $1, message => $2::text::jsonb, idempotency_key => nullif($3, ''))`

// enqueueSQL submits what Client.Enqueue would submit.
func enqueueSQL(t *testing.T, db querier, s outbox.Submission) (id uuid.UUID, err error) {
	t.Helper()
	err = db.QueryRow(context.Background(), callEnqueue, s.Org, wire(t, s.Messages[0]), s.IdempotencyKey).Scan(&id)
	return id, err
}

// nameOf is the error's name in the DETAIL of an error.
func nameOf(err error) string {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	var detail struct{ Name string }
	if !ok || json.Unmarshal([]byte(pgErr.Detail), &detail) != nil {
		return ""
	}
	return detail.Name
}

func begin(t *testing.T, db interface {
	Begin(ctx context.Context) (pgx.Tx, error)
},
) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// It is the caller's transaction: all or nothing, and a savepoint too.
func TestSQLCommitsAndRollsBackWithTheCaller(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	s := submission(newOrg(t, pool), "k")
	s.Messages[0].Attachments = []outbox.Attachment{{Filename: "a.bin", Content: []byte{0, 255}}}
	nothing := map[string]int{"emails": 0, "email_contents": 0, "email_terms": 0, "attachments": 0, "idempotency_keys": 0, "river_job": 0}
	everything := map[string]int{"emails": 1, "email_contents": 1, "email_terms": 1, "attachments": 1, "idempotency_keys": 1, "river_job": 1}

	tx := begin(t, pool)
	savepoint := begin(t, tx)
	_, err := enqueueSQL(t, savepoint, s)
	must(t, err)
	if diff := cmp.Diff(everything, tables(t, savepoint)); diff != "" {
		t.Errorf("in the savepoint (-want +got):\n%s", diff)
	}
	must(t, savepoint.Rollback(context.Background()))
	if diff := cmp.Diff(nothing, tables(t, tx)); diff != "" {
		t.Errorf("after the savepoint (-want +got):\n%s", diff)
	}
	_, err = enqueueSQL(t, tx, s)
	must(t, err)
	must(t, tx.Rollback(context.Background()))
	if diff := cmp.Diff(nothing, tables(t, pool)); diff != "" {
		t.Errorf("after the rollback (-want +got):\n%s", diff)
	}

	tx = begin(t, pool)
	first, err := enqueueSQL(t, tx, s)
	must(t, err)
	bad := s
	bad.Messages, bad.IdempotencyKey = []outbox.Message{{}}, "other"
	savepoint = begin(t, tx)
	if _, err := enqueueSQL(t, savepoint, bad); nameOf(err) != "validation_error" {
		t.Errorf("error = %v, want validation_error", err)
	}
	must(t, savepoint.Rollback(context.Background()))
	must(t, tx.Commit(context.Background()))
	if diff := cmp.Diff(everything, tables(t, pool)); diff != "" {
		t.Errorf("after the commit (-want +got):\n%s", diff)
	}
	if receipt, err := newClient(t, pool).Enqueue(context.Background(), s); err != nil || !receipt.Replayed || receipt.IDs[0] != first {
		t.Errorf("receipt %+v, error %v; want a replay of %s", receipt, err, first)
	}
}

// Workers are woken by the commit, for what is due, as River's client wakes
// them.
func TestSQLWakesTheWorkers(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	s := submission(newOrg(t, pool), "")
	listener, err := pgx.Connect(context.Background(), pool.Config().ConnString())
	must(t, err)
	t.Cleanup(func() { _ = listener.Close(context.Background()) })
	_, err = listener.Exec(context.Background(), `LISTEN "outbox.river_insert"`)
	must(t, err)
	heard := func() string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		n, err := listener.WaitForNotification(ctx)
		must(t, err)
		return n.Payload
	}
	mark := func(payload string) {
		t.Helper()
		_, err := pool.Exec(context.Background(), "SELECT pg_notify('outbox.river_insert', $1)", payload)
		must(t, err)
	}

	tx := begin(t, pool)
	_, err = enqueueSQL(t, tx, s)
	must(t, err)
	mark("before the commit")
	must(t, tx.Commit(context.Background()))
	later := s
	later.Messages = []outbox.Message{message()}
	later.Messages[0].ScheduledAt = time.Now().Add(time.Hour)
	_, err = enqueueSQL(t, pool, later)
	must(t, err)
	mark("after a scheduled one")
	got := []string{heard(), heard(), heard()}
	if diff := cmp.Diff([]string{"before the commit", `{"queue": "emails"}`, "after a scheduled one"}, got); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
}

// I6: one email per live key, however many sessions submit it at once; and
// exactly one new one when the key has expired.
func TestSQLSessionsWithOneKeyMakeOneEmail(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	s := submission(newOrg(t, pool), "k")
	const sessions = 50
	conns := make([]*pgx.Conn, sessions)
	for i := range conns {
		var err error
		conns[i], err = pgx.Connect(context.Background(), pool.Config().ConnString())
		must(t, err)
		t.Cleanup(func() { _ = conns[i].Close(context.Background()) })
	}
	atOnce := func() uuid.UUID {
		t.Helper()
		ids, errs := make([]uuid.UUID, sessions), make([]error, sessions)
		var wg sync.WaitGroup
		for i := range conns {
			wg.Go(func() { ids[i], errs[i] = enqueueSQL(t, conns[i], s) })
		}
		wg.Wait()
		for i := range ids {
			if errs[i] != nil || ids[i] != ids[0] {
				t.Fatalf("%s, error %v; want %s", ids[i], errs[i], ids[0])
			}
		}
		return ids[0]
	}
	first := atOnce()
	want := map[string]int{"emails": 1, "email_contents": 1, "email_terms": 1, "attachments": 0, "idempotency_keys": 1, "river_job": 1}
	if diff := cmp.Diff(want, tables(t, pool)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	for _, sql := range []string{
		"UPDATE outbox.idempotency_keys SET expires_at = now() - interval '1 second'",
		"UPDATE outbox.emails SET status = 'sent', ended_at = now() - interval '25 hours'",
	} {
		_, err := pool.Exec(context.Background(), sql)
		must(t, err)
	}
	if second := atOnce(); second == first {
		t.Error("the expired key was replayed")
	}
	if n := count(t, pool, "SELECT count(*) FROM outbox.emails"); n != 2 {
		t.Errorf("%d emails, want 2", n)
	}
}

// A key is held for its time-to-live and for the life of its email, as in Go.
func TestSQLKeyExpiresAsInGo(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	s := submission(newOrg(t, tx), "k")
	first, err := enqueueSQL(t, tx, s)
	must(t, err)
	for _, test := range []struct {
		sql    string
		replay bool
	}{
		{"UPDATE outbox.idempotency_keys SET expires_at = now()", true},
		{"UPDATE outbox.emails SET status = 'sent', ended_at = now() - interval '23 hours'", true},
		{"UPDATE outbox.emails SET ended_at = now() - interval '25 hours'", false},
	} {
		_, err := tx.Exec(context.Background(), test.sql)
		must(t, err)
		if again, err := enqueueSQL(t, tx, s); err != nil || (again == first) != test.replay {
			t.Errorf("after %s: %s, error %v; replay is %v", test.sql, again, err, test.replay)
		}
	}
	const shorter = "SELECT outbox.enqueue_email($1, $2::text::jsonb, 'short', interval '23 hours')"
	savepoint := begin(t, tx)
	if _, err := savepoint.Exec(context.Background(), shorter, s.Org, wire(t, message())); nameOf(err) != "validation_error" {
		t.Errorf("error = %v, want validation_error for 23 hours", err)
	}
}

// A retry that arrives after the scheduled time is still the same request.
func TestSQLReplayIsNotHeldToTheClock(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	s := submission(newOrg(t, tx), "k")
	s.Messages[0].ScheduledAt = time.Now().Add(-time.Hour).UTC()
	savepoint := begin(t, tx)
	if _, err := enqueueSQL(t, savepoint, s); nameOf(err) != "validation_error" {
		t.Fatalf("error = %v, want that it is in the past", err)
	}
	must(t, savepoint.Rollback(context.Background()))

	// As if it had been submitted two hours ago.
	early := submission(s.Org, "k")
	first, err := enqueueSQL(t, tx, early)
	must(t, err)
	sum, err := hex.DecodeString(fingerprint(t, s))
	must(t, err)
	_, err = tx.Exec(context.Background(), "UPDATE outbox.idempotency_keys SET fingerprint = $1", sum)
	must(t, err)
	if again, err := enqueueSQL(t, tx, s); err != nil || again != first {
		t.Errorf("%s, error %v; want a replay of %s", again, err, first)
	}
	savepoint = begin(t, tx)
	if _, err := enqueueSQL(t, savepoint, early); nameOf(err) != "invalid_idempotent_request" {
		t.Errorf("error = %v, want invalid_idempotent_request", err)
	}
}

// What the transaction's own settings make of a key that is taken.
func TestSQLKeyThatAnotherTransactionHolds(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	s := submission(newOrg(t, pool), "k")
	holder := begin(t, pool)
	_, err := enqueueSQL(t, holder, s)
	must(t, err)

	impatient := begin(t, pool)
	_, err = impatient.Exec(context.Background(), "SET LOCAL lock_timeout = '10ms'")
	must(t, err)
	if _, err := enqueueSQL(t, impatient, s); nameOf(err) != "concurrent_idempotent_requests" {
		t.Errorf("error = %v after the lock time-out, want concurrent_idempotent_requests", err)
	}

	repeatable, err := pool.BeginTx(context.Background(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	must(t, err)
	t.Cleanup(func() { _ = repeatable.Rollback(context.Background()) })
	count(t, repeatable, "SELECT 1") // takes the snapshot
	must(t, holder.Commit(context.Background()))
	_, err = enqueueSQL(t, repeatable, s)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != pgerrcode.SerializationFailure {
		t.Errorf("error = %v under REPEATABLE READ, want 40001", err)
	}

	_, err = pool.Exec(context.Background(), "UPDATE outbox.idempotency_keys SET fingerprint_version = 2")
	must(t, err)
	if _, err := enqueueSQL(t, pool, s); nameOf(err) != "internal_server_error" {
		t.Errorf("error = %v, want one about a newer release", err)
	}
}

// A role that may only call the function can, and can neither read nor write,
// nor call its parts.
func TestSQLLeastPrivilege(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	s := submission(newOrg(t, pool), "k")
	role := "outboxd_shop_" + hex.EncodeToString(s.Org[:8])
	above := testdb.Superuser(t)
	_, err := above.Exec(context.Background(), fmt.Sprintf("CREATE ROLE %[1]s; GRANT %[1]s TO %[2]s",
		role, pgx.Identifier{pool.Config().ConnConfig.User}.Sanitize()))
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == pgerrcode.InsufficientPrivilege {
		t.Skip("the role of DATABASE_URL cannot make roles")
	}
	must(t, err)
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), "DROP OWNED BY "+role)
		if err == nil {
			_, err = above.Exec(context.Background(), "DROP ROLE "+role)
		}
		if err != nil {
			t.Error(err)
		}
	})
	tx := begin(t, pool)
	exec := func(sql string) {
		t.Helper()
		_, err := tx.Exec(context.Background(), sql)
		must(t, err)
	}
	denied := func(sql string) {
		t.Helper()
		savepoint := begin(t, tx)
		_, err := savepoint.Exec(context.Background(), sql)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != pgerrcode.InsufficientPrivilege {
			t.Errorf("%s: error %v, want that it is not allowed", sql, err)
		}
		must(t, savepoint.Rollback(context.Background()))
	}
	exec("GRANT USAGE ON SCHEMA outbox TO " + role)
	exec("SET LOCAL ROLE " + role)
	denied("SELECT outbox.enqueue_email(null, null)")
	exec("RESET ROLE; GRANT EXECUTE ON FUNCTION outbox.enqueue_email TO " + role)
	rows, err := tx.Query(context.Background(), `
		SELECT format('SELECT outbox.%I(%s)', proname, (SELECT string_agg(format('null::%s', format_type(a, null)), ', ') FROM unnest(proargtypes) a))
		FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname LIKE 'enqueue\_%' AND proname <> 'enqueue_email'
		UNION ALL SELECT format('SELECT FROM outbox.%I', relname) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'
		UNION ALL SELECT format('DELETE FROM outbox.%I', relname) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'`)
	must(t, err)
	forbidden, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	exec("SET LOCAL ROLE " + role)
	_, err = enqueueSQL(t, tx, s)
	must(t, err)
	for _, sql := range forbidden {
		denied(sql)
	}
	if len(forbidden) < 60 {
		t.Errorf("%d statements were tried, want every function and table", len(forbidden))
	}
	must(t, tx.Commit(context.Background()))
	if n := tables(t, pool); n["emails"] != 1 || n["river_job"] != 1 {
		t.Errorf("rows %v, want one email and job", n)
	}
}

// The rights are the owner's, so nothing that the caller sets may change what
// the function does.
func TestSQLDoesNotDependOnTheSession(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	s := submission(newOrg(t, pool), "k")
	s.Messages[0] = full()
	s.Messages[0].ScheduledAt = time.Now().Add(60 * 24 * time.Hour).Truncate(time.Microsecond).UTC()
	s.Messages[0].ExpiresAt = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
	tx := begin(t, pool)
	for _, sql := range []string{
		"CREATE SCHEMA evil",
		"CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS 'SELECT ''evil'''",
		"CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT null::timestamptz'",
		"CREATE TEMPORARY TABLE orgs (id uuid)",
		"SET LOCAL search_path = evil, pg_temp, pg_catalog",
		"SET LOCAL standard_conforming_strings = off",
		"SET LOCAL timezone = 'America/New_York'",
		"SET LOCAL datestyle = 'SQL, DMY'",
		"SET LOCAL intervalstyle = 'sql_standard'",
		"SET LOCAL bytea_output = 'escape'",
	} {
		_, err := tx.Exec(context.Background(), sql)
		must(t, err)
	}
	id, err := enqueueSQL(t, tx, s)
	must(t, err)
	must(t, tx.Commit(context.Background()))
	receipt, err := newClient(t, pool).Enqueue(context.Background(), s)
	if err != nil || !receipt.Replayed || receipt.IDs[0] != id {
		t.Errorf("receipt %+v, error %v; want a replay of %s", receipt, err, id)
	}
	email, err := newClient(t, pool).Get(context.Background(), s.Org, id)
	must(t, err)
	email.Message.Attachments = s.Messages[0].Attachments // are not read
	if diff := cmp.Diff(s.Messages[0], email.Message); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
	if n := count(t, pool, "SELECT count(*) FROM outbox.idempotency_keys WHERE expires_at - created_at = interval '168 hours'"); n != 1 {
		t.Error("the key is not kept for 7 days of 24 hours")
	}
}

// What is refused by its size is refused before it is looked at.
func TestSQLRefusesWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	s := submission(newOrg(t, tx), "")
	s.Messages[0].HTML = strings.Repeat("a", 15<<20)
	if _, err := enqueueSQL(t, tx, s); nameOf(err) != "payload_too_large" {
		t.Errorf("error = %v, want payload_too_large", err)
	}
}
