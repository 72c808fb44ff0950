package outbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/outboxd/outboxd/internal/fault"
	"github.com/outboxd/outboxd/internal/redact"
	"github.com/outboxd/outboxd/providers"
)

// maxJobAttempts is out of reach: the emails table decides when to give up,
// not River.
const maxJobAttempts = 10_000

// deliverArgs are the arguments of a delivery job: the id and nothing else,
// since River UI shows them and River keeps them.
type deliverArgs struct {
	EmailID uuid.UUID `json:"email_id"`
}

// Kind names the job in River.
func (deliverArgs) Kind() string { return "deliver_email" }

// InsertOpts are River's options for every delivery job.
func (deliverArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: Queue, MaxAttempts: maxJobAttempts}
}

// deliverer is the River worker that takes an email through one attempt:
// Begin, committed before any byte leaves; Send, during which no transaction
// and no connection is held; Finish.
type deliverer struct {
	river.WorkerDefaults[deliverArgs]
	pool *pgxpool.Pool
	cfg  WorkerConfig
	log  *slog.Logger
	// worker is the process on its attempts; each session has a new one.
	worker string
	// underWay is what this process is sending.
	underWay *keySet
	// groups have concurrent deliveries share statements.
	groups *deliveryGroups
	// flow says which provider may be used when.
	flow *flow
	// webhooks tells the orgs' endpoints.
	webhooks *webhookDeliverer
	// contents purges what has been kept for long enough.
	contents contentPurge
	// session proves that the process is alive; nil in tests without one.
	session *session
}

func newDeliverer(pool *pgxpool.Pool, cfg WorkerConfig) *deliverer {
	return &deliverer{
		pool: pool, cfg: cfg, log: cfg.Logger, underWay: new(keySet), groups: newDeliveryGroups(pool, cfg.Metrics),
		flow: newFlow(pool, cfg), webhooks: newWebhookDeliverer(pool, cfg),
		contents: newContentPurge(pool, cfg.ContentRetention),
	}
}

// configure adds to a River configuration what delivers emails: workers,
// queues, periodic jobs.
func (d *deliverer) configure(cfg *river.Config) error {
	if cfg.Workers == nil {
		cfg.Workers = river.NewWorkers()
	}
	client, err := NewClient(d.pool, Config{Logger: d.log, SuppressOn: d.cfg.SuppressOn, Keys: d.cfg.Keys, Metrics: d.cfg.Metrics})
	if err != nil {
		return err
	}
	if err := errors.Join(
		river.AddWorkerSafely(cfg.Workers, d),
		river.AddWorkerSafely(cfg.Workers, &purgeKeysWorker{pool: d.pool, log: d.log}),
		river.AddWorkerSafely(cfg.Workers, &adoptEventsWorker{client: client, log: d.log}),
		river.AddWorkerSafely(cfg.Workers, &webhookWorker{webhookDeliverer: d.webhooks, session: d.session}),
		river.AddWorkerSafely(cfg.Workers, &webhookKeeper{pool: d.pool, log: d.log}),
		river.AddWorkerSafely(cfg.Workers, &purgeOrgsWorker{client: client, log: d.log}),
		river.AddWorkerSafely(cfg.Workers, &sealWorker{pool: d.pool, keys: d.cfg.Keys, log: d.log}),
		river.AddWorkerSafely(cfg.Workers, &purgeContentsWorker{contentPurge: d.contents, metrics: d.cfg.Metrics, log: d.log}),
	); err != nil {
		return fmt.Errorf("river: %w", err)
	}
	if cfg.Queues == nil {
		cfg.Queues = map[string]river.QueueConfig{}
	}
	cfg.Queues[Queue] = river.QueueConfig{MaxWorkers: d.cfg.Concurrency}
	cfg.Queues[WebhookQueue] = river.QueueConfig{MaxWorkers: webhookConcurrency}
	cfg.Queues[maintenanceQueue] = river.QueueConfig{MaxWorkers: 1}
	cfg.PeriodicJobs = append(cfg.PeriodicJobs, periodicJobs()...)
	cfg.Plugins = append(cfg.Plugins, river.WorkerMiddlewareFunc(redactJob))
	cfg.Schema = Schema
	cfg.FetchCooldown = FetchCooldown
	return nil
}

