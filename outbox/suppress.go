package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/providers"
)

// SuppressionReason says why an org does not send to an address.
type SuppressionReason string

// The reasons. Where several apply, the last of them in this order is kept: what
// the recipient said counts more than what we decided, and that more than what a
// server reported, which may pass.
const (
	// SuppressionHardBounce: the address will never take mail.
	SuppressionHardBounce SuppressionReason = "hard_bounce"
	// SuppressionManual: somebody of the org said so.
	SuppressionManual SuppressionReason = "manual"
	// SuppressionUnsubscribe: the recipient wants no more.
	SuppressionUnsubscribe SuppressionReason = "unsubscribe"
	// SuppressionComplaint: the recipient called an email spam.
	SuppressionComplaint SuppressionReason = "complaint"
)

// SuppressionReasons are all of them, the weakest first.
var SuppressionReasons = []SuppressionReason{
	SuppressionHardBounce, SuppressionManual, SuppressionUnsubscribe, SuppressionComplaint,
}

// DefaultSuppressOn are the reports of providers that suppress the recipient.
var DefaultSuppressOn = []SuppressionReason{SuppressionHardBounce, SuppressionComplaint, SuppressionUnsubscribe}

// Suppression is an address that an org does not send to.
type Suppression struct {
	// Address is bare, in lower case, its domain in ASCII.
	Address string
	Reason  SuppressionReason
	// Detail is the reason in words: what a server said, or who decided.
	Detail string
	// EmailID is the email that led to it; zero: none did.
	EmailID   uuid.UUID
	CreatedAt time.Time
}

// suppression is one on its way into the tables.
type suppression struct {
	org uuid.UUID
	Suppression
}

// sqlSuppress keeps the strongest reason, and of equals the first, so the result
// does not depend on the order in which events arrive. The order of the rows
// keeps two batches from a deadlock.
const sqlSuppress = `
INSERT INTO outbox.suppressions AS s (org_id, address, reason, detail, email_id)
SELECT DISTINCT ON (i.org_id, i.address COLLATE "C")
    i.org_id, i.address, i.reason, nullif(i.detail, ''), nullif(i.email_id, '00000000-0000-0000-0000-000000000000')
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[]) WITH ORDINALITY
    AS i (org_id, address, reason, detail, email_id, place)
ORDER BY i.org_id, i.address COLLATE "C", array_position($6::text[], i.reason) DESC, i.place
ON CONFLICT (org_id, address) DO UPDATE
SET reason = excluded.reason, detail = excluded.detail, email_id = excluded.email_id
WHERE array_position($6::text[], excluded.reason) > array_position($6::text[], s.reason)`

// suppressTx suppresses addresses in the caller's transaction. Addresses are
// normalised, and those that are none are left out: no email goes to them either.
// Repeating it changes nothing.
func suppressTx(ctx context.Context, tx pgx.Tx, list []suppression) error {
	var orgs, emails []uuid.UUID
	var addresses, reasons, details []string
	for _, s := range list {
		parsed, err := parseAddress(s.Address)
		if err != nil {
			continue
		}
		orgs, emails = append(orgs, s.org), append(emails, s.EmailID)
		addresses, reasons = append(addresses, normalized(parsed)), append(reasons, string(s.Reason))
		details = append(details, scrub(s.Detail))
	}
	if orgs == nil {
		return nil
	}
	if _, err := tx.Exec(ctx, sqlSuppress, orgs, addresses, reasons, details, emails, SuppressionReasons); err != nil {
		return fmt.Errorf("suppress addresses: %w", err)
	}
	return nil
}

// suppressionOf is why an event of a provider suppresses its recipient; empty:
// it does not.
func (c *Client) suppressionOf(event providers.Event) SuppressionReason {
	var reason SuppressionReason
	switch {
	case event.Type == providers.EventBounced && event.Permanent:
		reason = SuppressionHardBounce
	case event.Type == providers.EventComplained:
		reason = SuppressionComplaint
	case event.Type == providers.EventUnsubscribed:
		reason = SuppressionUnsubscribe
	}
	if !slices.Contains(c.cfg.SuppressOn, reason) {
		return ""
	}
	return reason
}

// ErrNotSuppressed means that the org has not suppressed the address.
var ErrNotSuppressed = errors.New("the address is not suppressed")

const suppressionColumnsSQL = `
    s.address, s.reason, coalesce(s.detail, ''),
    coalesce(s.email_id, '00000000-0000-0000-0000-000000000000'), s.created_at`

const sqlGetSuppression = `
SELECT ` + suppressionColumnsSQL + ` FROM outbox.suppressions s WHERE s.org_id = $1 AND s.address = $2`

