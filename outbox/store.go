package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// emailRow is an email as the tables take it.
type emailRow struct {
	org uuid.UUID
	*accepted
}

const sqlInsertEmails = `
INSERT INTO outbox.emails (id, org_id, status, priority, on_unknown, provider, created_at, scheduled_at, expires_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::smallint[], $5::text[], $6::text[],
    $7::timestamptz[], $8::timestamptz[], $9::timestamptz[])`

const sqlInsertContents = `
INSERT INTO outbox.email_contents (
    email_id, org_id, from_address, to_addresses, cc_addresses, bcc_addresses, reply_to,
    subject, html, text, headers, tags, metadata, recipients, list_unsubscribe, key_id, sealed, sealed_body)
SELECT email_id, org_id, from_address, to_addresses::jsonb, cc::jsonb, bcc::jsonb, reply_to::jsonb,
    subject, html, text, headers::jsonb, tags::jsonb, metadata::jsonb, recipients::text[], list_unsubscribe,
    key_id, sealed, sealed_body
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
    $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::boolean[],
    $16::text[], $17::bytea[], $18::bytea[])
    AS i (email_id, org_id, from_address, to_addresses, cc, bcc, reply_to,
        subject, html, text, headers, tags, metadata, recipients, list_unsubscribe, key_id, sealed, sealed_body)`

const sqlInsertAttachments = `
INSERT INTO outbox.attachments (email_id, position, filename, content_type, content_id, content, key_id, sealed)
SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::bytea[])`

// insertEmails writes emails, contents, terms and attachments in one round trip. A
// key seals what senders wrote; nil: it is stored in clear.
func insertEmails(ctx context.Context, tx pgx.Tx, key *sealKey, emails []emailRow) error {
	contents, err := contentColumns(key, emails)
	if err != nil {
		return err
	}
	var batch pgx.Batch
	batch.Queue(sqlInsertEmails, emailColumns(emails)...)
	batch.Queue(sqlInsertContents, contents...)
	batch.Queue(sqlInsertTerms, termColumns(key, emails)...)
	if attachments := attachmentColumns(key, emails); attachments != nil {
		batch.Queue(sqlInsertAttachments, attachments...)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("insert emails: %w", err)
	}
	return nil
}

func emailColumns(emails []emailRow) []any {
	n := len(emails)
	ids, orgs, statuses, priorities := make([]uuid.UUID, n), make([]uuid.UUID, n), make([]string, n), make([]int16, n)
	onUnknown, providers := make([]*string, n), make([]*string, n)
	created, scheduled, expires := make([]time.Time, n), make([]*time.Time, n), make([]*time.Time, n)
	for i, e := range emails {
		ids[i], orgs[i], statuses[i], priorities[i] = e.id, e.org, string(e.status), e.message.Priority.rank()
		onUnknown[i], providers[i] = nullable(string(e.message.OnUnknown)), nullable(e.message.Provider)
		created[i] = submittedAt(e.id)
		scheduled[i], expires[i] = nullable(e.message.ScheduledAt), nullable(e.message.ExpiresAt)
	}
	return []any{ids, orgs, statuses, priorities, onUnknown, providers, created, scheduled, expires}
}

func contentColumns(key *sealKey, emails []emailRow) ([]any, error) {
	n := len(emails)
	ids, orgs := make([]uuid.UUID, n), make([]uuid.UUID, n)
	tags, unsubscribe := make([]*string, n), make([]bool, n)
	plain, sealed := newClearColumns(n), newSealedColumns(n)
	for i, e := range emails {
		ids[i], orgs[i], unsubscribe[i] = e.id, e.org, e.message.ListUnsubscribe
		var err error
		if tags[i], err = document(e.message.Tags); err != nil {
			return nil, err
		}
		if key == nil {
			err = plain.set(i, e)
		} else {
			err = sealed.set(i, key, e)
		}
		if err != nil {
			return nil, err
		}
	}
	return []any{
		ids, orgs, plain.from, plain.documents[0], plain.documents[1], plain.documents[2], plain.documents[3],
		plain.subjects, plain.html, plain.text, plain.documents[4], tags, plain.documents[5], plain.recipients, unsubscribe,
		sealed.keys, sealed.envelopes, sealed.bodies,
	}, nil
}

// clearColumns are what senders wrote, in clear.
type clearColumns struct {
	from, subjects, html, text, recipients []*string
	documents                              [6][]*string // to, cc, bcc, reply_to, headers, metadata
}

func newClearColumns(n int) *clearColumns {
	column := func() []*string { return make([]*string, n) }
	c := &clearColumns{from: column(), subjects: column(), html: column(), text: column(), recipients: column()}
	for i := range c.documents {
		c.documents[i] = column()
	}
	return c
}

func (c *clearColumns) set(i int, e emailRow) (err error) {
	m, recipients := e.message, textArray(e.recipients)
	c.from[i], c.subjects[i], c.recipients[i] = &m.From, &m.Subject, &recipients
	c.html[i], c.text[i] = nullable(m.HTML), nullable(m.Text)
	for column, value := range [...]any{m.To, m.Cc, m.Bcc, m.ReplyTo, m.Headers, m.Metadata} {
		if c.documents[column][i], err = document(value); err != nil {
			return err
		}
	}
	return nil
}

// sealedColumns are the same, sealed.
type sealedColumns struct {
	keys              []*string
	envelopes, bodies [][]byte
}

func newSealedColumns(n int) *sealedColumns {
	return &sealedColumns{make([]*string, n), make([][]byte, n), make([][]byte, n)}
}

func (c *sealedColumns) set(i int, key *sealKey, e emailRow) (err error) {
	k := key.of(e.org, e.id)
	c.keys[i], c.bodies[i] = &key.id, k.body(e.message)
	c.envelopes[i], err = k.envelope(e.message, e.recipients)
	return err
}

func attachmentColumns(key *sealKey, emails []emailRow) []any {
	var ids []uuid.UUID
	var positions []int16
	var names, types, contentIDs, keys []*string
	var contents, sealed [][]byte
	for _, e := range emails {
		for position, a := range e.message.Attachments {
			ids, positions = append(ids, e.id), append(positions, int16(position))
			if key != nil {
				names, types, contentIDs, contents = append(names, nil), append(types, nil), append(contentIDs, nil), append(contents, nil)
				keys, sealed = append(keys, &key.id), append(sealed, key.of(e.org, e.id).attachment(position, a))
				continue
			}
			names, types, contentIDs = append(names, &a.Filename), append(types, nullable(a.ContentType)), append(contentIDs, nullable(a.ContentID))
			content := a.Content
			if content == nil { // would be NULL
				content = []byte{}
			}
			contents = append(contents, content)
			keys, sealed = append(keys, nil), append(sealed, nil)
		}
	}
	if ids == nil {
		return nil
	}
	return []any{ids, positions, names, types, contentIDs, contents, keys, sealed}
}

// nullable stores a zero value as NULL: absent and empty are the same thing.
func nullable[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// document is a list or an object as JSON; nil: it is empty.
func document(value any) (*string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("store email: %w", err)
	}
	switch s := string(text); s {
	case "null", "[]", "{}":
		return nil, nil
	default:
		return &s, nil
	}
}

// textArray and uuidArray write Postgres array literals, for arrays of
// different lengths that travel as rows of one array parameter.
func textArray(values []string) string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = `"` + quote.Replace(v) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

func uuidArray(ids []uuid.UUID) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	return textArray(texts)
}
