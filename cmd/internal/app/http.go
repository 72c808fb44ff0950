package app

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"golang.org/x/net/netutil"
	"riverqueue.com/riverui"
)

// listener is an HTTP server on its address.
type listener struct {
	name   string
	server *http.Server
	socket net.Listener
}

// listen binds the address at once, so that a port that is taken is an error
// at start.
func listen(name, addr string, handler http.Handler, log *slog.Logger) (*listener, error) {
	socket, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s listener: %w", name, err)
	}
	return &listener{name: name, socket: socket, server: &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}, nil
}

// atMost bounds the connections at a time: each takes memory and a file. Further
// ones wait unaccepted until one of them ends, which the time-outs see to.
func (l *listener) atMost(connections int) {
	l.socket = netutil.LimitListener(l.socket, connections)
}

// serve runs until the server is shut down.
func (l *listener) serve() error {
	if err := l.server.Serve(l.socket); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s listener: %w", l.name, err)
	}
	return nil
}

// shutdown lets running requests end, as long as ctx allows.
func (l *listener) shutdown(ctx context.Context) error {
	if err := l.server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("%s listener: %w", l.name, err), l.server.Close())
	}
	return nil
}

// opsHandler serves what operators and their tools need. All but the health
// checks ask for the admin password, and are not there without one.
func (c *Config) opsHandler(ready func(*http.Request) error, ui http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready(r); err != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	if c.AdminPassword == "" {
		return mux
	}
	mux.Handle("/debug/pprof/", c.protect(http.HandlerFunc(pprof.Index)))
	mux.Handle("/debug/pprof/cmdline", c.protect(http.HandlerFunc(pprof.Cmdline)))
	mux.Handle("/debug/pprof/profile", c.protect(http.HandlerFunc(pprof.Profile)))
	mux.Handle("/debug/pprof/symbol", c.protect(http.HandlerFunc(pprof.Symbol)))
	mux.Handle("/debug/pprof/trace", c.protect(http.HandlerFunc(pprof.Trace)))
	if ui != nil {
		mux.Handle(riverUIPath+"/", c.protect(ui))
		mux.Handle("GET /{$}", http.RedirectHandler(riverUIPath+"/", http.StatusFound))
	}
	return mux
}

// protect asks for the admin password, and refuses what a foreign page makes a
// logged-in browser send: River UI checks neither.
func (c *Config) protect(next http.Handler) http.Handler {
	same := http.NewCrossOriginProtection().Handler(next)
	user, password := sha256.Sum256([]byte(c.AdminUser)), sha256.Sum256([]byte(c.AdminPassword))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, p, _ := r.BasicAuth()
		givenUser, givenPassword := sha256.Sum256([]byte(u)), sha256.Sum256([]byte(p))
		if subtle.ConstantTimeCompare(user[:], givenUser[:])&subtle.ConstantTimeCompare(password[:], givenPassword[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="outboxd", charset="UTF-8"`)
			http.Error(w, "password required", http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-Frame-Options", "DENY")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "same-origin")
		same.ServeHTTP(w, r)
	})
}

const riverUIPath = "/riverui"

// newRiverUI returns River UI, running until ctx ends.
func newRiverUI(ctx context.Context, jobs *river.Client[pgx.Tx], log *slog.Logger) (http.Handler, error) {
	ui, err := riverui.NewHandler(&riverui.HandlerOpts{
		Endpoints: riverui.NewEndpoints(jobs, nil),
		Logger:    log,
		Prefix:    riverUIPath,
	})
	if err != nil {
		return nil, fmt.Errorf("river ui: %w", err)
	}
	if err := ui.Start(ctx); err != nil {
		return nil, fmt.Errorf("river ui: %w", err)
	}
	return ui, nil
}
