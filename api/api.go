package api

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"

	"github.com/outboxd/outboxd/internal/redact"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// A request body is bounded in bytes by [Config.MaxBody], which is at most
// MaxMaxBody: a body is held in memory, about five times over while it is stored.
const (
	DefaultMaxBody = 10 << 20
	MinMaxBody     = 64 << 10
	MaxMaxBody     = 40 << 20
)

// Config configures the API.
type Config struct {
	// Pool reads API keys.
	Pool *pgxpool.Pool
	// Outbox stores and reads emails.
	Outbox *outbox.Client
	// Hooks verify and read the events of providers, by the provider's name.
	Hooks map[string]providers.Hook
	// MaxBody bounds a request body in bytes. Zero: [DefaultMaxBody].
	MaxBody int64
	// KeyRate and OrgRate bound the requests of one API key and of one org, each
	// email of a batch counting as one. They hold for this process alone. Zero: no
	// bound.
	KeyRate, OrgRate Rate
	// Ready reports why requests cannot be served. Nil: they always can.
	Ready func(r *http.Request) error
	// Metrics counts requests. Nil: nothing is counted.
	Metrics *Metrics
	// TracerProvider makes a span of each request. Nil: there are none, and the
	// header traceparent is not looked at.
	TracerProvider trace.TracerProvider
	// Logger gets one line per request. Nil: nothing is logged.
	Logger *slog.Logger
}

// server holds what the handlers share.
type server struct {
	outbox  *outbox.Client
	keys    *keyring
	hooks   map[string]providers.Hook
	maxBody int64
	// bodies and hookBodies are the memory for request bodies, in bytes.
	bodies, hookBodies *semaphore.Weighted

	limits  limits
	ready   func(r *http.Request) error
	metrics *Metrics
	tracer  tracer
	log     *slog.Logger
}

// Server is the API's handler, and what it does besides.
type Server struct {
	http.Handler
	keys *keyring
	log  *slog.Logger
}

// Run writes down when API keys were last used, until ctx ends, and then what is
// left of it. The API serves without it all the same.
func (s *Server) Run(ctx context.Context) { s.keys.recordUsage(ctx, s.log) }

// New returns the API.
func New(cfg Config) *Server {
	s := &server{
		outbox:  cfg.Outbox,
		keys:    newKeyring(cfg.Pool),
		hooks:   cfg.Hooks,
		maxBody: cmp.Or(cfg.MaxBody, DefaultMaxBody),
		limits:  newLimits(cfg.KeyRate, cfg.OrgRate),
		ready:   cfg.Ready,
		metrics: cfg.Metrics,
		tracer:  newTracer(cfg.TracerProvider),
		log:     cfg.Logger,
	}
	s.bodies = semaphore.NewWeighted(max(bodyMemory, 4*s.maxBody))
	s.hookBodies = semaphore.NewWeighted(hookMemory)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = redact.Logger(s.log)
	return &Server{Handler: s.routes(), keys: s.keys, log: s.log}
}

// routes is every route of the API, with the scope that it asks for.
func (s *server) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(s.observe, guardBody, tolerant(r))
	r.NotFound(s.open(routeNotFound))
	r.MethodNotAllowed(s.open(methodNotAllowed))

	r.Get("/healthz", s.open(s.healthz))
	r.Get("/readyz", s.open(s.readyz))
	r.Get("/openapi.json", s.open(s.serveOpenAPI))
	r.Get("/docs", s.open(s.serveDocs))

	r.Post("/hooks/{provider}", s.open(s.receiveEvents))

	r.Post("/emails", s.keyed(scopeSend, s.sendEmail))
	r.Post("/emails/batch", s.keyed(scopeSend, s.sendBatch))
	r.Get("/emails", s.keyed(scopeRead, s.listEmails))
	r.Get("/emails/{id}", s.keyed(scopeRead, s.getEmail))
	r.Patch("/emails/{id}", s.keyed(scopeSend, changeEmail(s.updateEmail)))
	r.Post("/emails/{id}/cancel", s.keyed(scopeSend, changeEmail(s.cancelEmail)))
	r.Post("/emails/{id}/retry", s.keyed(scopeAdmin, changeEmail(s.retryEmail)))
	r.Post("/emails/{id}/resolve", s.keyed(scopeAdmin, changeEmail(s.resolveEmail)))

	r.Get("/suppressions", s.keyed(scopeAdmin, s.listSuppressions))
	r.Post("/suppressions", s.keyed(scopeAdmin, s.addSuppression))
	r.Delete("/suppressions/{address}", s.keyed(scopeAdmin, s.deleteSuppression))

	r.Get("/unsubscribe/{token}", s.page(s.askToUnsubscribe))
	r.Post("/unsubscribe/{token}", s.page(s.unsubscribe))

	r.Post("/webhooks", s.keyed(scopeAdmin, s.createWebhook))
	r.Get("/webhooks", s.keyed(scopeAdmin, s.listWebhooks))
	r.Get("/webhooks/{id}", s.keyed(scopeAdmin, webhook(s.getWebhook)))
	r.Patch("/webhooks/{id}", s.keyed(scopeAdmin, webhook(s.updateWebhook)))
	r.Delete("/webhooks/{id}", s.keyed(scopeAdmin, webhook(s.deleteWebhook)))
	r.Post("/webhooks/{id}/signing-secret/rotate", s.keyed(scopeAdmin, webhook(s.rotateSecret)))
	r.Post("/webhooks/{id}/replay", s.keyed(scopeAdmin, webhook(s.replayWebhook)))
	r.Get("/webhooks/{id}/events", s.keyed(scopeAdmin, webhook(s.listWebhookEvents)))
	r.Get("/webhooks/{id}/events/{event}", s.keyed(scopeAdmin, webhook(s.getWebhookEvent)))
	r.Post("/webhooks/{id}/events/{event}/replay", s.keyed(scopeAdmin, webhook(s.replayWebhookEvent)))
	return r
}

func (s *server) healthz(*http.Request) (*response, error) {
	return &response{body: map[string]string{"status": "ok"}}, nil
}

func (s *server) readyz(r *http.Request) (*response, error) {
	if s.ready != nil {
		if err := s.ready(r); err != nil {
			return nil, unavailable(err)
		}
	}
	return &response{body: map[string]string{"status": "ok"}}, nil
}

func routeNotFound(*http.Request) (*response, error) {
	return nil, problem(http.StatusNotFound, "not_found", "There is no such route.")
}

func methodNotAllowed(*http.Request) (*response, error) {
	return nil, problem(http.StatusMethodNotAllowed, "method_not_allowed", "This route does not answer that method.")
}
