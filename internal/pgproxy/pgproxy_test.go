package pgproxy_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

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

func TestPassesEverythingThrough(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, conn := t.Context(), b.client("app")

	rows, err := conn.Query(ctx, "SELECT n, repeat('x', $1) FROM generate_series(1, 1000) n", 1000)
	if err != nil {
		t.Fatal(err)
	}
	var n, size int
	var text string
	if _, err := pgx.ForEachRow(rows, []any{&n, &text}, func() error { size += len(text); return nil }); err != nil {
		t.Fatal(err)
	}
	if n != 1000 || size != 1_000_000 {
		t.Errorf("%d rows with %d bytes came, want 1000 with 1000000", n, size)
	}
	source := pgx.CopyFromSlice(500, func(i int) ([]any, error) { return []any{i}, nil })
	if _, err := conn.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"number"}, source); err != nil {
		t.Fatal(err)
	}
	b.wantRows(500)

	b.exec(conn, "LISTEN bell")
	b.exec(b.direct, "NOTIFY bell, 'ring'")
	notification, err := conn.WaitForNotification(ctx)
	if err != nil || notification.Payload != "ring" {
		t.Errorf("notification %v, error %v", notification, err)
	}
	if _, err := conn.Exec(ctx, "SELECT 1/0"); err == nil {
		t.Error("an error of the server did not arrive")
	}
	if err := conn.Close(ctx); err != nil {
		t.Error(err)
	}
	b.awaitCount(0, sessions, "app")
}

func TestCancelRequestArrives(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conn := b.client("app")
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT pg_sleep(600)")
		failed <- err
	}()
	b.awaitCount(1, sessions+" AND wait_event = 'PgSleep'", "app")
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := await(t, "the query ends", failed)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != pgerrcode.QueryCanceled {
		t.Errorf("error %v, want that the query was canceled", err)
	}
}

func TestRefusesEncryption(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// prefer: encrypted if the server can, else not.
	conn := b.connect(strings.Replace(b.proxy.URL(), "sslmode=disable", "sslmode=prefer", 1))
	b.exec(conn, "SELECT 1")
}

func TestCutBefore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rule := b.proxy.On(pgproxy.Commit, pgproxy.CutBefore)
	wantCut(t, b.begin(b.client("app"), 1).Commit(t.Context()))
	await(t, "the rule fires", rule.Fired())
	b.awaitCount(0, sessions, "app")
	b.wantRows(0)

	// It acts once.
	if err := b.begin(b.client("app"), 2).Commit(t.Context()); err != nil {
		t.Error(err)
	}
	b.wantRows(1)
}

func TestCutAfter(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rule := b.proxy.On(pgproxy.Commit, pgproxy.CutAfter)
	tx := b.begin(b.client("app"), 1)
	wantNotFired(t, rule)
	wantCut(t, tx.Commit(t.Context()))
	await(t, "the rule fires", rule.Fired())
	b.wantRows(1)
}

// Where the server does not commit, the answer of the commit is no secret and
// the rule waits for one that does.
func TestCutAfterNeedsACommit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rule := b.proxy.On(pgproxy.Commit, pgproxy.CutAfter)
	conn := b.client("app")

	aborted := b.begin(conn, 1)
	_, _ = aborted.Exec(t.Context(), "SELECT 1/0")
	if err := aborted.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("commit of an aborted transaction: %v", err)
	}
	b.exec(conn, insert, 7)
	err := b.begin(conn, 7).Commit(t.Context()) // a deferred constraint fails
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != pgerrcode.UniqueViolation {
		t.Errorf("commit that fails: %v", err)
	}
	wantNotFired(t, rule)

	wantCut(t, b.begin(conn, 8).Commit(t.Context()))
	await(t, "the rule fires", rule.Fired())
	b.wantRows(2)
}

