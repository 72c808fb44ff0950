package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Query selects emails of an org. Zero fields select everything.
type Query struct {
	Org uuid.UUID
	// Limit is how many emails to return at most.
	Limit int
	// After and Before are ids to page from: the emails older, or newer, than
	// that one. At most one is set.
	After, Before uuid.UUID

	Status Status
	// To is a recipient's bare address, in To, Cc or Bcc.
	To string
	// Tag is a tag's name, or name:value.
	Tag string
	// Key is the idempotency key that it was submitted under, as long as that is
	// kept.
	Key string
	// Provider is one that an attempt was made at.
	Provider string
	// StateOnly leaves out what senders wrote: no key is needed then.
	StateOnly bool
	// CreatedAfter and CreatedBefore are a half-open interval, in
	// milliseconds: from the first, up to but without the second.
	CreatedAfter, CreatedBefore time.Time
}

// sqlListEmails is completed by searches, conditions, an order and a limit. The id
// is the time of submission, so one index serves paging and both time filters.
const sqlListEmails = `
SELECT ` + emailColumnsSQL + `
FROM outbox.emails e LEFT JOIN outbox.email_contents c ON c.email_id = e.id`

// keyCondition goes by the primary key of the idempotency keys.
const keyCondition = `e.id = ANY (ARRAY(SELECT unnest(k.email_ids) FROM outbox.idempotency_keys k
    WHERE k.org_id = $1 AND k.endpoint IN ('` + EndpointEmails + `', '` + EndpointBatch + `') AND k.key = $%d))`

// List returns emails without their bodies and attempts, the newest first, and
// whether there are more in the direction of paging. Errors may be a *[SealError].
func (c *Client) List(ctx context.Context, q Query) (emails []Email, more bool, err error) {
	open := openFunc((*sealedEmail).open)
	if q.StateOnly {
		open = leaveSealed
	}
	sql, args := q.statement(c.cfg.Keys)
	err = c.as(q.Org).Query(ctx, collect(&emails, func(row pgx.CollectableRow) (Email, error) {
		var e Email
		sealed, err := scanEmail(row, &e)
		if err == nil {
			_, err = open(&sealed, c.cfg.Keys, &e)
		}
		return e, err
	}), sql, args...)
	if err != nil {
		return nil, false, fmt.Errorf("list emails: %w", err)
	}
	if more = len(emails) > q.Limit; more {
		emails = emails[:q.Limit]
	}
	if q.Before != uuid.Nil {
		slices.Reverse(emails)
	}
	return emails, more, nil
}

// searches are the terms to find emails by: for each filter those that may stand
// for its value: an address may stand under any key, or under none.
func (q Query) searches(keys *KeyRing) (filters [][]uuid.UUID) {
	if q.To != "" {
		to := strings.ToLower(q.To)
		terms := []uuid.UUID{searchTerm(nil, q.Org, termTo, to)}
		for i := range keys.len() {
			terms = append(terms, searchTerm(&keys.keys[i], q.Org, termTo, to))
		}
		filters = append(filters, terms)
	}
	if q.Tag != "" {
		filters = append(filters, []uuid.UUID{searchTerm(nil, q.Org, termTag, q.Tag)})
	}
	return filters
}

func (q Query) statement(keys *KeyRing) (sql string, args []any) {
	text := strings.Builder{}
	text.WriteString(sqlListEmails)
	args = []any{q.Org}
	for n, terms := range q.searches(keys) {
		// A term alone is read in the order of the ids, so that the newest emails
		// are found without the others; an array of terms would not be. An email has
		// one of the terms at most.
		var parts []string
		for _, term := range terms {
			args = append(args, term)
			parts = append(parts, fmt.Sprintf("SELECT email_id FROM outbox.email_terms WHERE term = $%d", len(args)))
		}
		fmt.Fprintf(&text, " JOIN (%s) found%d ON found%d.email_id = e.id", strings.Join(parts, " UNION ALL "), n, n)
	}
	text.WriteString(" WHERE e.org_id = $1")
	where := func(condition string, arg any) {
		args = append(args, arg)
		fmt.Fprintf(&text, " AND "+condition, len(args))
	}
	if q.After != uuid.Nil {
		where("e.id < $%d", q.After)
	}
	if q.Before != uuid.Nil {
		where("e.id > $%d", q.Before)
	}
	if !q.CreatedAfter.IsZero() {
		where("e.id >= $%d", firstID(q.CreatedAfter))
	}
	if !q.CreatedBefore.IsZero() {
		where("e.id < $%d", firstID(q.CreatedBefore))
	}
	if q.Status != "" {
		where("e.phase = $%d", string(q.Status.phase()))
		where("e.status = $%d", string(q.Status))
	}
	if q.Key != "" {
		where(keyCondition, q.Key)
	}
	if q.Provider != "" {
		where("EXISTS (SELECT FROM outbox.attempts a WHERE a.email_id = e.id AND a.provider = $%d)", q.Provider)
	}
	order := "DESC"
	if q.Before != uuid.Nil {
		order = "ASC" // the nearest ones, not the newest of all
	}
	args = append(args, q.Limit+1)
	fmt.Fprintf(&text, " ORDER BY e.id %s LIMIT $%d", order, len(args))
	return text.String(), args
}

// firstID is the lowest UUIDv7 of a millisecond.
func firstID(t time.Time) uuid.UUID {
	var id uuid.UUID
	ms := max(t.UnixMilli(), 0)
	if t.Truncate(time.Millisecond).Before(t) {
		ms++
	}
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	id[6], id[8] = 0x70, 0x80
	return id
}
