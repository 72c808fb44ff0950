package app

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"riverqueue.com/riverui"

	"github.com/outboxd/outboxd/cmd/internal/console"
	"github.com/outboxd/outboxd/outbox"
)

// opsHandler serves what operators and their tools need. All but the health
// checks and the metrics, which name nobody, ask for the admin password, and are
// not there without one.
func (c *Config) opsHandler(ready func(*http.Request) error, pages *adminPages, metrics http.Handler) http.Handler {
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
	mux.Handle("GET /metrics", metrics)
	if c.AdminPassword == "" {
		return mux
	}
	mux.Handle("/debug/pprof/", c.protect(profiles()))
	if pages != nil {
		mux.Handle(riverUIPath+"/", c.protect(pages.riverUI))
		mux.Handle(console.Path+"/", c.protect(pages.console))
		mux.Handle("GET /{$}", http.RedirectHandler(console.Path+"/", http.StatusFound))
	}
	return mux
}

// adminPages are what operators look at, beside each other on one listener.
type adminPages struct{ riverUI, console http.Handler }

// pagePolicy is what the pages of the ops listener may do: load what the listener
// itself serves, and talk to it. River UI sets styles in attributes, which only
// 'unsafe-inline' allows; the console says less itself.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'; " +
	"font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// protect asks for the admin password, refuses what a foreign page makes a
// logged-in browser send, and says what a page may do: River UI does none of it.
// On a read-only listener it lets nothing through that could change anything.
func (c *Config) protect(next http.Handler) http.Handler {
	if c.AdminReadOnly {
		next = readOnly(next)
	}
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
		h := w.Header()
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("X-Frame-Options", "DENY")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		same.ServeHTTP(w, r)
	})
}

// readOnly lets through what changes nothing by the rules of HTTP (RFC 9110,
// 9.2.1). River UI keeps to them.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "read-only: OUTBOXD_ADMIN_READ_ONLY is set", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// profiles is Go's profiler.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

const riverUIPath = "/riverui"

// newAdminPages returns River UI and the console, running until ctx ends. Without a
// password there are none.
func (c *Config) newAdminPages(
	ctx context.Context, pool *pgxpool.Pool, client *outbox.Client, keys *outbox.KeyRing, log *slog.Logger,
) (*adminPages, error) {
	if c.AdminPassword == "" {
		log.InfoContext(ctx, "the console, River UI and pprof are off: set OUTBOXD_ADMIN_PASSWORD to turn them on")
		return nil, nil
	}
	ui, err := newRiverUI(ctx, client.Jobs(), log)
	if err != nil {
		return nil, err
	}
	return &adminPages{riverUI: ui, console: console.New(console.Config{
		Pool: pool, Outbox: client, RiverUI: riverUIPath, Logger: log, ReadOnly: c.AdminReadOnly,
		Stuck: outbox.StuckFilter{UnknownWait: c.UnknownWait.D(), OnUnknown: outbox.Policy(c.OnUnknown), Keys: keys},
	})}, nil
}

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
