package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxd/outboxd/internal/redact"
	"github.com/outboxd/outboxd/providers"
)

// The defaults of [WorkerConfig].
const (
	DefaultSendTimeout = 30 * time.Second
	DefaultGiveUpAfter = 24 * time.Hour
	DefaultUnknownWait = 2 * time.Minute
	DefaultOnUnknown   = PolicyRetry
	DefaultConcurrency = 50
	// DefaultContentRetention is how long content is kept; see
	// [WorkerConfig.ContentRetention].
	DefaultContentRetention = 30 * 24 * time.Hour
)

// completedJobsKept is how long River UI shows jobs that are done. The emails and their
// attempts say all that they do, and River's day of them would be a quarter of what an
// email takes in the database.
const completedJobsKept = time.Hour

// KeepContent is a retention that does not end, as is any other that is negative.
const KeepContent = -time.Second

// WorkerConfig configures a [Worker].
type WorkerConfig struct {
	// Providers in order of preference; at least one.
	Providers []providers.Provider
	// Rates bound how many emails a provider is sent per second, by all workers
	// together; by name. A provider without one has no bound but its own.
	Rates map[string]float64
	// SendTimeout bounds a call to a provider, from the commit of its attempt
	// to its last byte. Zero: [DefaultSendTimeout].
	SendTimeout time.Duration
	// GiveUpAfter is how long after its submission, or its scheduled time, an
	// email that no provider accepted fails. Zero: [DefaultGiveUpAfter].
	GiveUpAfter time.Duration
	// UnknownWait is how long an email in doubt waits for evidence before its
	// policy decides. Zero: [DefaultUnknownWait].
	UnknownWait time.Duration
	// OnUnknown is the policy of emails and orgs that set none. Empty:
	// [DefaultOnUnknown].
	OnUnknown Policy
	// PublicURL is where recipients reach the HTTP API, as in [Config]. Empty: an
	// email with ListUnsubscribe fails before its first attempt.
	PublicURL string
	// SuppressOn is as in [Config].
	SuppressOn []SuppressionReason
	// AllowPrivateWebhooks lets the orgs' webhooks be anywhere, in our own
	// network too, and over http: for development and tests. False: only on the
	// public internet.
	AllowPrivateWebhooks bool
	// Keys are as in [Config]. With them, the worker also seals what was stored in
	// clear, before it sends it.
	Keys *KeyRing
	// ContentRetention is how long after its end the content of an email is kept, if
	// its org has no retention of its own; [KeepContent]: as long as the email. It is
	// the same in all workers. Zero: [DefaultContentRetention].
	ContentRetention time.Duration
	// Metrics counts attempts and recoveries. Nil: nothing is counted.
	Metrics *Metrics
	// TracerProvider makes spans of jobs and attempts, in the trace of the
	// submission where there is one. Nil: the global one of OpenTelemetry, which
	// makes none unless the program has set another.
	TracerProvider trace.TracerProvider
	// Logger gets one line per attempt. Nil: nothing is logged.
	Logger *slog.Logger
	// Concurrency is how many emails are delivered at a time. Zero:
	// [DefaultConcurrency].
	Concurrency int
	// Installation is the name of the installation, such as production. A worker
	// of another name, or of none, that finds itself on this one's database takes it
	// for a restored snapshot: what was submitted before is held. Empty: only a copy
	// that Postgres tells from the original is noticed.
	Installation string
	// Version is the program's, for operators.
	Version string
}

// withDefaults returns the configuration with every field set.
func (cfg WorkerConfig) withDefaults() (WorkerConfig, error) {
	if len(cfg.Providers) == 0 {
		return cfg, errors.New("no provider is configured")
	}
	cfg.SendTimeout = cmp.Or(cfg.SendTimeout, DefaultSendTimeout)
	cfg.GiveUpAfter = cmp.Or(cfg.GiveUpAfter, DefaultGiveUpAfter)
	cfg.UnknownWait = cmp.Or(cfg.UnknownWait, DefaultUnknownWait)
	cfg.OnUnknown = cmp.Or(cfg.OnUnknown, DefaultOnUnknown)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, DefaultConcurrency)
	cfg.ContentRetention = cmp.Or(cfg.ContentRetention, DefaultContentRetention)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = redact.Logger(cfg.Logger)
	return cfg, nil
}

// Worker delivers emails, as one of any number of processes on a database. It
// holds a liveness session, so that what it was doing is taken over within
// seconds when it dies, and takes over what others left.
type Worker struct {
	pool      *pgxpool.Pool
	deliverer *deliverer
	cfg       WorkerConfig
	log       *slog.Logger
}

// NewWorker returns a worker on a pool of direct connections: behind a pooler
// in transaction mode there are no sessions.
func NewWorker(pool *pgxpool.Pool, cfg WorkerConfig) (*Worker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg.Metrics.expect(cfg.Providers)
	return &Worker{pool: pool, deliverer: newDeliverer(pool, cfg), cfg: cfg, log: cfg.Logger}, nil
}

// shift is the work under one membership.
type shift struct {
	*Membership
	jobs *river.Client[pgx.Tx]
}

// Run delivers until ctx ends, then lets what is being sent end. It returns
// an error if it cannot start; once started it goes on, through restarts of
// the database too. started is called when the first shift has begun.
//
// When the session is lost while the process lives, nothing new is begun and
// what is being sent ends under the old id, while work goes on under a new
// one. The old id is never used again, so others can safely take it for dead.
func (w *Worker) Run(ctx context.Context, started func()) error {
	var ending sync.WaitGroup
	defer ending.Wait()
	for first := true; ; first = false {
		s, err := w.begin(ctx, !first)
		if err != nil {
			return err
		}
		if s == nil { // ctx ended while the database was away
			return nil
		}
		if first && started != nil {
			started()
		}
		select {
		case <-ctx.Done():
			return w.end(ctx, s)
		case <-s.Lost():
		}
		w.log.WarnContext(ctx, "liveness session lost, opening another", "worker", s.ID())
		ending.Go(func() {
			if err := w.end(ctx, s); err != nil {
				w.log.WarnContext(ctx, "end of the lost session's work", "error", err)
			}
		})
	}
}

// begin opens a session and starts to work under it. With patience it tries
// until ctx ends.
func (w *Worker) begin(ctx context.Context, patient bool) (*shift, error) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		s, err := w.tryBegin(ctx)
		if err == nil || !patient {
			return s, err
		}
		w.log.WarnContext(ctx, "no liveness session, trying again", "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

func (w *Worker) tryBegin(ctx context.Context) (*shift, error) {
	cfg := &river.Config{Logger: w.log, CompletedJobRetentionPeriod: completedJobsKept}
	membership, err := w.join(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &shift{Membership: membership}
	if s.jobs, err = river.NewClient(riverpgxv5.New(w.pool), cfg); err == nil {
		// Ending ctx must not cancel what is being sent: end stops the client.
		err = s.jobs.Start(context.WithoutCancel(ctx))
	}
	if err != nil {
		membership.Close(ctx)
		return nil, fmt.Errorf("river: %w", err)
	}
	w.log.InfoContext(ctx, "worker started", "worker", s.ID())
	return s, nil
}

// end stops fetching, waits for what is being sent, and gives the membership up
// last: until then this worker owns its attempts.
func (w *Worker) end(ctx context.Context, s *shift) error {
	err := s.jobs.Stop(context.WithoutCancel(ctx))
	s.Close(ctx)
	return err
}
