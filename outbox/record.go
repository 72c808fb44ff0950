package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/providers"
)

// Events come late, early, twice, shuffled, and with other ids when they come
// again. So nothing depends on their order: they are kept, each once, and the
// status of an email follows from the set of them. An event is also evidence
// that the provider has the message, and settles a doubt.

// Recorded counts what became of events.
type Recorded struct {
	// New were not known before.
	New int
	// Known came before.
	Known int
	// Stray belong to no attempt that is known, and are kept aside.
	Stray int
	// Settled are attempts in doubt that they settled.
	Settled int
}

// RecordEvents stores what a provider reports, and what follows from it, in one
// transaction. When it returns without an error, the provider need not report
// it again. It lowers the wall between orgs: a provider reports of them all.
func (c *Client) RecordEvents(ctx context.Context, provider string, events []providers.Event) (Recorded, error) {
	batch := eventBatch{provider: provider, events: events, suppresses: c.suppressionOf, keys: c.cfg.Keys}
	var recorded Recorded
	var err error
	for range enqueueTries {
		err = AcrossOrgs(c.pool).Begin(ctx, func(tx pgx.Tx) error {
			var err error
			recorded, err = batch.record(ctx, tx)
			return err
		})
		if !isRetryable(err) {
			break
		}
	}
	if err != nil {
		return Recorded{}, fmt.Errorf("record events of %s: %w", provider, err)
	}
	c.cfg.Metrics.received(provider, events)
	c.cfg.Metrics.settled(EvidenceWebhook, recorded.Settled)
	return recorded, nil
}

// eventBatch are events of one provider.
type eventBatch struct {
	provider string
	events   []providers.Event
	// suppresses says why an event suppresses its recipient; empty: it does not.
	suppresses func(providers.Event) SuppressionReason
	// keys open whom an email was sent to.
	keys *KeyRing
}

// attemptID names an attempt.
type attemptID struct {
	email  uuid.UUID
	number int16
}

func (b eventBatch) record(ctx context.Context, tx pgx.Tx) (Recorded, error) {
	attempts, err := b.match(ctx, tx)
	if err != nil {
		return Recorded{}, err
	}
	fresh, err := b.insert(ctx, tx, attempts)
	if err != nil {
		return Recorded{}, err
	}
	if err := b.insertStray(ctx, tx, attempts); err != nil {
		return Recorded{}, err
	}
	settled, err := b.settle(ctx, tx, attempts)
	if err != nil {
		return Recorded{}, err
	}
	recorded := Recorded{New: len(fresh), Known: len(attempts) - len(fresh), Stray: len(b.events) - len(attempts), Settled: settled}
	return recorded, b.suppress(ctx, tx, attempts, fresh)
}

// sqlMatchEvents finds the attempts of events: by our reference, and where that
// finds none by the provider's id.
const sqlMatchEvents = `
SELECT i.n::integer, a.email_id, a.number
FROM unnest($2::uuid[], $3::text[]) WITH ORDINALITY AS i (reference, message_id, n),
LATERAL (
    SELECT email_id, number, 1 AS preference FROM outbox.attempts WHERE provider_key = i.reference AND provider = $1
    UNION ALL
    SELECT email_id, number, 2 FROM outbox.attempts WHERE provider_message_id = i.message_id AND provider = $1
    ORDER BY preference LIMIT 1) a`

// match returns the attempts that events are about, by the index of the event.
func (b eventBatch) match(ctx context.Context, tx pgx.Tx) (map[int]attemptID, error) {
	references, ids := make([]*uuid.UUID, len(b.events)), make([]*string, len(b.events))
	for i, e := range b.events {
		references[i], ids[i] = referenceOf(e), nullable(plain(e.ProviderMessageID, maxName))
	}
	rows, err := tx.Query(ctx, sqlMatchEvents, b.provider, references, ids)
	if err != nil {
		return nil, err
	}
	found := map[int]attemptID{}
	var n int
	var a attemptID
	_, err = pgx.ForEachRow(rows, []any{&n, &a.email, &a.number}, func() error {
		found[n-1] = a
		return nil
	})
	return found, err
}

