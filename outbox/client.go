package outbox

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/outboxd/outboxd/internal/redact"
	"github.com/outboxd/outboxd/providers"
)

const (
	// Schema is the Postgres schema of all tables, River's included.
	Schema = "outbox"
	// Queue is the River queue of deliveries.
	Queue = "emails"

	// DefaultIdempotencyTTL is how long an idempotency key is kept at least.
	DefaultIdempotencyTTL = 7 * 24 * time.Hour
)

// FetchCooldown bounds from below how often a River client notifies a queue
// and how often a worker fetches. With River's 100 ms, a job committed shortly
// after another waits half a second for the next poll; with 10 ms on both
// sides it waits 2 ms (measured).
const FetchCooldown = 10 * time.Millisecond

// Config configures a [Client].
type Config struct {
	// IdempotencyTTL is how long an idempotency key is kept, counted from its
	// submission, and never less than 24 h past the end of its email. Zero:
	// [DefaultIdempotencyTTL].
	IdempotencyTTL time.Duration

	// Providers are those of the workers. A message that none of them can carry,
	// or that is pinned to another, is refused at once. Nil: nothing is refused
	// for that, and such an email fails before its first attempt.
	Providers []providers.Provider

	// MaxQueued is how many emails of an org may wait (scheduled, queued or
	// sending) if the org has no number of its own. Beyond it submissions fail
	// with [ErrQueueQuota]. Zero: any number.
	MaxQueued int

	// PublicURL is where recipients reach the HTTP API, such as
	// https://mail.example.com. Empty: a message with ListUnsubscribe is refused.
	// Workers need the same.
	PublicURL string

	// SuppressOn says which of the reasons that providers report suppress the
	// recipient: [DefaultSuppressOn] if it is nil, none if it is empty.
	SuppressOn []SuppressionReason

	// AllowPrivateWebhooks lets webhooks be made for endpoints that are not on
	// the public internet, and for http. The workers must allow it too.
	AllowPrivateWebhooks bool

	// Keys seal what senders write before it is stored. Nil: it is stored in clear.
	// Workers need all keys that something is sealed under.
	Keys *KeyRing

	// Metrics counts submissions and events. Nil: nothing is counted.
	Metrics *Metrics

	// Logger receives what has no caller to return to. Nil: nothing is logged.
	Logger *slog.Logger
}

// Client submits and reads emails. It starts nothing, and is safe for
// concurrent use.
type Client struct {
	pool *pgxpool.Pool
	jobs *river.Client[pgx.Tx]
	cfg  Config
	gate keyGate
	// group has submissions share transactions.
	group submissions
	// endpoints says where webhooks may be.
	endpoints endpoints
	// lanes counts what orgs have waiting.
	lanes lanes
	// quotas bound it.
	quotas quotas
}

// NewClient returns a client on a pool. The pool may be nil for an application
// that only calls [Client.EnqueueTx].
func NewClient(pool *pgxpool.Pool, cfg Config) (*Client, error) {
	cfg.IdempotencyTTL = cmp.Or(cfg.IdempotencyTTL, DefaultIdempotencyTTL)
	if cfg.IdempotencyTTL < 24*time.Hour {
		return nil, fmt.Errorf("IdempotencyTTL is %v, must be at least 24h: shorter than clients retry", cfg.IdempotencyTTL)
	}
	if cfg.SuppressOn == nil {
		cfg.SuppressOn = DefaultSuppressOn
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = redact.Logger(cfg.Logger)
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown: FetchCooldown,
		Logger:        cfg.Logger,
		Schema:        Schema,
	})
	if err != nil {
		return nil, fmt.Errorf("river: %w", err)
	}
	c := &Client{pool: pool, jobs: jobs, cfg: cfg, endpoints: endpoints{private: cfg.AllowPrivateWebhooks}}
	c.groupSubmissions()
	return c, nil
}

// Jobs returns the insert-only River client, for River UI.
func (c *Client) Jobs() *river.Client[pgx.Tx] { return c.jobs }