func TestHoldBefore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	release := make(chan struct{})
	rule := b.proxy.On(pgproxy.Commit, pgproxy.HoldBefore(release))
	tx, committed := b.begin(b.client("app"), 1), make(chan error, 1)
	go func() { committed <- tx.Commit(context.Background()) }()
	await(t, "the rule fires", rule.Fired())
	b.wantRows(0)
	b.awaitCount(1, sessions+" AND state = 'idle in transaction'", "app")
	close(release)
	if err := await(t, "the commit ends", committed); err != nil {
		t.Error(err)
	}
	b.wantRows(1)
}

// The client is gone, but what it sent is on its way.
func TestHoldBeforeOutlivesTheClient(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	release := make(chan struct{})
	rule := b.proxy.On(pgproxy.Commit, pgproxy.HoldBefore(release))
	conn := b.client("app")
	tx, committed := b.begin(conn, 1), make(chan error, 1)
	go func() { committed <- tx.Commit(context.Background()) }()
	await(t, "the rule fires", rule.Fired())
	if err := conn.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	wantCut(t, await(t, "the commit ends", committed))
	close(release)
	b.awaitCount(1, "SELECT count(*) FROM orders")
	b.awaitCount(0, sessions, "app")
}

// The server ends a session whose commit does not come; the client hears it.
func TestServerEndsWhatIsHeld(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rule := b.proxy.On(pgproxy.Commit, pgproxy.HoldBefore(make(chan struct{})))
	conn := b.client("app")
	tx := b.begin(conn, 1)
	b.exec(conn, "SET LOCAL idle_in_transaction_session_timeout = '20ms'")
	err := tx.Commit(t.Context())
	await(t, "the rule fires", rule.Fired())
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != pgerrcode.IdleInTransactionSessionTimeout {
		t.Errorf("commit: %v, want the server's word", err)
	}
	b.wantRows(0)
}

func TestHoldAfter(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	release := make(chan struct{})
	rule := b.proxy.On(pgproxy.Commit, pgproxy.HoldAfter(release))
	conn := b.client("app")
	tx, committed := b.begin(conn, 1), make(chan error, 1)
	go func() { committed <- tx.Commit(context.Background()) }()
	await(t, "the rule fires", rule.Fired())
	b.wantRows(1)
	select {
	case err := <-committed:
		t.Errorf("the client got the answer: %v", err)
	default:
	}
	close(release)
	if err := await(t, "the commit ends", committed); err != nil {
		t.Error(err)
	}
	b.exec(conn, insert, 2)
	b.wantRows(2)
}

func TestFilters(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rule := b.proxy.On(pgproxy.Commit, pgproxy.CutBefore, pgproxy.App("victim"), pgproxy.Saw("INTO orders"), pgproxy.Always())
	other, victim := b.client("other"), b.client("victim")
	if err := b.begin(other, 1).Commit(t.Context()); err != nil {
		t.Error(err)
	}
	// What an earlier transaction did does not count.
	b.exec(victim, insert, 2)
	rolledBack := b.begin(victim, 3)
	if err := rolledBack.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	tx, err := victim.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	wantNotFired(t, rule)

	// The statement is prepared by now, and its text is not sent again.
	wantCut(t, b.begin(victim, 4).Commit(t.Context()))
	wantCut(t, b.begin(b.client("victim"), 5).Commit(t.Context()))
	// A client learns of a cut before the rule counts it.
	if !becomes(2, rule.Count) {
		t.Errorf("the rule fired %d times, want 2", rule.Count())
	}
	rule.Disarm()
	if err := b.begin(b.client("victim"), 6).Commit(t.Context()); err != nil {
		t.Error(err)
	}
	b.wantRows(3)
}

// Of many connections at the same point, a rule that acts once hits one.
func TestActsOnce(t *testing.T) {
	t.Parallel()
	const clients = 8
	b := newBench(t)
	rule := b.proxy.On(pgproxy.Commit, pgproxy.CutAfter)
	transactions := make([]pgx.Tx, clients)
	for i := range transactions {
		transactions[i] = b.begin(b.client("app"), i)
	}
	var wg sync.WaitGroup
	errs := make([]error, clients)
	for i, tx := range transactions {
		wg.Go(func() { errs[i] = tx.Commit(context.Background()) })
	}
	wg.Wait()
	cut := 0
	for _, err := range errs {
		if err != nil {
			cut++
		}
	}
	if cut != 1 || !becomes(1, rule.Count) {
		t.Errorf("%d commits were cut and the rule fired %d times, want 1", cut, rule.Count())
	}
	b.wantRows(clients)
}

