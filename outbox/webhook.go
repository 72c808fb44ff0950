package outbox

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// MaxWebhooks is how many webhooks an org may have.
	MaxWebhooks = 20

	// SecretOverlap is how long after a rotation messages are signed with the
	// previous secret as well.
	SecretOverlap = 24 * time.Hour
)

// Webhook is an endpoint that is told what becomes of an org's emails.
type Webhook struct {
	ID uuid.UUID
	// Endpoint is the URL that messages are posted to.
	Endpoint string
	// Events are the types of messages that it gets.
	Events []WebhookEvent
	Status WebhookStatus
	// DisabledReason says why it is disabled; empty: it is not.
	DisabledReason DisabledReason
	// FailingSince is when the first attempt failed after which none
	// succeeded. Zero: the last one did.
	FailingSince time.Time
	// Secret signs the messages, as Standard Webhooks write it: whsec_ and
	// base64.
	Secret    string
	CreatedAt time.Time
}

// WebhookEvent is a type of message.
type WebhookEvent string

// The types of messages. The first three report our own statuses, the others
// what providers say.
const (
	WebhookSent            WebhookEvent = "email.sent"
	WebhookFailed          WebhookEvent = "email.failed"
	WebhookUnknown         WebhookEvent = "email.unknown"
	WebhookDelivered       WebhookEvent = "email.delivered"
	WebhookDeliveryDelayed WebhookEvent = "email.delivery_delayed"
	WebhookBounced         WebhookEvent = "email.bounced"
	WebhookComplained      WebhookEvent = "email.complained"
	WebhookOpened          WebhookEvent = "email.opened"
	WebhookClicked         WebhookEvent = "email.clicked"
)

// WebhookEvents are all types of messages.
var WebhookEvents = []WebhookEvent{
	WebhookSent, WebhookFailed, WebhookUnknown, WebhookDelivered, WebhookDeliveryDelayed,
	WebhookBounced, WebhookComplained, WebhookOpened, WebhookClicked,
}

// WebhookStatus says whether a webhook gets messages.
type WebhookStatus string

// The statuses of a webhook.
const (
	// WebhookEnabled gets messages.
	WebhookEnabled WebhookStatus = "enabled"
	// WebhookDisabled gets none, and what happens meanwhile is not kept for it.
	WebhookDisabled WebhookStatus = "disabled"
)

// DisabledReason says why a webhook is disabled.
type DisabledReason string

// The reasons.
const (
	// DisabledByRequest: the org did it.
	DisabledByRequest DisabledReason = "request"
	// DisabledGone: the endpoint answered 410.
	DisabledGone DisabledReason = "gone"
	// DisabledFailing: a message used up its attempts, and the endpoint had
	// taken none for [disableAfter].
	DisabledFailing DisabledReason = "failing"
)

var (
	// ErrWebhookNotFound means that there is no such webhook in this org.
	ErrWebhookNotFound = errors.New("no such webhook")

	// ErrWebhookMessageNotFound means that the webhook has no such message, or
	// no longer.
	ErrWebhookMessageNotFound = errors.New("no such message of the webhook")

	// ErrWebhookDisabled means that the webhook gets no messages.
	ErrWebhookDisabled = errors.New("the webhook is disabled")
)

// sqlLockOrg makes those who count an org's webhooks wait for one another.
const (
	sqlLockOrg       = `SELECT FROM outbox.orgs WHERE id = $1 FOR NO KEY UPDATE`
	sqlInsertWebhook = `
INSERT INTO outbox.webhooks (id, org_id, endpoint, events, secret, created_at, secret_key_id)
SELECT $1, $2, $3, $4, $5, $6, $8 WHERE (SELECT count(*) FROM outbox.webhooks WHERE org_id = $2) < $7`
)

