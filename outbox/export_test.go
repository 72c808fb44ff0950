package outbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Deliverer is what a worker hands River.
type Deliverer = deliverer

// NewDeliverer returns a deliverer without a session.
func NewDeliverer(pool *pgxpool.Pool, cfg WorkerConfig) (*Deliverer, error) {
	cfg, err := cfg.withDefaults()
	return newDeliverer(pool, cfg), err
}

// Deliver runs what a job runs, for tests of delivery without a queue.
func (d *Deliverer) Deliver(ctx context.Context, id uuid.UUID) (time.Duration, error) {
	return d.deliver(ctx, id, laneNormal)
}

// LookAgain makes the deliverer read the state of the providers before it uses
// the next.
func (d *Deliverer) LookAgain() {
	d.flow.mu.Lock()
	defer d.flow.mu.Unlock()
	d.flow.readAt = time.Time{}
}

// Register is what a worker does with its providers when it starts.
func (d *Deliverer) Register(ctx context.Context) error { return d.flow.register(ctx) }

// IsRamping reports whether a provider's rate rises step by step.
func (d *Deliverer) IsRamping(provider string) bool { return d.flow.isRamping(provider) }

// Attach gives the deliverer a liveness session, as a worker's has, and
// returns the worker's id and what ends the session as a crash does.
func (d *Deliverer) Attach(ctx context.Context) (id string, kill func(), err error) {
	s, err := openSession(ctx, d.pool, "test")
	if err != nil {
		return "", nil, err
	}
	d.session, d.worker = s, s.id
	return s.id, func() {
		s.stop()
		<-s.lost
		_ = s.conn.Close(context.WithoutCancel(ctx))
	}, nil
}

// Sweep makes one pass of a worker's sweep, with what it remembers in s.
func (s *Sweeper) Sweep(ctx context.Context) error { return (*sweeper)(s).pass(ctx) }

// Sweeper is a worker's sweep.
type Sweeper sweeper

// NewSweeper returns the sweep of a worker with that deliverer.
func NewSweeper(d *Deliverer) (*Sweeper, error) {
	w := &Worker{pool: d.pool, deliverer: d, log: d.log}
	s, err := w.newSweeper()
	return (*Sweeper)(s), err
}

// Tell runs what a job of a webhook's message runs.
func (d *Deliverer) Tell(ctx context.Context, message uuid.UUID) (time.Duration, error) {
	return d.webhooks.deliver(ctx, message)
}

// SetWebhookTimeout makes endpoints that do not answer time out sooner.
func (d *Deliverer) SetWebhookTimeout(timeout time.Duration) { d.webhooks.timeout = timeout }

// SetWebhookTimeout makes endpoints that do not answer time out sooner.
func (w *Worker) SetWebhookTimeout(timeout time.Duration) { w.deliverer.webhooks.timeout = timeout }

// AdoptMessages gives forgotten messages of webhooks a job each.
func (d *Deliverer) AdoptMessages(ctx context.Context, c *Client) error {
	return adoptMessages(ctx, d.pool, c.jobs, d.log)
}

// WebhookDelay returns how long to wait after so many attempts.
func WebhookDelay(attempts int) (time.Duration, bool) { return webhookDelay(attempts) }

// EndpointPlaces shares a process's requests between endpoints.
type EndpointPlaces struct{ places endpointPlaces }

// Enter takes a place at an endpoint.
func (p *EndpointPlaces) Enter(webhook uuid.UUID, failing bool) (leave func(time.Duration), wait time.Duration) {
	return p.places.enter(webhook, failing)
}

// EndpointShare is how many places an endpoint in order has.
const EndpointShare = endpointShare

// ConnectGuarded makes a request as to a webhook and says in a word what was
// wrong.
func ConnectGuarded(url string) string {
	resp, err := endpoints{}.client().Head(url)
	if err != nil {
		return wordOf(err)
	}
	_ = resp.Body.Close()
	return "nothing"
}