// referenceOf returns the attempt's key; nil: the event carries none of ours.
func referenceOf(e providers.Event) *uuid.UUID {
	key, err := uuid.Parse(e.Reference)
	if err != nil {
		return nil
	}
	return &key
}

// sqlInsertEvents stores events of purged emails without address and text. Those that
// came before the purge are known by what is left of them. The lock is that of the
// foreign key: a purge comes before it, and is seen, or after it, and sees the event.
const sqlInsertEvents = `
WITH locked AS (
    SELECT e.id, e.content_purged_at IS NOT NULL AS purged FROM outbox.emails e
    WHERE e.id = ANY ($3::uuid[]) ORDER BY e.id FOR KEY SHARE
)
INSERT INTO outbox.events (id, email_id, attempt, type, provider, recipient, permanent, detail, occurred_at)
SELECT i.id, i.email_id, i.attempt, i.type, $1, CASE WHEN NOT l.purged THEN nullif(i.recipient, '') END, i.permanent,
    CASE WHEN NOT l.purged THEN nullif(i.detail, '') END, i.occurred_at
FROM unnest($2::uuid[], $3::uuid[], $4::smallint[], $5::text[], $6::text[], $7::boolean[], $8::text[], $9::timestamptz[])
    WITH ORDINALITY AS i (id, email_id, attempt, type, recipient, permanent, detail, occurred_at, place)
    JOIN locked l ON l.id = i.email_id
WHERE NOT (l.purged AND EXISTS (
    SELECT FROM outbox.events v WHERE v.email_id = i.email_id AND v.purged AND v.provider = $1
        AND v.attempt = i.attempt AND v.type = i.type AND v.occurred_at = i.occurred_at))
ORDER BY i.place
ON CONFLICT DO NOTHING
RETURNING id`

// insert stores the events of known attempts, and returns the indexes of those
// that are new.
func (b eventBatch) insert(ctx context.Context, tx pgx.Tx, attempts map[int]attemptID) (fresh []int, err error) {
	if len(attempts) == 0 {
		return nil, nil
	}
	var ids, emails []uuid.UUID
	var numbers []int16
	var rows eventColumns
	index := map[uuid.UUID]int{}
	for _, i := range b.inOrder(attempts) {
		a, id := attempts[i], newID()
		index[id] = i
		ids, emails, numbers = append(ids, id), append(emails, a.email), append(numbers, a.number)
		rows.add(b.events[i])
	}
	inserted, err := tx.Query(ctx, sqlInsertEvents, b.provider, ids, emails, numbers,
		rows.types, rows.recipients, rows.permanent, rows.details, rows.times)
	if err != nil {
		return nil, err
	}
	var id uuid.UUID
	_, err = pgx.ForEachRow(inserted, []any{&id}, func() error {
		fresh = append(fresh, index[id])
		return nil
	})
	return fresh, err
}