// Timeout is River's bound for one job: longer than the longest send, so that
// it never cuts one off.
func (d *deliverer) Timeout(*river.Job[deliverArgs]) time.Duration {
	var final time.Duration
	for _, p := range d.cfg.Providers {
		final = max(final, p.Capabilities().FinalTimeout)
	}
	// Once for the preamble, once for the content.
	return 2*d.cfg.SendTimeout + final + time.Minute
}

// softStop is how long what is being sent may take when the worker stops. What has
// not ended by then is cut off, and is in doubt.
func (d *deliverer) softStop() time.Duration { return d.cfg.SendTimeout + 5*time.Second }

// NextRetry spaces the runs of a job that failed for reasons of its own, such
// as a database that was away. Attempts are spaced by the emails table.
func (d *deliverer) NextRetry(job *river.Job[deliverArgs]) time.Time {
	return d.session.now().Add(backoff(len(job.Errors) + 1))
}

// Work runs one job.
func (d *deliverer) Work(ctx context.Context, job *river.Job[deliverArgs]) error {
	ctx, span := d.traceJob(ctx, job.Args.EmailID.String(), job.Metadata)
	wait, err := d.deliver(ctx, job.Args.EmailID, job.Priority)
	endSpan(span, err)
	return snooze(wait, err)
}

// redactJob takes what senders wrote out of what River keeps of a job that failed
// or panicked, and logs. It leaves the jobs of an application alone.
func redactJob(ctx context.Context, job *rivertype.JobRow, work func(context.Context) error) error {
	if !slices.Contains(JobKinds(), job.Kind) {
		return work(ctx)
	}
	defer func() {
		if p := recover(); p != nil {
			panic(redact.Quoted(fmt.Sprint(p))) // River's trace still begins where it was
		}
	}()
	return redact.Failure(work(ctx))
}

// snooze tells River when a job is to run again, without counting it as a
// failure; zero: not again.
func snooze(wait time.Duration, err error) error {
	if err != nil || wait <= 0 {
		return err
	}
	return river.JobSnooze(wait)
}

// deliver looks at the email, not at the job, decides what is to be done and
// does it. lane is the email's place where several wait for a provider. It
// returns how long to wait before the email needs another look; zero: none.
func (d *deliverer) deliver(ctx context.Context, id uuid.UUID, lane int) (time.Duration, error) {
	fault.Point("B1", id)
	e, err := d.groups.load(ctx, d.cfg.Keys, id)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	e.lane = lane
	switch {
	case e.Status.Ended() && e.open != nil:
		return d.closeOpen(ctx, e)
	case e.Status.Ended():
		return 0, nil
	case e.orphaned:
		return d.endWithOrg(ctx, e)
	case e.isHeld():
		return d.keepHeld(ctx, e)
	case e.open != nil:
		return d.resolve(ctx, e)
	case e.due().After(e.now):
		return e.due().Sub(e.now), nil
	case e.expired():
		return 0, d.end(ctx, e, StatusExpired, "", nil)
	case e.unreadable != nil:
		return d.waitForKey(ctx, e)
	}
	if sealed, err := d.sealStored(ctx, e); err != nil {
		return 0, err
	} else if sealed {
		return d.deliver(ctx, id, lane)
	}
	if corrected, err := d.correctRecipients(ctx, e); err != nil {
		return 0, err
	} else if corrected {
		// Who is suppressed was looked up by what has just been corrected.
		return d.deliver(ctx, id, lane)
	}
	message, err := e.compose(d.cfg.PublicURL)
	if err != nil {
		return 0, d.refuse(ctx, e, err)
	}
	if e.leftOut = leaveOut(&message, e.isSuppressed); len(message.To) == 0 {
		return 0, d.endSuppressed(ctx, e, message)
	}
	a, hold, err := d.route(ctx, e, message)
	switch {
	case err != nil:
		return 0, d.refuse(ctx, e, err)
	case a == nil:
		return d.postpone(ctx, e, hold)
	}
	return d.attempt(ctx, a)
}

