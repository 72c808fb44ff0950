package testdb

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/localpg"
)

const (
	// startTimeout covers the slowest start: initdb and migration on a machine
	// that is busy with other packages' tests.
	startTimeout = 3 * time.Minute
	// adminConns run CREATE DATABASE and DROP DATABASE for parallel tests.
	adminConns = 4

	prefix     = "outboxd_test_"
	keptPrefix = "outboxd_kept_"
)

// suite is what the tests of one process share: the server, the template that
// their databases are copied from, and the database of Tx.
//
// A suite's databases bear its id, and while it lives it holds an advisory
// lock by that id. So whoever gets that lock knows that the process is gone,
// however it ended, and may drop what it left behind; see sweep.
type suite struct {
	id     string
	schema schema
	count  atomic.Int64 // of databases made

	startOnce sync.Once
	startErr  error
	url       string // of the database to connect to for CREATE DATABASE
	// superuserURL is empty where the server is not ours.
	superuserURL string
	server       *localpg.Server
	admin        *pgxpool.Pool
	session      *pgx.Conn // holds the locks; used during start alone
	template     string
	// copyFiles says how a template is copied: see sqlCopyFiles.
	copyFiles bool

	sharedMu   sync.Mutex
	shared     *pgxpool.Pool
	sharedName string
}

// newSuite connects to nothing yet: a run that skips all tests with a database
// should not need one. Without a URL, start makes a private server.
func newSuite(url string, schema schema) *suite {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	return &suite{id: hex.EncodeToString(id), schema: schema, url: url, superuserURL: os.Getenv(localpg.SuperuserURLEnv)}
}

// start connects and finds or builds the template, once.
func (s *suite) start() error {
	s.startOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		s.startErr = s.open(ctx)
	})
	return s.startErr
}

func (s *suite) open(ctx context.Context) (err error) {
	if s.url == "" {
		if s.server, err = localpg.Start(ctx, localpg.Options{Ephemeral: true}); err != nil {
			return err
		}
		s.url, s.superuserURL = s.server.URL(), s.server.SuperuserURL()
	}
	if s.session, err = pgx.Connect(ctx, s.url); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return err
	}
	config.MaxConns = adminConns
	if s.admin, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	if err := lock(ctx, s.session, s.ownPrefix()); err != nil {
		return err
	}
	if err := s.ensureTemplate(ctx); err != nil {
		return fmt.Errorf("template database: %w", err)
	}
	if err := s.session.QueryRow(ctx, sqlCopyFiles).Scan(&s.copyFiles); err != nil {
		return fmt.Errorf("the server's settings: %w", err)
	}
	return s.sweep(ctx)
}

// close drops what the suite still owns and ends its connections.
func (s *suite) close(ctx context.Context) error {
	var err error
	if s.shared != nil {
		s.shared.Close()
		err = s.drop(ctx, s.sharedName)
	}
	if s.admin != nil {
		s.admin.Close()
	}
	if s.session != nil {
		err = errors.Join(err, s.session.Close(ctx))
	}
	if s.server != nil {
		err = errors.Join(err, s.server.Stop())
	}
	return err
}

func (s *suite) ownPrefix() string { return prefix + s.id + "_" }

// keptPrefix begins the names of databases that no sweep touches.
func (s *suite) keptPrefix() string { return keptPrefix + s.id + "_" }

// sqlCopyFiles asks whether the server should copy a template's files, rather than
// write each of their pages to its log too. That needs a checkpoint, which costs
// less than the pages only where nothing waits for a disk. Before version 15 there
// is no choice.
const sqlCopyFiles = `SELECT current_setting('fsync') = 'off' AND current_setting('server_version_num')::int >= 150000`

// create copies the template and returns the new database's name and its
// connection string.
func (s *suite) create(ctx context.Context, prefix string) (name, url string, err error) {
	name = prefix + strconv.FormatInt(s.count.Add(1), 10)
	sql := "CREATE DATABASE " + quote(name) + " TEMPLATE " + quote(s.template)
	if s.copyFiles {
		sql += " STRATEGY file_copy"
	}
	if _, err := s.admin.Exec(ctx, sql); err != nil {
		return "", "", fmt.Errorf("creating a database: %w", err)
	}
	url, err = withDatabase(s.url, name)
	return name, url, err
}

// drop removes a database and disconnects whoever still uses it.
func (s *suite) drop(ctx context.Context, name string) error {
	_, err := s.admin.Exec(ctx, dropSQL(name))
	// Autovacuum may be at it, and Postgres lets no ordinary role disconnect that by
	// FORCE. Without it, it does so by itself; what is left are the test's own.
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == pgerrcode.InsufficientPrivilege {
		const disconnect = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND usename = current_user`
		if _, err = s.admin.Exec(ctx, disconnect, name); err == nil {
			_, err = s.admin.Exec(ctx, "DROP DATABASE IF EXISTS "+quote(name))
		}
	}
	if err != nil {
		return fmt.Errorf("dropping database %s: %w", name, err)
	}
	return nil
}

// sharedPool makes the database of Tx at its first use.
func (s *suite) sharedPool(ctx context.Context) (*pgxpool.Pool, error) {
	s.sharedMu.Lock()
	defer s.sharedMu.Unlock()
	if s.shared != nil {
		return s.shared, nil
	}
	name, url, err := s.create(ctx, s.ownPrefix())
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = maxShared
	// The pool outlives the test that happens to make it.
	if s.shared, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), config); err != nil {
		return nil, err
	}
	s.sharedName = name
	return s.shared, nil
}

func dropSQL(name string) string {
	return "DROP DATABASE IF EXISTS " + quote(name) + " WITH (FORCE)"
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
