// Package localpg finds or starts a PostgreSQL server for development and for
// tests.
//
// The server belongs to the process that started it: it listens on 127.0.0.1
// only, asks for a generated password, and shuts down when that process ends,
// however it ends. It runs as an ordinary user even when the caller is root,
// because PostgreSQL refuses to run as root.
//
// It needs a Unix: credentials, process groups and flock.
package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"
)

const (
	// superuser is the role that initdb creates.
	superuser = "postgres"
	// startAttempts bounds how often a lost race for a free port is run again.
	startAttempts = 3
	// stopTimeout is how long a fast shutdown may take before the server is
	// killed. A shutdown writes a checkpoint, so it is generous.
	stopTimeout = time.Minute
)

// SuperuserURLEnv names the environment variable in which tests find the superuser
// of the server that DATABASE_URL names, where we started it.
const SuperuserURLEnv = "OUTBOXD_TEST_SUPERUSER_URL"

// Options says which server to start. The zero value is a durable server on a
// free port whose data is removed when it stops.
type Options struct {
	// DataDir holds the data and the password between two starts. It is
	// created when missing. Empty means a temporary folder, removed on Stop.
	DataDir string
	// Ephemeral gives up durability for speed: a crash of the machine loses
	// the data, which without a DataDir is in memory where that has room. It is
	// meant for tests.
	Ephemeral bool
	// Port is the TCP port on 127.0.0.1. Zero means any free port.
	Port int
	// Log receives what initdb and the server print. Nil discards it; the
	// last lines are part of the error when a start fails.
	Log io.Writer
}

// Server is a running PostgreSQL server.
type Server struct {
	url          string
	superuserURL string
	port         int
	cluster      cluster
	process      *process

	stopOnce sync.Once
	stopErr  error
}

// Start finds PostgreSQL, or downloads it when the machine has none, and
// starts a server. It returns when the server answers queries. The context
// bounds the start only: the server lives until Stop, or until this process
// ends.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.Log == nil {
		opts.Log = io.Discard
	}
	binDir, err := Find()
	if err != nil {
		if binDir, err = download(mavenCentral); err != nil {
			return nil, err
		}
	}
	// A free port can be taken by somebody else before PostgreSQL binds it.
	// Nothing tells that apart for certain from other failures to start, so
	// any early exit is tried again while the port is ours to choose.
	for attempt := 1; ; attempt++ {
		server, err := start(ctx, binDir, opts)
		if err == nil {
			return server, nil
		}
		if opts.Port != 0 || attempt == startAttempts || !errors.Is(err, errExited) {
			return nil, fmt.Errorf("starting PostgreSQL: %w", err)
		}
	}
}

// start makes one attempt, from the folder to a server that answers. It leaves
// nothing behind when it fails.
func start(ctx context.Context, binDir string, opts Options) (_ *Server, err error) {
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	f, err := openFolder(ctx, opts, as)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()

	c := cluster{binDir: binDir, folder: f, ephemeral: opts.Ephemeral, log: opts.Log}
	password, err := c.prepare(ctx)
	if err != nil {
		return nil, err
	}
	port, err := choosePort(opts.Port)
	if err != nil {
		return nil, err
	}
	p, err := c.launch(port)
	if err != nil {
		return nil, err
	}
	s := &Server{
		url: serverURL(owner, password, port), superuserURL: serverURL(superuser, password, port), port: port,
		cluster: c, process: p,
	}
	err = p.awaitReady(ctx, s.superuserURL)
	if err == nil {
		err = makeOwner(ctx, s.superuserURL, password)
	}
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return s, nil
}

// URL returns the connection string of the server's database "postgres", for
// the ordinary role that owns it and may create others. It holds the password.
func (s *Server) URL() string { return s.url }

// SuperuserURL is the same for the superuser, who is above row-level security.
func (s *Server) SuperuserURL() string { return s.superuserURL }

// Port is the TCP port on 127.0.0.1 that the server listens on. Given to a later Start,
// in Options, the server comes back at the same address.
func (s *Server) Port() int { return s.port }

// Done is closed when the server has ended, by Stop or by itself.
func (s *Server) Done() <-chan struct{} { return s.process.done }

// Stop shuts the server down, disconnecting its clients, and waits until it
// has ended. A temporary data folder is removed. Later calls, and those after
// Kill, return the result of the first.
func (s *Server) Stop() error {
	s.stopOnce.Do(func() {
		s.stopErr = errors.Join(s.process.stop(), s.cluster.folder.close())
	})
	return s.stopErr
}

// Kill ends the server at once, as a crash does, and waits until all of it has
// ended. A temporary data folder is removed; any other is left as the crash
// left it, and the next Start recovers what was committed.
func (s *Server) Kill() error {
	s.stopOnce.Do(func() {
		pid, err := s.cluster.folder.postmaster()
		if err == nil {
			err = s.process.kill(pid)
		} else {
			err = errors.Join(err, s.process.stop())
		}
		s.stopErr = errors.Join(err, s.cluster.folder.close())
	})
	return s.stopErr
}

// choosePort returns the wanted port, or a free one when none is wanted.
func choosePort(wanted int) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(wanted)))
	if err != nil {
		return 0, fmt.Errorf("port %d: %w", wanted, err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

func serverURL(role, password string, port int) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(role, password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}
