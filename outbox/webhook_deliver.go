package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
)

const (
	// WebhookQueue is the River queue of messages to the orgs' webhooks. It is
	// apart from emails: neither waits for the other.
	WebhookQueue = "webhooks"

	// webhookConcurrency is how many requests to endpoints one worker makes at
	// a time, and endpointShare how many of them to one endpoint.
	webhookConcurrency = 64
	endpointShare      = 4

	// webhookTimeout bounds a request, from the connection to the status.
	webhookTimeout = 15 * time.Second
	// webhookJobTimeout bounds a job, the database's part included.
	webhookJobTimeout = webhookTimeout + 45*time.Second

	// disableAfter is how long an endpoint may take nothing.
	disableAfter = 5 * 24 * time.Hour
)

// webhookDelays are the times between attempts: those that Standard Webhooks
// proposes, up to a day after the first.
var webhookDelays = []time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 385 * time.Minute,
}

// webhookDelay returns how long to wait after so many attempts; false: there
// are no more. Jitter keeps the messages of an outage from coming back at once.
func webhookDelay(attempts int) (time.Duration, bool) {
	if attempts > len(webhookDelays) {
		return 0, false
	}
	delay := webhookDelays[attempts-1]
	return delay*9/10 + rand.N(delay/5), true
}

// webhookArgs are the arguments of a job: the id and nothing else.
type webhookArgs struct {
	MessageID uuid.UUID `json:"message_id"`
}

// Kind names the job in River.
func (webhookArgs) Kind() string { return "deliver_webhook" }

// InsertOpts are River's options for every job. The trigger webhook_tell has the
// same.
func (webhookArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: WebhookQueue, MaxAttempts: maxJobAttempts, Priority: laneNormal}
}

// webhookDeliverer tells endpoints. All shifts of a process share one.
type webhookDeliverer struct {
	pool      *pgxpool.Pool
	keys      *KeyRing
	log       *slog.Logger
	endpoints endpoints
	client    *http.Client
	timeout   time.Duration // of a request
	metrics   *Metrics
	places    endpointPlaces
}

func newWebhookDeliverer(pool *pgxpool.Pool, cfg WorkerConfig) *webhookDeliverer {
	e := endpoints{private: cfg.AllowPrivateWebhooks}
	return &webhookDeliverer{
		pool: pool, keys: cfg.Keys, log: cfg.Logger, endpoints: e, client: e.client(), timeout: webhookTimeout,
		metrics: cfg.Metrics,
	}
}

// webhookWorker is the River worker of one shift.
type webhookWorker struct {
	river.WorkerDefaults[webhookArgs]
	*webhookDeliverer
	session *session
}

// Timeout is River's bound for one job.
func (w *webhookWorker) Timeout(*river.Job[webhookArgs]) time.Duration { return webhookJobTimeout }

// NextRetry spaces the runs of a job that failed for reasons of its own, such
// as a database that was away. Attempts are spaced by the message.
func (w *webhookWorker) NextRetry(job *river.Job[webhookArgs]) time.Time {
	return w.session.now().Add(backoff(len(job.Errors) + 1))
}

// Work runs one job.
func (w *webhookWorker) Work(ctx context.Context, job *river.Job[webhookArgs]) error {
	return snooze(w.deliver(ctx, job.Args.MessageID))
}

// webhookDelivery is a message as a worker sees it.
type webhookDelivery struct {
	id, webhook uuid.UUID
	attempts    int
	over        bool
	wait        time.Duration // until it is due
	held        bool          // with its email, see installation.go
	now         time.Time     // the database's
	payload     payloadRow

	status           WebhookStatus
	endpoint         string
	failing          bool
	secret, previous storedSecret
	org              uuid.UUID
}

const sqlLoadMessage = `
SELECT m.id, m.webhook_id, m.attempts, m.delivered_at IS NOT NULL OR m.failed_at IS NOT NULL,
    greatest(m.next_attempt_at - now(), interval '0'), now(), w.status, w.endpoint, w.failing_since IS NOT NULL,
    w.org_id, w.secret, coalesce(w.secret_key_id, ''), CASE WHEN w.previous_secret_until > now() THEN w.previous_secret END,
    coalesce(w.previous_secret_key_id, ''),
    coalesce((SELECT ` + heldSQL + ` FROM outbox.emails e WHERE e.id = m.email_id), false),` + payloadColumnsSQL + `
FROM outbox.webhook_messages m JOIN outbox.webhooks w ON w.id = m.webhook_id` + payloadTablesSQL + `
WHERE m.id = $1`

// load returns nil for a message that is gone, alone or with its webhook.
func (d *webhookDeliverer) load(ctx context.Context, id uuid.UUID) (*webhookDelivery, error) {
	m := new(webhookDelivery)
	err := d.pool.QueryRow(ctx, sqlLoadMessage, id).Scan(append([]any{
		&m.id, &m.webhook, &m.attempts, &m.over, &m.wait, &m.now, &m.status, &m.endpoint, &m.failing,
		&m.org, &m.secret.bytes, &m.secret.keyID, &m.previous.bytes, &m.previous.keyID, &m.held,
	}, m.payload.columns()...)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load webhook message: %w", err)
	}
	return m, nil
}

