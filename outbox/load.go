package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// delivery is an email as a worker sees it before it decides what to do.
type delivery struct {
	Email
	// now is the database's time. Decisions about due times use it, so that a
	// worker whose clock is off by minutes decides like the others.
	now      time.Time
	attempts int16
	// open is the attempt that was begun and not finished; nil: there is none.
	open *openAttempt
	// orgPolicy is the org's default for OnUnknown.
	orgPolicy Policy
	// recipients are what the email can be searched by.
	recipients []string
	// keyID is the key that the content is sealed under; empty: it is in clear.
	keyID string
	// unreadable is why the content is not here; nil: it is.
	unreadable *SealError
	// suppressed are those of recipients that the org does not send to by now.
	suppressed map[string]SuppressionReason
	// leftOut are those that the attempt to be begun leaves out.
	leftOut []string
	// secret seals the link to unsubscribe; nil: the email has none.
	secret linkSecret
	// held is why the email waits for a person, as its reason; empty: it does not.
	held string
	// startedAt is when the email may have been sent at the earliest, by what a
	// person did; zero: nobody did anything.
	startedAt time.Time
	// orphaned says that the org is being deleted.
	orphaned bool
	// lane is the email's place where several wait for a provider.
	lane int
}

// openAttempt is an attempt whose outcome is not recorded.
type openAttempt struct {
	Email       uuid.UUID
	Number      int16
	Provider    string
	Key         uuid.UUID
	Worker      string
	BeganAt     time.Time
	Deadline    time.Time
	InDoubtAt   *time.Time // nil: its worker may be sending
	PayloadHash []byte
	Reported    bool // the provider has told of it, so it has the message
}

// sharedBody is how many bytes of text travel with other emails. What is longer is
// loaded by itself: nobody waits for it, and a time-out is about it alone.
const sharedBody = "100000"

const sqlLoadEmails = `
SELECT ` + emailColumnsSQL + `, CASE WHEN r.is_large THEN '' ELSE coalesce(c.html, '') END,
    CASE WHEN r.is_large THEN '' ELSE coalesce(c.text, '') END, CASE WHEN NOT r.is_large THEN c.sealed_body END,
    r.is_large OR EXISTS (SELECT FROM outbox.attachments a WHERE a.email_id = e.id),
    e.attempts, now(), coalesce(o.on_unknown, ''), c.recipients,
    (SELECT jsonb_object_agg(s.address, s.reason) FROM outbox.suppressions s
        WHERE s.org_id = e.org_id AND s.address = ANY (c.recipients)),
    CASE WHEN c.list_unsubscribe THEN (
        SELECT int2send(s.id) || s.secret FROM outbox.unsubscribe_secrets s
        WHERE s.used_from <= coalesce((` + openSinceSQL + `), now()) ORDER BY s.used_from DESC, s.id DESC LIMIT 1) END,
    CASE WHEN ` + heldSQL + ` THEN '` + reasonRestored + `' WHEN o.paused_at IS NOT NULL THEN '` + reasonOrgPaused + `' ELSE '' END,
    greatest(e.released_at, o.resumed_at), coalesce(o.deleted_at IS NOT NULL, false)
FROM outbox.emails e LEFT JOIN outbox.email_contents c ON c.email_id = e.id LEFT JOIN outbox.orgs o ON o.id = e.org_id,
    LATERAL (SELECT coalesce(octet_length(c.html), 0) + coalesce(octet_length(c.text), 0)
        + coalesce(octet_length(c.sealed_body), 0) > ` + sharedBody + `) AS r (is_large)
WHERE e.id = ANY ($1::uuid[])`

// openSinceSQL is when the open attempt began. It is replayed with the secret of
// that time.
const openSinceSQL = `SELECT a.began_at FROM outbox.attempts a WHERE a.email_id = e.id AND a.stage = 'sending'`

const sqlLoadOpenAttempts = `
SELECT a.email_id, a.number, a.provider, a.provider_key, a.worker, a.began_at, a.deadline, a.in_doubt_at, a.payload_sha256,
    EXISTS (SELECT FROM outbox.events v WHERE v.email_id = a.email_id AND v.attempt = a.number AND v.provider = a.provider)
FROM outbox.attempts a WHERE a.email_id = ANY ($1::uuid[]) AND a.stage = 'sending'`

// sqlLoadBody reads what is sealed with the body anew: it may be under another key by
// now.
const sqlLoadBody = `
SELECT coalesce(c.html, ''), coalesce(c.text, ''), c.sealed_body, ` + sealedColumnsSQL + `
FROM outbox.email_contents c WHERE c.email_id = $1`

const sqlLoadAttachments = `
SELECT ` + attachmentColumnsSQL + ` FROM outbox.attachments a WHERE a.email_id = $1 ORDER BY a.position`

// loaded is an email as it is stored.
type loaded struct {
	delivery
	sealed      sealedEmail
	attachments []storedAttachment
	// isPart says that there are attachments or a long text, and they are not here.
	isPart bool
}

// load reads emails in one round trip, without what is large. Those that do not exist
// are not in the answer.
func load(ctx context.Context, pool *pgxpool.Pool, ids []uuid.UUID) (map[uuid.UUID]*loaded, error) {
	found := make(map[uuid.UUID]*loaded, len(ids))
	var batch pgx.Batch
	batch.Queue(sqlStablePlans)
	batch.Queue(sqlLoadEmails, ids).Query(func(rows pgx.Rows) error {
		emails, err := pgx.CollectRows(rows, scanLoaded)
		for _, l := range emails {
			found[l.ID] = l
		}
		return err
	})
	batch.Queue(sqlLoadOpenAttempts, ids).Query(func(rows pgx.Rows) error {
		open, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[openAttempt])
		for _, a := range open {
			if l := found[a.Email]; l != nil {
				l.open = a
			}
		}
		return err
	})
	if err := pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("load emails: %w", err)
	}
	return found, nil
}