// CreateWebhook makes an endpoint one of the org's webhooks. It returns a
// *[ValidationError] for an endpoint or events that cannot be, or if the org has
// [MaxWebhooks] already.
func (c *Client) CreateWebhook(ctx context.Context, org uuid.UUID, endpoint string, events []WebhookEvent) (*Webhook, error) {
	var errs fieldErrors
	c.endpoints.validate(&errs, endpoint)
	validateWebhookEvents(&errs, events)
	if err := errs.err(); err != nil {
		return nil, err
	}
	secret := newWebhookSecret()
	w := &Webhook{ID: newID(), Endpoint: endpoint, Events: events, Status: WebhookEnabled, Secret: secretText(secret)}
	w.CreatedAt = submittedAt(w.ID)
	stored := c.cfg.Keys.first().secret(org, w.ID, secret)
	err := c.as(org).Begin(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlLockOrg, org); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, sqlInsertWebhook, w.ID, org, endpoint, texts(events), stored.bytes, w.CreatedAt, MaxWebhooks,
			nullable(stored.keyID))
		if err == nil && tag.RowsAffected() == 0 {
			errs.add("", "an org has at most %d webhooks: delete one, or change its endpoint", MaxWebhooks)
			return errs.err()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create webhook: %w", err)
	}
	return w, nil
}

// validateWebhookEvents does not guess: a misspelt type would never come.
func validateWebhookEvents(errs *fieldErrors, events []WebhookEvent) {
	if len(events) == 0 {
		errs.add("events", "must name at least one type")
	}
	for i, event := range events {
		field := fmt.Sprintf("events[%d]", i)
		if !slices.Contains(WebhookEvents, event) {
			errs.add(field, "is not one of %s", strings.Join(texts(WebhookEvents), ", "))
		}
		if slices.Contains(events[:i], event) {
			errs.add(field, "is named twice")
		}
	}
}

// webhookColumnsSQL is what scanWebhook reads.
const webhookColumnsSQL = `w.id, w.endpoint, w.events, w.status, coalesce(w.disabled_reason, ''), w.failing_since,
    w.created_at, w.org_id, w.secret, coalesce(w.secret_key_id, '')`

const (
	sqlListWebhooks = `SELECT ` + webhookColumnsSQL + ` FROM outbox.webhooks w WHERE w.org_id = $1 ORDER BY w.id DESC`
	sqlGetWebhook   = `SELECT ` + webhookColumnsSQL + ` FROM outbox.webhooks w WHERE w.org_id = $1 AND w.id = $2`
)

func (c *Client) scanWebhook(row pgx.CollectableRow) (Webhook, error) {
	var w Webhook
	var events []string
	var failing *time.Time
	var org uuid.UUID
	var stored storedSecret
	err := row.Scan(&w.ID, &w.Endpoint, &events, &w.Status, &w.DisabledReason, &failing, &w.CreatedAt, &org, &stored.bytes, &stored.keyID)
	if err != nil {
		return w, err
	}
	secret, err := stored.open(c.cfg.Keys, org, w.ID)
	for _, event := range events {
		w.Events = append(w.Events, WebhookEvent(event))
	}
	w.FailingSince, w.Secret = timeOf(failing), secretText(secret)
	return w, err
}

// ListWebhooks returns the webhooks of an org, at most [MaxWebhooks], the newest
// first.
func (c *Client) ListWebhooks(ctx context.Context, org uuid.UUID) ([]Webhook, error) {
	var list []Webhook
	if err := c.as(org).Query(ctx, collect(&list, c.scanWebhook), sqlListWebhooks, org); err != nil {
		return nil, fmt.Errorf("list webhooks: %w", err)
	}
	return list, nil
}

// GetWebhook returns a webhook of the org, or [ErrWebhookNotFound].
func (c *Client) GetWebhook(ctx context.Context, org, id uuid.UUID) (*Webhook, error) {
	var w Webhook
	err := c.as(org).Query(ctx, func(rows pgx.Rows) (err error) {
		w, err = pgx.CollectExactlyOneRow(rows, c.scanWebhook)
		return err
	}, sqlGetWebhook, org, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrWebhookNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("get webhook: %w", err)
	}
	return &w, nil
}

// WebhookChange changes a webhook. Zero fields leave it as it is.
type WebhookChange struct {
	Endpoint string
	Events   []WebhookEvent
	// Status enables the webhook, which makes it count as in order again, or
	// disables it.
	Status WebhookStatus
}