// MayConnect reports whether a webhook may be at an address and port.
func MayConnect(address string) bool { return endpoints{}.control("tcp", address, nil) == nil }

// PurgeDeletedOrgs is what workers do regularly about deleted orgs.
func PurgeDeletedOrgs(ctx context.Context, client *Client) error {
	return (&purgeOrgsWorker{client: client, log: slog.New(slog.DiscardHandler)}).Work(ctx, nil)
}

// SetPurgePages makes the worker's purge look at so few emails at a time, in turns that
// end after one page.
func (w *Worker) SetPurgePages(size int) {
	w.deliverer.contents.size, w.deliverer.contents.turn = size, 0
}

// SearchTerms are the terms of an email.
func SearchTerms(org uuid.UUID, recipients []string, tags []Tag) []uuid.UUID {
	return searchTerms(nil, org, recipients, tags)
}

// Names of another org's things, by the parameters that statements have for them.
type names struct{ org, email, failed, doubtful, scheduled, webhook, message uuid.UUID }

// NewNames names things for [TenantStatements].
func NewNames(org, email, failed, doubtful, scheduled, webhook, message uuid.UUID) names {
	return names{org, email, failed, doubtful, scheduled, webhook, message}
}

// Statement is a statement with its arguments.
type Statement struct {
	SQL  string
	Args []any
}

// TenantStatements are the statements of a tenant's operations.
func TenantStatements(n names) map[string]Statement {
	list, listArgs := Query{Org: n.org, Limit: 10, To: "a@example.org", Tag: "kind:receipt"}.statement(nil)
	all, allArgs := Query{Org: n.org, Limit: 10}.statement(nil)
	under, underArgs := Query{Org: n.org, Limit: 10, Key: "k", Provider: "p"}.statement(nil)
	now := time.Now()
	return map[string]Statement{
		"list":               {all, allArgs},
		"search":             {list, listArgs},
		"under":              {under, underArgs},
		"cancelBy":           {sqlCancelBy, []any{n.scheduled, n.org}},
		"count":              {sqlCountEmails, []any{n.org, []uuid.UUID{n.email}}},
		"get":                {sqlGetEmail, []any{n.email, n.org}},
		"attempts":           {sqlGetAttempts, []any{n.email}},
		"events":             {sqlGetEvents, []any{n.email}},
		"status":             {sqlGetStatus, []any{n.email, n.org}},
		"cancel":             {sqlCancel, []any{n.scheduled, n.org}},
		"reschedule":         {sqlReschedule, []any{n.scheduled, n.org, now.Add(time.Hour)}},
		"resolve":            {sqlResolve, []any{n.doubtful, n.org, "accepted"}},
		"retry":              {sqlRetry, []any{n.failed, n.org}},
		"waiting":            {sqlCountWaiting, []any{n.org, "scheduled", 2}},
		"suppressions":       {sqlListSuppressions, []any{n.org, "", "", 10}},
		"suppressionsBefore": {sqlListSuppressionsBefore, []any{n.org, "~", "", 10}},
		"suppression":        {sqlGetSuppression, []any{n.org, "gone@example.com"}},
		"unsuppress":         {sqlUnsuppress, []any{n.org, "gone@example.com"}},
		"sender":             {sqlGetSender, []any{n.email, n.org}},
		"unsubscribed":       {sqlInsertUnsubscribed, []any{newID(), n.email, "a@example.org", "test"}},
		"webhooks":           {sqlListWebhooks, []any{n.org}},
		"webhook":            {sqlGetWebhook, []any{n.org, n.webhook}},
		"updateWebhook":      {sqlUpdateWebhook, []any{n.org, n.webhook, "", []string{"email.sent"}, ""}},
		"deleteWebhook":      {sqlDeleteWebhook, []any{n.org, n.webhook}},
		"rotateSecret":       {sqlRotateSecret, []any{n.org, n.webhook, newWebhookSecret(), SecretOverlap, nil}},
		"messages":           {sqlListMessages, []any{n.org, n.webhook, uuid.Max, 10}},
		"message":            {sqlGetMessage, []any{n.org, n.webhook, n.message}},
		"replay":             {sqlReplay, []any{n.org, n.webhook, n.message, now, 10}},
		"keys": {sqlFindKeys, []any{
			[]uuid.UUID{n.org}, []string{EndpointEmails}, []string{"k"},
		}},
	}
}

