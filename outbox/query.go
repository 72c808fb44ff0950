package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// emailColumnsSQL is what scanEmail reads. Content may have been purged.
const emailColumnsSQL = `
    e.id, e.org_id, e.status, coalesce(e.reason, ''), coalesce(e.reason_detail, ''),
    e.possible_duplicate, e.created_at, e.scheduled_at, e.expires_at, e.next_attempt_at, e.ended_at, e.content_purged_at,
    coalesce(e.on_unknown, ''), e.priority, coalesce(e.provider, ''),
    coalesce(c.from_address, ''), c.to_addresses, c.cc_addresses, c.bcc_addresses, c.reply_to,
    coalesce(c.subject, ''), c.headers, c.tags, c.metadata, coalesce(c.list_unsubscribe, false), c.suppressed_recipients,
    ` + sealedColumnsSQL

const sqlGetEmail = `
SELECT ` + emailColumnsSQL + `, coalesce(c.html, ''), coalesce(c.text, ''), c.sealed_body
FROM outbox.emails e LEFT JOIN outbox.email_contents c ON c.email_id = e.id
WHERE e.id = $1 AND e.org_id = $2`

const sqlGetAttempts = `
SELECT number, provider, provider_key, stage, worker, began_at, in_doubt_at, ended_at,
    coalesce(status_code, 0), coalesce(code, ''), coalesce(detail, ''), coalesce(provider_message_id, ''),
    possible_duplicate, coalesce(evidence, ''), coalesce(trace_id, '')
FROM outbox.attempts WHERE email_id = $1 ORDER BY number`

// Get returns an email of the org with its attempts and events, [ErrNotFound], or
// a *[SealError].
func (c *Client) Get(ctx context.Context, org, id uuid.UUID) (*Email, error) {
	return c.get(ctx, org, id, (*sealedEmail).open)
}

// GetState is [Client.Get] without what the sender wrote: it needs no key.
func (c *Client) GetState(ctx context.Context, org, id uuid.UUID) (*Email, error) {
	return c.get(ctx, org, id, leaveSealed)
}

// openFunc completes an email with what of it is sealed.
type openFunc func(*sealedEmail, *KeyRing, *Email) (recipients []string, err error)

// leaveSealed leaves out whatever the sender wrote.
func leaveSealed(_ *sealedEmail, _ *KeyRing, e *Email) ([]string, error) {
	m := &e.Message
	e.Message = Message{
		ScheduledAt: m.ScheduledAt, ExpiresAt: m.ExpiresAt, OnUnknown: m.OnUnknown, Priority: m.Priority, Provider: m.Provider,
	}
	e.SuppressedRecipients = nil
	return nil, nil
}

func (c *Client) get(ctx context.Context, org, id uuid.UUID, open openFunc) (*Email, error) {
	var batch pgx.Batch
	email := new(Email)
	var body []byte
	batch.Queue(sqlGetEmail, id, org).QueryRow(func(row pgx.Row) error {
		sealed, err := scanEmail(row, email, &email.Message.HTML, &email.Message.Text, &body)
		if err != nil {
			return err
		}
		sealed.body = body
		_, err = open(&sealed, c.cfg.Keys, email)
		return err
	})
	batch.Queue(sqlGetAttempts, id).Query(func(rows pgx.Rows) error {
		var err error
		email.Attempts, err = pgx.CollectRows(rows, scanAttempt)
		return err
	})
	batch.Queue(sqlGetEvents, id).Query(func(rows pgx.Rows) error {
		var err error
		email.Events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Event])
		return err
	})
	err := c.as(org).Send(ctx, &batch)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("get email: %w", err)
	}
	return email, nil
}

// scanEmail reads an email with what of it is sealed, which is still to be opened.
func scanEmail(row pgx.Row, e *Email, more ...any) (sealed sealedEmail, err error) {
	m := &e.Message
	var priority int16
	var scheduled, expires, next, ended, purged *time.Time
	var to, cc, bcc, replyTo, headers, tags, metadata []byte
	columns := append([]any{
		&e.ID, &e.Org, &e.Status, &e.Reason, &e.ReasonDetail,
		&e.PossibleDuplicate, &e.CreatedAt, &scheduled, &expires, &next, &ended, &purged,
		&m.OnUnknown, &priority, &m.Provider,
		&m.From, &to, &cc, &bcc, &replyTo,
		&m.Subject, &headers, &tags, &metadata, &m.ListUnsubscribe, &e.SuppressedRecipients,
	}, sealed.columns()...)
	if err := row.Scan(append(columns, more...)...); err != nil {
		return sealed, err
	}
	m.Priority = priorityOf(priority)
	m.ScheduledAt, m.ExpiresAt = timeOf(scheduled), timeOf(expires)
	e.NextAttemptAt, e.EndedAt, e.ContentPurgedAt = timeOf(next), timeOf(ended), timeOf(purged)
	return sealed, m.scanDocuments(to, cc, bcc, replyTo, headers, tags, metadata)
}

func (m *Message) scanDocuments(to, cc, bcc, replyTo, headers, tags, metadata []byte) error {
	for _, document := range []struct {
		json []byte
		into any
	}{
		{to, &m.To},
		{cc, &m.Cc},
		{bcc, &m.Bcc},
		{replyTo, &m.ReplyTo},
		{headers, &m.Headers},
		{tags, &m.Tags},
		{metadata, &m.Metadata},
	} {
		if document.json == nil {
			continue
		}
		if err := json.Unmarshal(document.json, document.into); err != nil {
			return fmt.Errorf("stored content: %w", err)
		}
	}
	return nil
}

func scanAttempt(row pgx.CollectableRow) (Attempt, error) {
	var a Attempt
	var inDoubt, ended *time.Time
	err := row.Scan(&a.Number, &a.Provider, &a.ProviderKey, &a.Stage, &a.Worker, &a.BeganAt, &inDoubt, &ended,
		&a.StatusCode, &a.Code, &a.Detail, &a.ProviderMessageID, &a.PossibleDuplicate, &a.Evidence, &a.TraceID)
	a.InDoubtAt, a.EndedAt = timeOf(inDoubt), timeOf(ended)
	return a, err
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

func priorityOf(rank int16) Priority {
	switch rank {
	case 1:
		return PriorityHigh
	case 3:
		return PriorityLow
	}
	return PriorityNormal
}
