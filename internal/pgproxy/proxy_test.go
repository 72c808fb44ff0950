package pgproxy_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxd/outboxd/internal/pgproxy"
	"github.com/outboxd/outboxd/internal/testdb"
)

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
