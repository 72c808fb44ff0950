package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A worker process is alive as long as its session is: one connection of its
// own that holds an advisory lock. Postgres releases the lock when the
// connection ends, at once when the process is killed and within seconds when
// its host is gone. No clock and no lease is involved, so a process that is
// paused, for however long, is not taken for dead.

// lockNamespace is the first half of the advisory locks of workers: "outb".
const lockNamespace int32 = 0x6f757462

// sessionSettings make Postgres notice within about four seconds that the
// worker's host is gone, and never end the session for being idle.
var sessionSettings = map[string]string{
	"application_name":                    "outboxd-liveness",
	"tcp_keepalives_idle":                 "2",
	"tcp_keepalives_interval":             "1",
	"tcp_keepalives_count":                "3",
	"tcp_user_timeout":                    "4000",
	"idle_session_timeout":                "0",
	"idle_in_transaction_session_timeout": "0",
	"statement_timeout":                   "5s",
	"lock_timeout":                        "5s",
}

// openTimeout bounds how long it takes to open a session.
const openTimeout = 15 * time.Second

// sessionCheck is how often the worker's side looks whether the session is
// still there.
const sessionCheck = 500 * time.Millisecond

// session is the proof that a worker process is alive.
type session struct {
	id   string
	conn *pgx.Conn
	// backend is the process in Postgres that holds the lock.
	backend uint32
	// lost is closed when the session has ended. From then on others may take
	// this worker's emails over, and it must not begin anything new.
	lost chan struct{}
	// stop ends the watch.
	stop context.CancelFunc
	// clock is the database's.
	clock clock
}

// errNoSessionLocks means that the connection does not keep a session, as
// behind a pooler in transaction mode.
var errNoSessionLocks = errors.New("the database connection keeps no session locks: workers need a direct connection " +
	"to Postgres, not a pooler in transaction mode (point the worker's DATABASE_URL past it)")

// openSession connects, takes a lock under a new id and registers it. The id
// is never used twice: a successor under the same name would hide what its
// predecessor left behind.
func openSession(ctx context.Context, pool *pgxpool.Pool, version string) (*session, error) {
	// A network that is cut in the middle of it would leave it waiting.
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(opening, sessionConfig(pool))
	if err != nil {
		return nil, fmt.Errorf("liveness session: %w", err)
	}
	s := &session{conn: conn, lost: make(chan struct{})}
	if err := s.register(opening, pool, version); err != nil {
		_ = conn.Close(opening)
		return nil, fmt.Errorf("liveness session: %w", err)
	}
	var watchCtx context.Context
	watchCtx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	go s.watch(watchCtx)
	return s, nil
}

func sessionConfig(pool *pgxpool.Pool) *pgx.ConnConfig {
	cfg := pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams = maps.Clone(cfg.RuntimeParams)
	maps.Copy(cfg.RuntimeParams, sessionSettings)
	dialer := &net.Dialer{
		Timeout:         5 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3},
	}
	cfg.DialFunc = dialer.DialContext
	return cfg
}

const (
	sqlLockWorker = `SELECT pg_try_advisory_lock($1, $2), pg_backend_pid()`
	sqlHoldsLock  = `
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND classid = $1::integer::oid AND objid = $2::integer::oid AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND pid = pg_backend_pid() AND granted)`
	sqlBackend        = `SELECT pg_backend_pid()`
	sqlLook           = `SELECT pg_backend_pid(), clock_timestamp()`
	sqlRegisterWorker = `INSERT INTO outbox.workers (id, lock_key, host, pid, version) VALUES ($1, $2, $3, $4, $5)`
	sqlEndWorker      = `UPDATE outbox.workers SET ended_at = now() WHERE id = $1 AND ended_at IS NULL`
)