// Every way in which a driver can commit is recognised.
func TestWaysToCommit(t *testing.T) {
	t.Parallel()
	exec := func(mode pgx.QueryExecMode, statements ...string) func(context.Context, *pgx.Conn) error {
		return func(ctx context.Context, conn *pgx.Conn) error {
			for _, sql := range statements {
				if _, err := conn.Exec(ctx, sql, mode); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for name, way := range map[string]struct {
		at  pgproxy.Point
		run func(context.Context, *pgx.Conn) error
	}{
		"simple":            {pgproxy.Commit, exec(pgx.QueryExecModeSimpleProtocol, "BEGIN;", "INSERT INTO orders VALUES (1)", "COMMIT;")},
		"extended":          {pgproxy.Commit, exec(pgx.QueryExecModeExec, "start transaction", "INSERT INTO orders VALUES (1)", "end")},
		"prepared":          {pgproxy.Commit, exec(pgx.QueryExecModeCacheStatement, "begin", "INSERT INTO orders VALUES (1)", "commit")},
		"implicit simple":   {pgproxy.Autocommit, exec(pgx.QueryExecModeSimpleProtocol, "INSERT INTO orders VALUES (1)")},
		"implicit extended": {pgproxy.Autocommit, exec(pgx.QueryExecModeExec, "INSERT INTO orders VALUES (1)")},
		"implicit prepared": {pgproxy.Autocommit, exec(pgx.QueryExecModeCacheStatement, "INSERT INTO orders VALUES (1)")},
		"implicit batch": {pgproxy.Autocommit, func(ctx context.Context, conn *pgx.Conn) error {
			var batch pgx.Batch
			batch.Queue("SELECT 1")
			batch.Queue("INSERT INTO orders VALUES (1)")
			return conn.SendBatch(ctx, &batch).Close()
		}},
		"pipeline": {pgproxy.Commit, pipeline},
	} {
		for action, rows := range map[pgproxy.Action]int{pgproxy.CutBefore: 0, pgproxy.CutAfter: 1} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				conn := b.client("app")
				rule := b.proxy.On(way.at, action, pgproxy.Saw("INTO orders"))
				wantCut(t, way.run(t.Context(), conn))
				await(t, "the rule fires", rule.Fired())
				b.awaitCount(0, sessions, "app")
				b.wantRows(rows)
			})
		}
	}
}

// pipeline sends a whole transaction before it reads an answer.
func pipeline(ctx context.Context, conn *pgx.Conn) error {
	p := conn.PgConn().StartPipeline(ctx)
	for _, sql := range []string{"begin", "INSERT INTO orders VALUES (1)", "commit"} {
		p.SendQueryParams(sql, nil, nil, nil, nil)
		if err := p.Sync(); err != nil {
			return err
		}
	}
	return p.Close()
}

func TestCutAllAndRefuse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conn := b.client("app")
	b.proxy.Refuse()
	b.exec(conn, "SELECT 1") // it stays
	if _, err := pgx.Connect(t.Context(), b.proxy.URL()); err == nil {
		t.Error("a new connection was let in")
	}
	b.proxy.CutAll()
	_, err := conn.Exec(t.Context(), "SELECT 1")
	wantCut(t, err)
	b.awaitCount(0, sessions, "app")
	b.proxy.Accept()
	b.exec(b.client("app"), "SELECT 1")
}

