package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// What operators read: emails of all orgs, without their bodies. An email whose
// content does not open with this process's keys is shown all the same: what
// became of it is not sealed.

// Filter selects emails of all orgs. Zero fields select everything.
type Filter struct {
	Org    uuid.UUID
	Status Status
	// Provider is one that an attempt was begun at.
	Provider string
	// Since leaves out what was submitted before it, to the millisecond.
	Since time.Time
	// After is the id of an email to page from: those older than it.
	After uuid.UUID
	// Limit is how many emails to return at most.
	Limit int
}

// Listing is an email in a list for operators.
type Listing struct {
	// Email has no bodies, attempts and events.
	Email
	// OrgName is empty when the org is gone.
	OrgName string
	// Begun is how many attempts have begun, and LastProvider where the last of
	// them was; empty: none has.
	Begun        int
	LastProvider string
	// Purged means that the content is not kept any more.
	Purged bool
	// Unreadable is why the content cannot be shown. Nil: it can, or is purged.
	Unreadable *SealError
	// FoundBy is what [Client.Find] has found the email by.
	FoundBy FoundBy
}

// FoundBy is what a search has found an email by.
type FoundBy string

// What emails are found by.
const (
	FoundByID                FoundBy = "id"
	FoundByIdempotencyKey    FoundBy = "idempotency key"
	FoundByProviderKey       FoundBy = "provider key"
	FoundByProviderMessageID FoundBy = "provider message id"
	FoundByAddress           FoundBy = "address"
)

// listingColumnsSQL is what scanListing reads of emails e, with contents c and
// orgs o.
const listingColumnsSQL = emailColumnsSQL + `,
    coalesce(o.name, ''), e.attempts, c.email_id IS NULL,
    coalesce((SELECT a.provider FROM outbox.attempts a WHERE a.email_id = e.id ORDER BY a.number DESC LIMIT 1), '')`

const listingTablesSQL = `
JOIN outbox.emails e ON e.id = found.id
LEFT JOIN outbox.email_contents c ON c.email_id = e.id
LEFT JOIN outbox.orgs o ON o.id = e.org_id`

// Browse returns emails, the newest first, and whether there are older ones.
func (c *Client) Browse(ctx context.Context, f Filter) (list []Listing, more bool, err error) {
	sql, args := f.statement()
	if err := AcrossOrgs(c.pool).Query(ctx, collect(&list, c.scanListing), sql, args...); err != nil {
		return nil, false, fmt.Errorf("browse emails: %w", err)
	}
	if more = len(list) > f.Limit; more {
		list = list[:f.Limit]
	}
	return list, more, nil
}

// statement takes the newest few of each org, by the indexes that begin with the
// org, and of those the newest: no index has the emails of a status in all orgs.
func (f Filter) statement() (sql string, args []any) {
	args = []any{f.Limit + 1}
	var emails strings.Builder
	where := func(condition string, arg any) {
		args = append(args, arg)
		fmt.Fprintf(&emails, " AND "+condition, len(args))
	}
	emails.WriteString("SELECT e.id FROM outbox.emails e WHERE e.org_id = o.id")
	if f.Org != uuid.Nil {
		where("o.id = $%d", f.Org)
	}
	if f.Status != "" {
		where("e.phase = $%d", string(f.Status.phase()))
		where("e.status = $%d", string(f.Status))
	}
	if !f.Since.IsZero() {
		where("e.id >= $%d", firstID(f.Since))
	}
	if f.After != uuid.Nil {
		where("e.id < $%d", f.After)
	}
	if f.Provider != "" {
		where("EXISTS (SELECT FROM outbox.attempts a WHERE a.email_id = e.id AND a.provider = $%d)", f.Provider)
	}
	emails.WriteString(" ORDER BY e.id DESC LIMIT $1")
	return `SELECT ` + listingColumnsSQL + `, ''
FROM (
    SELECT newest.id FROM outbox.orgs o CROSS JOIN LATERAL (` + emails.String() + `) newest ORDER BY newest.id DESC LIMIT $1
) found` + listingTablesSQL + ` ORDER BY e.id DESC`, args
}