// refuse ends an email that no provider can carry. Any other error is not about
// the email.
func (d *deliverer) refuse(ctx context.Context, e *delivery, err error) error {
	if _, refused := errors.AsType[*refusalError](err); refused {
		return d.end(ctx, e, StatusFailed, "validation_error", err)
	}
	return err
}

// attempt is one hand-over on its way.
type attempt struct {
	*delivery
	beginning
	provider providers.Provider
	permit   *permit
	sending  providers.Sending
	deadline deadline
	// evidence is what the provider's answer will be.
	evidence Evidence
}

// render makes the bytes of an attempt. For the same arguments they are the
// same, today and after a restart.
func (d *deliverer) render(
	e *delivery, p providers.Provider, m providers.Message, key uuid.UUID, date time.Time,
) (*attempt, error) {
	request := providers.Request{Key: key.String(), Date: date, Message: m}
	payload, err := render(p, request)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", p.Name(), e.Message.scrub(wordsOf(err)))
	}
	a := &attempt{delivery: e, provider: p, evidence: EvidenceResponse, beginning: beginning{
		email: e.ID, number: e.attempts + 1, provider: p.Name(), key: key, worker: d.worker,
		date: date, budget: d.cfg.SendTimeout + p.Capabilities().FinalTimeout, payloadHash: sha256.Sum256(payload),
		recipients: bareAddresses(m.Recipients()),
	}}
	a.without, a.announced = d.newlyLeftOut(e)
	a.sending = providers.Sending{Request: request, Payload: payload, Confirm: func() error { return d.confirm(a) }}
	return a, nil
}

var errNotOwned = errors.New("the liveness session of this worker is lost")

// confirm is the last look before the point of no return: there is time left,
// and nobody can have taken this worker for dead.
func (d *deliverer) confirm(a *attempt) error {
	if !d.owned() {
		return errNotOwned
	}
	return a.deadline.check()
}

func (d *deliverer) owned() bool { return d.session == nil || d.session.owned() }

// attempt takes the email through Begin, Send and Finish.
func (d *deliverer) attempt(ctx context.Context, a *attempt) (wait time.Duration, err error) {
	ctx, span := d.traceAttempt(ctx, a)
	defer func() { endSpan(span, err) }()
	a.traceID = traceID(ctx)
	defer d.flow.giveBack(ctx, a.permit)
	send, drop := d.prepare(ctx, a)
	defer drop()

	if !d.owned() {
		return 0, errNotOwned
	}
	fault.Point("B2", a.email)
	a.deadline = deadlineIn(d.cfg.SendTimeout)
	defer d.underWay.add(a.key)()
	begun, err := d.begin(ctx, a.beginning)
	if err != nil {
		return 0, err
	}
	if !begun {
		// Another worker was faster, or the sender canceled: look again.
		return time.Second, nil
	}
	fault.Point("B4", a.email)
	return d.send(ctx, a, send)
}

// send hands over what is begun and records the outcome.
func (d *deliverer) send(ctx context.Context, a *attempt, send sendFunc) (time.Duration, error) {
	sendCtx, cancel := context.WithTimeout(ctx, a.budget)
	defer cancel()
	started := time.Now()
	receipt, err := send(sendCtx)
	err = a.Message.scrubError(err)
	fault.Point("B8", a.email)
	e := d.outcome(a, receipt, err)
	traceOutcome(ctx, e)
	d.cfg.Metrics.answered(a.provider.Name(), e.stage, time.Since(started))
	if err := d.finish(ctx, e); err != nil {
		return 0, err
	}
	fault.Point("B10", a.email)
	d.flow.report(ctx, a.permit, err)
	d.logAttempt(ctx, a, e, time.Since(started))
	return max(e.nextAttempt, e.lookAgain), nil
}