func scanLoaded(row pgx.CollectableRow) (*loaded, error) {
	l := new(loaded)
	m := &l.Message
	var body []byte
	var started *time.Time
	sealed, err := scanEmail(row, &l.Email, &m.HTML, &m.Text, &body, &l.isPart, &l.attempts, &l.now, &l.orgPolicy, &l.recipients,
		&l.suppressed, (*[]byte)(&l.secret), &l.held, &started, &l.orphaned)
	l.startedAt = timeOf(started)
	l.sealed, l.sealed.body = sealed, body
	return l, err
}

// complete loads what is large and opens what is sealed, with a round trip for each
// that there is.
func (l *loaded) complete(ctx context.Context, pool *pgxpool.Pool, keys *KeyRing) (*delivery, error) {
	d := &l.delivery
	err := l.loadRest(ctx, pool)
	if err == nil {
		err = d.unseal(keys, &l.sealed, l.attachments)
	}
	if err == nil && d.keyID != "" {
		err = pool.QueryRow(ctx, sqlLoadSuppressed, d.Org, d.recipients).Scan(&d.suppressed)
	}
	if errors.As(err, &d.unreadable) {
		return d, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load email: %w", err)
	}
	return d, nil
}

func (l *loaded) loadRest(ctx context.Context, pool *pgxpool.Pool) error {
	if !l.isPart {
		return nil
	}
	var batch pgx.Batch
	batch.Queue(sqlLoadBody, l.ID).QueryRow(func(row pgx.Row) error {
		columns := []any{&l.Message.HTML, &l.Message.Text, &l.sealed.body}
		err := row.Scan(append(columns, l.sealed.columns()...)...)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // purged meanwhile: nothing will be sent
		}
		return err
	})
	batch.Queue(sqlLoadAttachments, l.ID).Query(func(rows pgx.Rows) (err error) {
		l.attachments, err = pgx.CollectRows(rows, scanAttachment)
		return err
	})
	return pool.SendBatch(ctx, &batch).Close()
}

// sqlLoadSuppressed is for a sealed email, whose recipients Postgres cannot read.
const sqlLoadSuppressed = `
SELECT jsonb_object_agg(s.address, s.reason) FROM outbox.suppressions s
WHERE s.org_id = $1 AND s.address = ANY ($2::text[])`

// unseal completes an email with its attachments, and with what of it is sealed.
func (d *delivery) unseal(keys *KeyRing, sealed *sealedEmail, attachments []storedAttachment) (err error) {
	if d.keyID = sealed.keyID; d.keyID != "" {
		if d.recipients, err = sealed.open(keys, &d.Email); err != nil {
			return err
		}
	}
	d.Message.Attachments, err = openAttachments(keys, d.Org, attachments)
	return err
}

const (
	sqlCorrectRecipients = `UPDATE outbox.email_contents SET recipients = $2 WHERE email_id = $1`
	sqlForgetTerms       = `SELECT outbox.forget_terms($1::uuid[])`
	// sqlCorrectTerms finds the content gone if it was purged since it was loaded.
	sqlCorrectTerms = sqlInsertTerms + ` AS i (email_id, term)
WHERE EXISTS (SELECT FROM outbox.email_contents c WHERE c.email_id = i.email_id)`
)

// correctRecipients completes what came through SQL and is in clear. What is sealed
// was completed then.
func (d *deliverer) correctRecipients(ctx context.Context, e *delivery) (corrected bool, err error) {
	found := e.Message.corrected(e.recipients)
	if e.attempts > 0 || e.keyID != "" || slices.Equal(found, e.recipients) {
		return false, nil
	}
	var batch pgx.Batch
	batch.Queue(sqlCorrectRecipients, e.ID, found)
	batch.Queue(sqlForgetTerms, []uuid.UUID{e.ID})
	batch.Queue(sqlCorrectTerms, termColumns(nil, []emailRow{{e.Org, &accepted{id: e.ID, message: &e.Message, recipients: found}}})...)
	if err := d.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return false, fmt.Errorf("correct recipients: %w", err)
	}
	return true, nil
}

// corrected completes the recipients of a message that came through SQL, which can
// neither write a domain in ASCII nor letters that are not ASCII in lower case: until
// then the email is not found by such an address. One that is about to be refused
// stays as it is, since its bad addresses are worth finding too.
func (m *Message) corrected(recipients []string) []string {
	if !hasForeign(slices.Concat(m.To, m.Cc, m.Bcc)) || m.Validate() != nil {
		return recipients
	}
	return m.searchable()
}

// hasForeign reports whether there is a letter that is not ASCII.
func hasForeign(addresses []string) bool {
	return slices.ContainsFunc(addresses, func(address string) bool {
		return strings.ContainsFunc(address, func(r rune) bool { return r >= utf8.RuneSelf })
	})
}

// due is when the next attempt may begin.
func (d *delivery) due() time.Time {
	if d.NextAttemptAt.After(d.Message.ScheduledAt) {
		return d.NextAttemptAt
	}
	return d.Message.ScheduledAt
}

func (d *delivery) expired() bool {
	return !d.Message.ExpiresAt.IsZero() && !d.Message.ExpiresAt.After(d.now)
}

// giveUpAt is when an email that nobody accepted fails.
func (d *delivery) giveUpAt(after time.Duration) time.Time {
	start := d.CreatedAt
	for _, later := range []time.Time{d.Message.ScheduledAt, d.startedAt} {
		if later.After(start) {
			start = later
		}
	}
	return start.Add(after)
}