// inOrder returns the indexes of matched events such that two transactions that
// store the same ones do so in the same order.
func (b eventBatch) inOrder(attempts map[int]attemptID) []int {
	var list []int
	for i := range b.events {
		if _, ok := attempts[i]; ok {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(i, j int) int {
		x, y := b.events[i], b.events[j]
		return cmp.Or(compareIDs(attempts[i].email, attempts[j].email), cmp.Compare(x.Type, y.Type),
			cmp.Compare(x.Recipient, y.Recipient), x.OccurredAt.Compare(y.OccurredAt))
	})
	return list
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

const sqlInsertStray = `
INSERT INTO outbox.stray_events (
    id, provider, reference, provider_message_id, type, recipient, permanent, detail, occurred_at, whole_message)
SELECT id, $1, reference, message_id, type, recipient, permanent, detail, occurred_at, whole_message
FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::boolean[], $8::text[], $9::timestamptz[], $10::boolean[])
    AS i (id, reference, message_id, type, recipient, permanent, detail, occurred_at, whole_message)
ORDER BY message_id, type, recipient, occurred_at
ON CONFLICT DO NOTHING`

func (b eventBatch) insertStray(ctx context.Context, tx pgx.Tx, matched map[int]attemptID) error {
	if len(matched) == len(b.events) {
		return nil
	}
	var ids []uuid.UUID
	var references []*uuid.UUID
	var messages []string
	var whole []bool
	var rows eventColumns
	for i, e := range b.events {
		if _, ok := matched[i]; ok {
			continue
		}
		ids, references = append(ids, newID()), append(references, referenceOf(e))
		messages, whole = append(messages, plain(e.ProviderMessageID, maxName)), append(whole, e.WholeMessage)
		rows.add(e)
	}
	_, err := tx.Exec(ctx, sqlInsertStray, b.provider, ids, references, messages,
		rows.types, rows.recipients, rows.permanent, rows.details, rows.times, whole)
	return err
}

// eventColumns are events as the tables take them.
type eventColumns struct {
	types, recipients, details []string
	permanent                  []bool
	times                      []time.Time
}

func (c *eventColumns) add(e providers.Event) {
	c.types = append(c.types, string(e.Type))
	c.recipients = append(c.recipients, plain(e.Recipient, maxName))
	c.permanent = append(c.permanent, e.Permanent)
	c.details = append(c.details, scrub(e.Detail))
	c.times = append(c.times, e.OccurredAt)
}

// acceptedSQL is the status of an email e that a provider has accepted: sent, or
// what the events say beyond that. They may have come before the acceptance was
// recorded.
const acceptedSQL = `(ARRAY['sent', 'delivered', 'bounced', 'complained'])[e.reported]`

// rankOf is how far an email has come by an event. The states only go up, so the
// order of the events does not matter.
func rankOf(t providers.EventType) int16 {
	switch t {
	case providers.EventDelivered:
		return 2
	case providers.EventBounced:
		return 3
	case providers.EventComplained:
		return 4
	}
	return 1
}

// sqlSettleByEvents ends the doubt about attempts that the provider reports
// something of. One that its worker may still be sending is left to it. The locks
// are taken as finish takes them: attempts, then emails, in the order of their ids.
// It returns how many it settled.
const sqlSettleByEvents = `
WITH input AS (
    SELECT email_id, number, max(rank) AS rank
    FROM unnest($1::uuid[], $2::smallint[], $3::smallint[]) AS i (email_id, number, rank) GROUP BY email_id, number
), doubtful AS (
    SELECT a.email_id, a.number FROM outbox.attempts a JOIN input i USING (email_id, number)
    WHERE a.stage = 'unknown' OR a.stage = 'sending' AND a.in_doubt_at IS NOT NULL
    ORDER BY a.email_id, a.number FOR UPDATE OF a
), settled AS (
    UPDATE outbox.attempts a SET stage = 'accepted', evidence = 'webhook', ended_at = now()
    FROM doubtful d WHERE a.email_id = d.email_id AND a.number = d.number
    RETURNING a.email_id
), locked AS (
    SELECT e.id, max(i.rank) AS rank, (SELECT count(*) FROM settled s WHERE s.email_id = e.id) > 0 AS settled
    FROM (SELECT id FROM outbox.emails WHERE id IN (SELECT email_id FROM input) ORDER BY id FOR NO KEY UPDATE) e
    JOIN input i ON i.email_id = e.id
    GROUP BY e.id
), changed AS (
    UPDATE outbox.emails e
    SET reported = greatest(e.reported, l.rank),
        status = CASE
            WHEN e.status IN ('sent', 'delivered', 'bounced', 'complained') OR ` + settledByEventSQL + `
            THEN (ARRAY['sent', 'delivered', 'bounced', 'complained'])[greatest(e.reported, l.rank)] ELSE e.status END,
        reason = CASE WHEN ` + settledByEventSQL + ` THEN NULL ELSE e.reason END,
        reason_detail = CASE WHEN ` + settledByEventSQL + ` THEN NULL ELSE e.reason_detail END,
        next_attempt_at = CASE WHEN ` + settledByEventSQL + ` THEN NULL ELSE e.next_attempt_at END,
        ended_at = CASE WHEN ` + settledByEventSQL + ` THEN now() ELSE e.ended_at END
    FROM locked l
    WHERE e.id = l.id AND (e.reported < l.rank OR ` + settledByEventSQL + `)
)
SELECT count(*) FROM settled`

// settledByEventSQL is the condition that an event ends a doubt of the email,
// also when policy has ended it before.
const settledByEventSQL = `(l.settled AND (e.ended_at IS NULL OR e.status = 'failed'))`

// settle does what follows for attempts that events are about. It returns how
// many doubts that settled.
func (b eventBatch) settle(ctx context.Context, tx pgx.Tx, attempts map[int]attemptID) (settled int, err error) {
	if len(attempts) == 0 {
		return 0, nil
	}
	var emails []uuid.UUID
	var numbers, ranks []int16
	for i, a := range attempts {
		emails, numbers, ranks = append(emails, a.email), append(numbers, a.number), append(ranks, rankOf(b.events[i].Type))
	}
	err = tx.QueryRow(ctx, sqlSettleByEvents, emails, numbers, ranks).Scan(&settled)
	return settled, err
}

// sqlRecipientsOf reads who emails were sent to.
const sqlRecipientsOf = `
SELECT e.id, e.org_id, coalesce(c.recipients, '{}'), e.content_purged_at IS NOT NULL, ` + sealedColumnsSQL + `
FROM outbox.emails e LEFT JOIN outbox.email_contents c ON c.email_id = e.id
WHERE e.id = ANY ($1::uuid[])`

// sentTo is whom an email was sent to, and by which org.
type sentTo struct {
	org        uuid.UUID
	recipients []string
	// purged says that the recipients are not known any more.
	purged bool
}

// suppress suppresses the recipients of events that say that they get no more
// mail. Only new events count: an address that somebody has taken off the list
// is not put back by a copy of an old one.
func (b eventBatch) suppress(ctx context.Context, tx pgx.Tx, attempts map[int]attemptID, fresh []int) error {
	reasons := map[int]SuppressionReason{}
	var emails []uuid.UUID
	for _, i := range fresh {
		if reason := b.suppresses(b.events[i]); reason != "" {
			reasons[i] = reason
			emails = append(emails, attempts[i].email)
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	sent, err := b.recipientsOf(ctx, tx, emails)
	if err != nil {
		return err
	}
	var list []suppression
	for i, reason := range reasons {
		email := attempts[i].email
		if address, ok := sent[email].about(b.events[i]); ok {
			detail := b.events[i].Detail
			if sent[email].purged {
				detail = ""
			}
			list = append(list, suppression{sent[email].org, Suppression{
				Address: address, Reason: reason, Detail: detail, EmailID: email,
			}})
		}
	}
	return suppressTx(ctx, tx, list)
}

func (b eventBatch) recipientsOf(ctx context.Context, tx pgx.Tx, emails []uuid.UUID) (map[uuid.UUID]sentTo, error) {
	rows, err := tx.Query(ctx, sqlRecipientsOf, emails)
	if err != nil {
		return nil, err
	}
	sent := map[uuid.UUID]sentTo{}
	var id uuid.UUID
	var to sentTo
	var sealed sealedEmail
	_, err = pgx.ForEachRow(rows, append([]any{&id, &to.org, &to.recipients, &to.purged}, sealed.columns()...), func() error {
		if sealed.keyID != "" {
			content, err := sealed.openEnvelope(b.keys, to.org, id)
			if err != nil {
				return err
			}
			to.recipients = content.Recipients
		}
		sent[id] = to
		to, sealed = sentTo{}, sealedEmail{}
		return nil
	})
	return sent, err
}

// about returns the address that an event is about, if that is certain. Of a purged
// email the provider alone knows it: who complains late gets no more mail either.
func (s sentTo) about(e providers.Event) (string, bool) {
	if s.purged {
		address, err := parseAddress(e.Recipient)
		return normalized(address), err == nil && !e.WholeMessage
	}
	if e.WholeMessage || e.Recipient == "" {
		if len(s.recipients) != 1 {
			return "", false
		}
		return s.recipients[0], true
	}
	address, err := parseAddress(e.Recipient)
	return normalized(address), err == nil && slices.Contains(s.recipients, normalized(address))
}