// register takes the lock of a new id and records the worker.
func (s *session) register(ctx context.Context, pool *pgxpool.Pool, version string) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	for locked := false; !locked; {
		// If not locked, the hash of another live worker's id is the same.
		s.id = fmt.Sprintf("%.40s/%d/%s", host, os.Getpid(), rand.Text()[:8])
		if err := s.conn.QueryRow(ctx, sqlLockWorker, lockNamespace, lockKey(s.id)).Scan(&locked, &s.backend); err != nil {
			return err
		}
	}
	if err := s.checkOwn(ctx, pool); err != nil {
		return err
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	_, err = s.conn.Exec(ctx, sqlRegisterWorker, s.id, lockKey(s.id), host, os.Getpid(), version)
	return err
}

// checkOwn checks that the lock is in a session of the connection's own.
// Behind a pooler in transaction mode it is in one that others use too, which
// does not show as long as that is free for each of our statements. So
// somebody else begins a transaction: either it gets that session, or we do
// not get it any more.
func (s *session) checkOwn(ctx context.Context, pool *pgxpool.Pool) error {
	if s.backend == s.conn.PgConn().PID() {
		return nil // no pooler: those do not tell their clients the real one
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var other uint32
		if err := tx.QueryRow(ctx, sqlBackend).Scan(&other); err != nil {
			return err
		}
		if other == s.backend {
			return errNoSessionLocks
		}
		var held bool
		if err := s.conn.QueryRow(ctx, sqlHoldsLock, lockNamespace, lockKey(s.id)).Scan(&held); err != nil {
			return err
		}
		if !held {
			return errNoSessionLocks
		}
		return nil
	})
}

func lockKey(id string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return int32(h.Sum32())
}

// watch closes lost when the session does not answer.
func (s *session) watch(ctx context.Context) {
	defer close(s.lost)
	tick := time.NewTicker(sessionCheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		// Waiting for a reply longer than Postgres waits for us would mean to
		// go on while others think that we are dead.
		bounded, cancel := context.WithTimeout(ctx, 4*time.Second)
		err := s.look(bounded)
		cancel()
		if err != nil {
			return
		}
	}
}

// look checks that the session is still the one that took the lock, and reads
// the database's clock.
func (s *session) look(ctx context.Context) error {
	var backend uint32
	var now time.Time
	asked := time.Now()
	if err := s.conn.QueryRow(ctx, sqlLook).Scan(&backend, &now); err != nil {
		return err
	}
	if backend != s.backend {
		return errNoSessionLocks
	}
	s.clock.set(now, asked)
	return nil
}

// now is the database's time, as far as is known. A nil session, of tests, has
// the process's.
func (s *session) now() time.Time {
	if s == nil {
		return time.Now()
	}
	return s.clock.Now()
}

// owned reports whether the session still stands.
func (s *session) owned() bool {
	select {
	case <-s.lost:
		return false
	default:
		return true
	}
}

// close ends the session and gives up the lock. Nothing of this worker may be
// under way any more.
func (s *session) close(ctx context.Context) {
	s.stop()
	<-s.lost
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, _ = s.conn.Exec(ctx, sqlEndWorker, s.id)
	_ = s.conn.Close(ctx)
}

// aliveSQL are workers w with the lock l that shows that they are alive; $1 is
// [lockNamespace]. The lock is looked at without touching it.
const aliveSQL = `outbox.workers w JOIN pg_locks l
    ON l.locktype = 'advisory' AND l.classid = $1::integer::oid AND l.objid = w.lock_key::oid AND l.objsubid = 2
    AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

const sqlIsAlive = `SELECT EXISTS (SELECT FROM ` + aliveSQL + ` WHERE w.id = $2)`

// isAlive reports whether the session of a worker stands.
func isAlive(ctx context.Context, pool *pgxpool.Pool, worker string) (bool, error) {
	var alive bool
	if err := pool.QueryRow(ctx, sqlIsAlive, lockNamespace, worker).Scan(&alive); err != nil {
		return false, fmt.Errorf("look for worker: %w", err)
	}
	return alive, nil
}