// deliver looks at the message, not at the job, and makes the attempt that is
// due. It returns how long to wait before it needs another look; zero: none.
// No transaction or connection is held during the request. A worker that dies
// in it leaves a message that is due, so that it is told again, with its id.
func (d *webhookDeliverer) deliver(ctx context.Context, id uuid.UUID) (time.Duration, error) {
	m, err := d.load(ctx, id)
	switch {
	case err != nil:
		return 0, err
	case m == nil, m.over:
		return 0, nil
	case m.wait > 0:
		return m.wait, nil
	case m.held:
		return heldMessageInterval, nil
	case m.status == WebhookDisabled:
		return 0, d.giveUp(ctx, m)
	}
	leave, wait := d.places.enter(m.webhook, m.failing)
	if leave == nil {
		return wait, nil
	}
	started := time.Now()
	outcome, err := d.post(ctx, m)
	leave(time.Since(started))
	if err != nil {
		return 0, err
	}
	d.metrics.told(outcome)
	d.logOutcome(ctx, m, outcome, time.Since(started))
	return d.record(ctx, m, outcome)
}

// webhookOutcome is what came of a request to an endpoint.
type webhookOutcome struct {
	// status is the HTTP status; zero: there was none. err says in a word why
	// it is no success.
	status     int
	err        string
	retryAfter time.Duration
}

func (o webhookOutcome) delivered() bool { return o.status >= 200 && o.status < 300 }

// next returns when to try again; false: never.
func (o webhookOutcome) next(attempts int) (time.Duration, bool) {
	if o.delivered() || o.status == http.StatusGone {
		return 0, false
	}
	delay, ok := webhookDelay(attempts)
	return max(delay, o.retryAfter), ok
}

// sqlRecordMessage counts an attempt, unless the message was replayed or told by
// another worker meanwhile. Its webhook is in order again after a success. One
// that answered 410 is disabled; so is one that has taken nothing for long, when
// it costs a message its last attempt: a single failure after a long silence
// does not disable it.
const sqlRecordMessage = `
WITH outcome AS (
    SELECT $3::smallint AS status, $5::boolean AS delivered, $6::boolean AS final
), message AS (
    UPDATE outbox.webhook_messages m
    SET attempts = m.attempts + 1, last_status = nullif(o.status, 0), last_error = nullif($4, ''),
        delivered_at = CASE WHEN o.delivered THEN now() END,
        failed_at = CASE WHEN o.final AND NOT o.delivered THEN now() END,
        next_attempt_at = now() + $7::interval
    FROM outcome o
    WHERE m.id = $1 AND m.attempts = $2 AND m.delivered_at IS NULL AND m.failed_at IS NULL
    RETURNING m.webhook_id
), verdict AS (
    SELECT w.id, o.delivered, CASE WHEN o.delivered THEN NULL WHEN o.status = 410 THEN 'gone'
        WHEN o.final AND w.failing_since < now() - $8::interval THEN 'failing' END AS reason
    FROM message m JOIN outbox.webhooks w ON w.id = m.webhook_id AND w.status = 'enabled' CROSS JOIN outcome o
), webhook AS (
    UPDATE outbox.webhooks w
    SET failing_since = CASE WHEN NOT v.delivered THEN coalesce(w.failing_since, now()) END,
        status = CASE WHEN v.reason IS NULL THEN w.status ELSE 'disabled' END,
        disabled_reason = coalesce(v.reason, w.disabled_reason)
    FROM verdict v
    WHERE w.id = v.id AND (v.reason IS NOT NULL OR v.delivered = (w.failing_since IS NOT NULL))
    RETURNING v.reason
)
SELECT reason FROM webhook WHERE reason IS NOT NULL`

// record writes down what came of an attempt, also when the job is about to be
// cut off: what the endpoint took need not be told again. It returns how long to
// wait for the next attempt.
func (d *webhookDeliverer) record(ctx context.Context, m *webhookDelivery, o webhookOutcome) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	wait, again := o.next(m.attempts + 1)
	var disabled string
	err := d.pool.QueryRow(ctx, sqlRecordMessage, m.id, m.attempts, o.status, o.err, o.delivered(), !again, wait, disableAfter).
		Scan(&disabled)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return wait, nil
	case err != nil:
		return 0, fmt.Errorf("record webhook message: %w", err)
	}
	d.log.ErrorContext(ctx, "webhook disabled: its org is told nothing until it is enabled again",
		"webhook", m.webhook, "reason", disabled)
	return wait, nil
}

// sqlGiveUpMessage fails what waits for a webhook that is disabled, so that a
// replay finds it.
const sqlGiveUpMessage = `
UPDATE outbox.webhook_messages SET failed_at = now(), last_error = 'webhook_disabled'
WHERE id = $1 AND delivered_at IS NULL AND failed_at IS NULL`

func (d *webhookDeliverer) giveUp(ctx context.Context, m *webhookDelivery) error {
	if _, err := d.pool.Exec(ctx, sqlGiveUpMessage, m.id); err != nil {
		return fmt.Errorf("give up webhook message: %w", err)
	}
	return nil
}

// logOutcome names no URL, which may hold a secret.
func (d *webhookDeliverer) logOutcome(ctx context.Context, m *webhookDelivery, o webhookOutcome, took time.Duration) {
	level := slog.LevelInfo
	if !o.delivered() {
		level = slog.LevelWarn
	}
	d.log.LogAttrs(ctx, level, "webhook",
		slog.String("message", m.id.String()), slog.String("webhook", m.webhook.String()),
		slog.String("type", string(m.payload.payload.Type)), slog.Int("attempt", m.attempts+1),
		slog.Int("status_code", o.status), slog.String("error", o.err), slog.Duration("took", took))
}