// In a black hole nobody learns anything: not the client, and not the server
// that the client is gone.
func TestBlackhole(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	stays, goes := b.client("stays"), b.client("goes")
	b.proxy.Blackhole()
	done := make(chan error, 2)
	go func() {
		_, err := stays.Exec(context.Background(), insert, 1)
		done <- err
	}()
	go func() {
		conn, err := pgx.Connect(context.Background(), b.proxy.URL())
		if err == nil {
			err = conn.Close(context.Background())
		}
		done <- err
	}()
	if err := goes.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	// Time for what should not happen; a slow machine shows less, never a
	// failure.
	select {
	case err := <-done:
		t.Errorf("something got through: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if n := b.count(sessions, "goes"); n != 1 {
		t.Error("the server learned that the client is gone")
	}
	b.proxy.Heal()
	for range 2 {
		if err := await(t, "it goes on", done); err != nil {
			t.Error(err)
		}
	}
	b.wantRows(1)
	b.awaitCount(0, sessions, "goes")
}

func TestLatency(t *testing.T) {
	t.Parallel()
	const latency = 50 * time.Millisecond
	b := newBench(t)
	conn := b.client("app")
	b.proxy.SetLatency(latency)
	start := time.Now()
	if _, err := conn.Exec(t.Context(), insert, pgx.QueryExecModeExec, 1); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < latency {
		t.Errorf("the answer came after %v, want at least %v", took, latency)
	}
	b.proxy.SetLatency(0)
	b.exec(conn, "SELECT 1")
}

func TestRetarget(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	p := pgproxy.New(t, url)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Retarget("postgres://" + gone.Addr().String() + "/x"); err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.Connect(t.Context(), p.URL()); err == nil {
		t.Error("connected to a server that is not there")
	}
	if err := p.Retarget(url); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), p.URL())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Close ends everything, whatever state it is in, and waits for it.
func TestClose(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.client("idle")
	rule := b.proxy.On(pgproxy.Commit, pgproxy.HoldBefore(make(chan struct{})))
	tx, committed := b.begin(b.client("held"), 1), make(chan error, 1)
	go func() { committed <- tx.Commit(context.Background()) }()
	await(t, "the rule fires", rule.Fired())
	b.proxy.Blackhole()
	b.proxy.Close()
	wantCut(t, await(t, "the commit ends", committed))
	b.awaitCount(0, sessions, "idle")
	b.awaitCount(0, sessions, "held")
	b.proxy.Close()
}

func TestURLForms(t *testing.T) {
	t.Parallel()
	for _, databaseURL := range []string{
		"postgres://u:p%40ss@db.example.com:5433/shop?host=10.0.0.1&port=6000&sslmode=require&lock_timeout=1s",
		"user=u password='p@ss' host=db.example.com port=5433 dbname=shop sslmode=disable lock_timeout=1s",
	} {
		p, err := pgproxy.Start(databaseURL)
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		config, err := pgconn.ParseConfig(p.URL())
		if err != nil {
			t.Fatal(err)
		}
		if config.Host != "127.0.0.1" || config.Port < 1024 || config.Port == 5433 || config.TLSConfig != nil ||
			config.User != "u" || config.Password != "p@ss" || config.Database != "shop" || config.RuntimeParams["lock_timeout"] != "1s" {
			t.Errorf("%s became %s", databaseURL, p.URL())
		}
	}
	if _, err := pgproxy.Start("postgres://host:port"); err == nil {
		t.Error("a connection string that cannot be read was taken")
	}
}

// What is not the protocol ends the connection, and no more than that.
func TestGarbage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config, err := pgconn.ParseConfig(b.proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	startup, err := (&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters:      map[string]string{"user": config.User, "database": config.Database},
	}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, garbage := range []string{
		"GET / HTTP/1.1\r\n\r\n",
		string(startup) + "Q\x00\x00\x00\x01",     // shorter than its own length
		string(startup) + "Q\xff\xff\xff\xff",     // longer than any message
		string(startup) + "B\x00\x00\x00\x05\x00", // cannot be decoded
	} {
		conn, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(garbage)); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1024)
		for err == nil {
			_, err = conn.Read(buf)
		}
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			t.Errorf("%q: the connection stays open", garbage)
		}
		_ = conn.Close()
	}
	b.exec(b.client("app"), "SELECT 1")
}