func (c WebhookChange) validate(endpoints endpoints) error {
	var errs fieldErrors
	if c.Endpoint == "" && c.Events == nil && c.Status == "" {
		errs.add("", "give an endpoint, events or a status to change")
	}
	if c.Endpoint != "" {
		endpoints.validate(&errs, c.Endpoint)
	}
	if c.Events != nil {
		validateWebhookEvents(&errs, c.Events)
	}
	if c.Status != "" && c.Status != WebhookEnabled && c.Status != WebhookDisabled {
		errs.add("status", "must be enabled or disabled")
	}
	return errs.err()
}

// sqlUpdateWebhook forgets failures with the endpoint that had them.
const sqlUpdateWebhook = `
UPDATE outbox.webhooks w
SET endpoint = coalesce(nullif($3, ''), w.endpoint), events = coalesce($4::text[], w.events),
    status = coalesce(nullif($5, ''), w.status),
    disabled_reason = CASE $5 WHEN 'enabled' THEN NULL WHEN 'disabled' THEN 'request' ELSE w.disabled_reason END,
    failing_since = CASE WHEN $5 = 'enabled' OR $3 <> '' THEN NULL ELSE w.failing_since END
WHERE w.org_id = $1 AND w.id = $2`

// UpdateWebhook changes a webhook. It returns [ErrWebhookNotFound] or a
// *[ValidationError].
func (c *Client) UpdateWebhook(ctx context.Context, org, id uuid.UUID, change WebhookChange) error {
	if err := change.validate(c.endpoints); err != nil {
		return err
	}
	tag, err := c.as(org).Exec(ctx, sqlUpdateWebhook, org, id, change.Endpoint, texts(change.Events), string(change.Status))
	if err != nil {
		return fmt.Errorf("update webhook: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrWebhookNotFound
	}
	return nil
}

// sqlDeleteWebhook leaves a message that is being written in this moment; the
// keeper removes it.
const sqlDeleteWebhook = `
WITH gone AS (DELETE FROM outbox.webhooks WHERE org_id = $1 AND id = $2 RETURNING id),
messages AS (DELETE FROM outbox.webhook_messages m USING gone WHERE m.webhook_id = gone.id)
SELECT FROM gone`

// DeleteWebhook removes a webhook with its messages. A request that is under way
// ends. It returns [ErrWebhookNotFound].
func (c *Client) DeleteWebhook(ctx context.Context, org, id uuid.UUID) error {
	tag, err := c.as(org).Exec(ctx, sqlDeleteWebhook, org, id)
	if err != nil {
		return fmt.Errorf("delete webhook: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrWebhookNotFound
	}
	return nil
}

// sqlRotateSecret drops the secret before the previous one, if that still
// signed.
const sqlRotateSecret = `
UPDATE outbox.webhooks
SET previous_secret = secret, previous_secret_key_id = secret_key_id, previous_secret_until = now() + $4::interval,
    secret = $3, secret_key_id = $5
WHERE org_id = $1 AND id = $2`

// RotateWebhookSecret gives a webhook a new secret and returns it. For
// [SecretOverlap] messages are signed with the old one too. It returns
// [ErrWebhookNotFound].
func (c *Client) RotateWebhookSecret(ctx context.Context, org, id uuid.UUID) (secret string, err error) {
	fresh := newWebhookSecret()
	stored := c.cfg.Keys.first().secret(org, id, fresh)
	tag, err := c.as(org).Exec(ctx, sqlRotateSecret, org, id, stored.bytes, SecretOverlap, nullable(stored.keyID))
	if err != nil {
		return "", fmt.Errorf("rotate secret of webhook: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return "", ErrWebhookNotFound
	}
	return secretText(fresh), nil
}

// newWebhookSecret makes a key as long as the hash that it is used with.
func newWebhookSecret() []byte {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	return secret
}

// secretText is how Standard Webhooks write a secret.
func secretText(secret []byte) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(secret)
}

// texts turns words of a type into strings; nil stays nil.
func texts[T ~string](words []T) []string {
	var list []string
	for _, word := range words {
		list = append(list, string(word))
	}
	return list
}