type sendFunc func(context.Context) (providers.Receipt, error)

// prepare does the part of the hand-over that cannot make the provider accept
// anything. If that fails, nothing is handed over; send then returns the
// failure, so that it is recorded as an attempt and an operator sees it. drop
// may be called at any time.
func (d *deliverer) prepare(ctx context.Context, a *attempt) (send sendFunc, drop func()) {
	preparer, ok := a.provider.(providers.Preparer)
	if !ok {
		return func(ctx context.Context) (providers.Receipt, error) {
			return a.provider.Send(ctx, a.sending)
		}, func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.SendTimeout)
	defer cancel()
	conversation, err := preparer.Prepare(ctx, a.sending)
	if err != nil {
		failure := definite(err)
		return func(context.Context) (providers.Receipt, error) {
			return providers.Receipt{}, failure
		}, func() {}
	}
	return conversation.Send, func() { _ = conversation.Close() }
}

// definite turns an error from before the attempt, whatever it is, into one
// that says "not accepted".
func definite(err error) error {
	e := *providers.AsError(err)
	if e.Outcome == providers.InDoubt {
		e.Outcome = providers.Deferred
	}
	return &e
}

// begin commits the attempt. If the reply is lost it finds out whether the
// attempt was recorded, since an attempt that stays open is a doubt.
func (d *deliverer) begin(ctx context.Context, b beginning) (bool, error) {
	begun, err := d.groups.begin(ctx, b)
	if err == nil {
		return begun, nil
	}
	var found bool
	err = d.persist(ctx, func(ctx context.Context) error {
		var err error
		found, err = isBegun(ctx, d.pool, b)
		return err
	})
	return found, err
}

// finish commits the outcome. It runs under no job's or call's context and
// goes on until the database takes it: a live process never turns an outcome
// that it knows into a doubt.
func (d *deliverer) finish(ctx context.Context, e ending) error {
	return d.persist(context.WithoutCancel(ctx), func(ctx context.Context) error {
		recorded, err := d.groups.end(ctx, e)
		if recorded {
			d.cfg.Metrics.finished(e)
		}
		if err == nil && !recorded && e.stage == StageAccepted {
			// Taken over and closed meanwhile. That it was accepted is the
			// truth all the same.
			err = d.settle(ctx, e)
		}
		return err
	})
}

// persist runs a statement until it succeeds or ctx ends.
func (d *deliverer) persist(ctx context.Context, run func(context.Context) error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := run(bounded)
		cancel()
		if err == nil {
			return nil
		}
		d.log.WarnContext(ctx, "database is away, trying again", "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// end ends an email without an attempt.
func (d *deliverer) end(ctx context.Context, e *delivery, status Status, reason string, cause error) error {
	detail := ""
	if cause != nil {
		detail = e.Message.scrub(cause.Error())
	}
	if _, err := d.pool.Exec(ctx, sqlEnd, e.ID, string(status), reason, detail, e.attempts, newID()); err != nil {
		return fmt.Errorf("end email: %w", err)
	}
	d.log.InfoContext(ctx, "email ended", "email", e.ID, "status", status, "reason", reason,
		"detail", redact.Quoted(detail))
	return nil
}

func (d *deliverer) logAttempt(ctx context.Context, a *attempt, e ending, took time.Duration) {
	level := slog.LevelInfo
	if e.status != StatusSent {
		level = slog.LevelWarn
	}
	d.log.LogAttrs(ctx, level, "attempt",
		slog.String("email", a.email.String()), slog.Int("number", int(a.number)),
		slog.String("provider", a.provider.Name()), slog.String("provider_key", a.key.String()),
		slog.String("stage", string(e.stage)), slog.String("status", string(e.status)),
		slog.Int("status_code", e.statusCode), slog.String("code", e.code),
		slog.Duration("took", took), slog.Duration("next_attempt", e.nextAttempt), logTrace(ctx))
}
