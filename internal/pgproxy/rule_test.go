package pgproxy_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxd/outboxd/internal/pgproxy"
)

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