// Suppress keeps an org from sending to an address and returns what holds by
// then: an address that is suppressed for a stronger reason stays so. No attempt
// that begins after it returns sends to the address. Its error may be a
// *[ValidationError].
func (c *Client) Suppress(ctx context.Context, org uuid.UUID, s Suppression) (*Suppression, error) {
	var errs fieldErrors
	parsed, err := parseAddress(s.Address)
	switch {
	case s.Address == "":
		errs.add("address", "is required")
	case err != nil:
		errs.add("address", "%v", err)
	}
	if !slices.Contains(SuppressionReasons, s.Reason) {
		errs.add("reason", "must be hard_bounce, manual, unsubscribe or complaint")
	}
	if err := errs.err(); err != nil {
		return nil, err
	}
	stored := new(Suppression)
	err = c.as(org).Begin(ctx, func(tx pgx.Tx) error {
		if err := suppressTx(ctx, tx, []suppression{{org, s}}); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sqlGetSuppression, org, normalized(parsed))
		if err != nil {
			return err
		}
		stored, err = pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[Suppression])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("suppress address: %w", err)
	}
	return stored, nil
}

const sqlUnsuppress = `DELETE FROM outbox.suppressions WHERE org_id = $1 AND address = $2`

// Unsuppress lets an org send to an address again, or returns
// [ErrNotSuppressed].
func (c *Client) Unsuppress(ctx context.Context, org uuid.UUID, address string) error {
	parsed, err := parseAddress(address)
	if err != nil {
		return ErrNotSuppressed
	}
	tag, err := c.as(org).Exec(ctx, sqlUnsuppress, org, normalized(parsed))
	if err != nil {
		return fmt.Errorf("unsuppress address: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrNotSuppressed
	}
	return nil
}

// SuppressionQuery selects an org's suppressions.
type SuppressionQuery struct {
	Org uuid.UUID
	// Limit is how many to return at most.
	Limit int
	// After and Before are addresses to page from. At most one is set; it need
	// not be suppressed any more.
	After, Before string
	// Address selects this one; empty: all.
	Address string
}

// sqlListSuppressions and sqlListSuppressionsBefore page by the primary key.
const (
	sqlListSuppressions = `
SELECT ` + suppressionColumnsSQL + ` FROM outbox.suppressions s
WHERE s.org_id = $1 AND s.address > $2 AND ($3 = '' OR s.address = $3) ORDER BY s.address LIMIT $4`

	sqlListSuppressionsBefore = `
SELECT ` + suppressionColumnsSQL + ` FROM outbox.suppressions s
WHERE s.org_id = $1 AND s.address < $2 AND ($3 = '' OR s.address = $3) ORDER BY s.address DESC LIMIT $4`
)

// Suppressions returns an org's suppressions in the order of the bytes of their
// addresses, and whether there are more in the direction of paging.
func (c *Client) Suppressions(ctx context.Context, q SuppressionQuery) (list []Suppression, more bool, err error) {
	sql, from := sqlListSuppressions, searchedAddress(q.After)
	if q.Before != "" {
		sql, from = sqlListSuppressionsBefore, searchedAddress(q.Before)
	}
	err = c.as(q.Org).Query(ctx, collect(&list, pgx.RowToStructByPos[Suppression]),
		sql, q.Org, from, searchedAddress(q.Address), q.Limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list suppressions: %w", err)
	}
	if more = len(list) > q.Limit; more {
		list = list[:q.Limit]
	}
	if q.Before != "" {
		slices.Reverse(list)
	}
	return list, more, nil
}

// OrgSuppression is a suppression of an org, for operators.
type OrgSuppression struct {
	Org     uuid.UUID
	OrgName string
	Suppression
}

const sqlFindSuppressions = `
SELECT o.id, o.name, ` + suppressionColumnsSQL + `
FROM outbox.orgs o JOIN outbox.suppressions s ON s.org_id = o.id AND s.address = $1
ORDER BY o.name`

// FindSuppressions returns an address's suppressions in all orgs, by the orgs'
// names.
func (c *Client) FindSuppressions(ctx context.Context, address string) (list []OrgSuppression, err error) {
	err = AcrossOrgs(c.pool).Query(ctx, collect(&list, func(row pgx.CollectableRow) (s OrgSuppression, err error) {
		return s, row.Scan(&s.Org, &s.OrgName, &s.Address, &s.Reason, &s.Detail, &s.EmailID, &s.CreatedAt)
	}), sqlFindSuppressions, searchedAddress(address))
	if err != nil {
		return nil, fmt.Errorf("find suppressions: %w", err)
	}
	return list, nil
}

// searchedAddress normalises an address to search by. What is none finds nothing.
func searchedAddress(address string) string {
	if parsed, err := parseAddress(address); err == nil {
		return normalized(parsed)
	}
	return strings.ToLower(address)
}