// HotStatements are the statements of workers and hooks that run for every email, and
// those that look for emails in need of help.
var HotStatements = map[string]string{
	"loadEmails": sqlLoadEmails, "loadOpenAttempts": sqlLoadOpenAttempts, "loadBody": sqlLoadBody, "loadAttachments": sqlLoadAttachments,
	"begin": sqlBegin, "isBegun": sqlIsBegun, "finish": sqlFinish, "end": sqlEnd, "orphans": sqlOrphans,
	"takeOver": sqlTakeOver, "markDoubt": sqlMarkDoubt, "giveUpOn": sqlGiveUpOn, "settle": sqlSettle,
	"matchEvents": sqlMatchEvents, "settleByEvents": sqlSettleByEvents, "recipientsOf": sqlRecipientsOf,
	"loadMessage": sqlLoadMessage, "recordMessage": sqlRecordMessage, "correctRecipients": sqlCorrectRecipients,
	"insertKeys": sqlInsertKeys, "insertEmails": sqlInsertEmails, "insertContents": sqlInsertContents,
	"insertTerms": sqlInsertTerms, "insertAttachments": sqlInsertAttachments, "stuckFacts": sqlStuckFacts,
	"correctTerms": sqlCorrectTerms,
	"insertEvents": sqlInsertEvents, "orgsWithContents": sqlOrgsWithContents, "pageContents": sqlPageContents, "lockDue": sqlLockDue,
	"purgeContents": sqlPurgeContents, "purgeAttachments": sqlPurgeAttachments, "purgeEmails": sqlPurgeEmails,
	"purgeAttempts": sqlPurgeAttempts, "purgeEvents": sqlPurgeEvents, "purgeMessageTexts": sqlPurgeMessageTexts,
	"purgeSuppressionTexts": sqlPurgeSuppressionTexts,
}

// Place is where a sealed part belongs.
type Place struct {
	Org, Owner uuid.UUID
	Kind       string
	Position   int
}

func (p Place) place() place { return place{p.Org, p.Owner, partKind(p.Kind), p.Position} }

// Seal seals a part under the first key.
func (r *KeyRing) Seal(p Place, plain []byte) []byte { return r.first().seal(p.place(), plain) }

// Open opens a part.
func (r *KeyRing) Open(id string, p Place, sealed []byte) ([]byte, error) {
	return r.open(id, p.place(), sealed)
}

// Pack joins fields.
func Pack(fields []string) []byte {
	list := make([][]byte, len(fields))
	for i, field := range fields {
		list[i] = []byte(field)
	}
	return pack(list...)
}

// Unpack finds the fields again.
func Unpack(packed []byte) ([]string, error) { return unpackAll(packed) }

// WaitingInGroup returns how many submissions of an org wait to be written.
func WaitingInGroup(c *Client, org uuid.UUID) int {
	c.group.mu.Lock()
	defer c.group.mu.Unlock()
	if q := c.group.queues[org]; q != nil {
		return len(q.waiting)
	}
	return 0
}

// Beginning returns how many attempts wait to begin.
func (d *Deliverer) Beginning() int {
	g := d.groups.begins
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[struct{}{}]; q != nil {
		return len(q.waiting)
	}
	return 0
}

// PurgeContentsInTurns is what workers do regularly about contents, with pages of so
// many emails and turns that end after one. It returns what each turn purged.
func PurgeContentsInTurns(ctx context.Context, pool *pgxpool.Pool, retention time.Duration, size int) (turns []int, err error) {
	p := newContentPurge(pool, retention)
	p.size, p.turn = size, 0
	for through := false; !through && err == nil; {
		var n int
		n, through, err = p.run(ctx)
		turns = append(turns, n)
	}
	return turns, err
}