// maxFound bounds what a search returns.
const maxFound = 100

// sqlFind finds emails by all that a text may be. Each part goes by an index, and
// those with many emails behind one value read the newest alone.
const sqlFind = `
WITH matches (id, found_by, preference) AS (
    SELECT e.id, 'id', 1 FROM outbox.emails e WHERE e.id = $1
    UNION ALL
    SELECT a.email_id, 'provider key', 2 FROM outbox.attempts a WHERE a.provider_key = $1
    UNION ALL
    SELECT unnest(k.email_ids), 'idempotency key', 3
    FROM outbox.orgs o CROSS JOIN (VALUES ('` + EndpointEmails + `'), ('` + EndpointBatch + `')) AS p (endpoint)
        JOIN outbox.idempotency_keys k ON k.org_id = o.id AND k.endpoint = p.endpoint AND k.key = $2
    UNION ALL
    SELECT a.email_id, 'provider message id', 4 FROM outbox.attempts a WHERE a.provider_message_id = $2
    UNION ALL
    SELECT newest.email_id, 'address', 5
    FROM unnest($3::uuid[]) AS w (term) CROSS JOIN LATERAL (
        SELECT t.email_id FROM outbox.email_terms t WHERE t.term = w.term ORDER BY t.email_id DESC LIMIT $4) newest
), found AS (
    SELECT DISTINCT ON (id) id, found_by FROM matches ORDER BY id DESC, preference LIMIT $4
)
SELECT ` + listingColumnsSQL + `, found.found_by
FROM found` + listingTablesSQL + `
ORDER BY e.id DESC`

// Find returns the emails that a text names, the newest first and a hundred at
// most: by id, by idempotency key while that is kept, by the key that an attempt
// had at its provider, by the provider's id, or by a recipient's address while the
// content is kept.
func (c *Client) Find(ctx context.Context, text string) (list []Listing, err error) {
	text = strings.TrimSpace(text)
	if text == "" || hasControl(text) {
		return nil, nil
	}
	terms, err := c.addressTerms(ctx, text)
	if err != nil {
		return nil, err
	}
	id, _ := uuid.Parse(text) // nil if it is none, as no email's
	err = AcrossOrgs(c.pool).Query(ctx, collect(&list, c.scanListing), sqlFind, id, text, terms, maxFound)
	if err != nil {
		return nil, fmt.Errorf("find emails: %w", err)
	}
	return list, nil
}

const sqlOrgIDs = `SELECT id FROM outbox.orgs`

// addressTerms are what an address stands under in each org; none if it is none.
func (c *Client) addressTerms(ctx context.Context, text string) (terms []uuid.UUID, err error) {
	parsed, err := parseAddress(text)
	if err != nil {
		return nil, nil //nolint:nilerr // it is something else
	}
	var orgs []uuid.UUID
	if err := AcrossOrgs(c.pool).Query(ctx, collect(&orgs, pgx.RowTo[uuid.UUID]), sqlOrgIDs); err != nil {
		return nil, fmt.Errorf("find emails: %w", err)
	}
	for _, org := range orgs {
		q := Query{Org: org, To: normalized(parsed)}
		terms = append(terms, q.searches(c.cfg.Keys)[0]...)
	}
	return terms, nil
}

// scanListing reads a listing and opens its content.
func (c *Client) scanListing(row pgx.CollectableRow) (l Listing, err error) {
	sealed, err := scanEmail(row, &l.Email, &l.OrgName, &l.Begun, &l.Purged, &l.LastProvider, &l.FoundBy)
	if err == nil {
		l.Unreadable, err = openOrSay(sealed, c.cfg.Keys, &l.Email)
	}
	return l, err
}

// openOrSay opens what is sealed, or says why it does not open.
func openOrSay(sealed sealedEmail, keys *KeyRing, e *Email) (*SealError, error) {
	_, err := sealed.open(keys, e)
	if unreadable, ok := errors.AsType[*SealError](err); ok {
		return unreadable, nil
	}
	return nil, err
}
