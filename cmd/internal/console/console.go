// Package console is the pages for operators: what waits and why, one email's
// whole story, and the few things that a person may do about it. They are made on
// the server and need no script. They show addresses and subjects and never a body
// or a secret, and are to be served behind a password, with cross-origin protection.
package console

import (
	"embed"
	"log/slog"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

// Path is where the pages are.
const Path = "/console"

// Config is what the console needs. All fields are required but Stuck and ReadOnly.
type Config struct {
	// Pool may be the API's: the console says itself that it stands above orgs.
	Pool   *pgxpool.Pool
	Outbox *outbox.Client
	// RiverUI is the path of River UI on the same listener.
	RiverUI string
	// Stuck has what the workers are configured with, to say why an email is stuck.
	Stuck outbox.StuckFilter
	// Logger receives who changed what, and what went wrong.
	Logger *slog.Logger
	// ReadOnly offers and does nothing that changes anything.
	ReadOnly bool
}

// pagePolicy lets a page use its stylesheet and send its forms, and nothing else.
const pagePolicy = "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

//go:embed pages
var files embed.FS

// handler serves the pages.
type handler struct{ Config }

// New returns the console, to be mounted at [Path] and a slash.
func New(cfg Config) http.Handler {
	h := handler{cfg}
	mux := http.NewServeMux()
	route := func(pattern string, serve func(*http.Request) (response, error)) {
		mux.Handle(pattern, endpoint{h, serve})
	}
	route("GET /console/{$}", h.overview)
	route("GET /console/emails", h.emails)
	route("GET /console/emails/{id}", h.email)
	route("GET /console/emails/{id}/{action}", h.askEmailAction)
	route("POST /console/emails/{id}/{action}", h.doEmailAction)
	route("GET /console/stuck", h.stuck)
	route("GET /console/workers", h.workers)
	route("GET /console/suppressions", h.suppressions)
	route("GET /console/suppressions/remove", h.askUnsuppress)
	route("POST /console/suppressions/remove", h.doUnsuppress)
	route("GET /console/", func(*http.Request) (response, error) { return nil, errNoPage })
	mux.HandleFunc("GET /console/style.css", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFileFS(w, r, files, "pages/style.css")
	})
	return mux
}
