package outbox_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// Behind a pooler in transaction mode a worker refuses to start, also when
// nobody else uses the pooler and each statement runs in the same session.
func TestWorkerRefusesPooler(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		transactional bool
	}{{"session mode", false}, {"transaction mode", true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			pool := startPooler(t, testdb.URL(t), test.transactional)
			d, err := outbox.NewDeliverer(pool, outbox.WorkerConfig{Providers: []providers.Provider{newSendGrid(t, "http://127.0.0.1")}})
			if err != nil {
				t.Fatal(err)
			}
			_, kill, err := d.Attach(ctx)
			switch {
			case err == nil:
				kill()
				if test.transactional {
					t.Error("a session was opened, want a refusal")
				}
			case !test.transactional || !strings.Contains(err.Error(), "pooler in transaction mode"):
				t.Error(err)
			}
		})
	}
}

// pooler shares sessions between clients, the last used first, as PgBouncer.
type pooler struct {
	url           string
	transactional bool

	mu   sync.Mutex
	idle []*pgconn.HijackedConn
}

// startPooler returns a pool of clients of a pooler.
func startPooler(t *testing.T, url string, transactional bool) *pgxpool.Pool {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pooler{url: url, transactional: transactional}
	var clients sync.WaitGroup
	clients.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			clients.Go(func() { p.serve(client) })
		}
	})
	cfg, err := pgxpool.ParseConfig("postgres://u@" + listener.Addr().String() + "/db?sslmode=disable&default_query_exec_mode=exec")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		_ = listener.Close()
		clients.Wait()
		for _, server := range p.idle {
			_ = server.Conn.Close()
		}
	})
	return pool
}

func (p *pooler) take() (*pgconn.HijackedConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		server := p.idle[last]
		p.idle = p.idle[:last]
		return server, nil
	}
	conn, err := pgconn.Connect(context.Background(), p.url)
	if err != nil {
		return nil, err
	}
	return conn.Hijack()
}

func (p *pooler) giveBack(server *pgconn.HijackedConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, server)
}

// serve lends a session to a client, for each transaction or for all of them.
func (p *pooler) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	client := pgproto3.NewBackend(conn, conn)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	client.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1 << 30, SecretKey: make([]byte, 4)})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if client.Flush() != nil {
		return
	}
	var server *pgconn.HijackedConn
	defer func() {
		if server != nil {
			_ = server.Conn.Close()
		}
	}()
	for {
		m, err := client.Receive()
		if err != nil {
			return
		}
		if _, end := m.(*pgproto3.Terminate); end {
			return
		}
		if server == nil {
			if server, err = p.take(); err != nil {
				return
			}
		}
		server.Frontend.Send(m)
		switch m.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
		default:
			continue
		}
		status, err := relay(server.Frontend, client)
		if err != nil {
			return
		}
		if status == 'I' && p.transactional {
			p.giveBack(server)
			server = nil
		}
	}
}

// relay passes an answer on to its end.
func relay(server *pgproto3.Frontend, client *pgproto3.Backend) (status byte, err error) {
	if err := server.Flush(); err != nil {
		return 0, err
	}
	for {
		m, err := server.Receive()
		if err != nil {
			return 0, err
		}
		client.Send(m)
		if ready, ok := m.(*pgproto3.ReadyForQuery); ok {
			return ready.TxStatus, client.Flush()
		}
	}
}
