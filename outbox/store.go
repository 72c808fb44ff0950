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
    subject, html, text, headers, tags, metadata, recipients, list_unsubscribe)
SELECT email_id, org_id, from_address, to_addresses::jsonb, cc::jsonb, bcc::jsonb, reply_to::jsonb,
    subject, html, text, headers::jsonb, tags::jsonb, metadata::jsonb, recipients::text[], list_unsubscribe
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
    $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::boolean[])
    AS i (email_id, org_id, from_address, to_addresses, cc, bcc, reply_to,
        subject, html, text, headers, tags, metadata, recipients, list_unsubscribe)`

const sqlInsertAttachments = `
INSERT INTO outbox.attachments (email_id, position, filename, content_type, content_id, content)
SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::text[], $5::text[], $6::bytea[])`

// insertEmails writes emails, contents, terms and attachments in one round trip.
func insertEmails(ctx context.Context, tx pgx.Tx, emails []emailRow) error {
	contents, err := contentColumns(emails)
	if err != nil {
		return err
	}
	var batch pgx.Batch
	batch.Queue(sqlInsertEmails, emailColumns(emails)...)
	batch.Queue(sqlInsertContents, contents...)
	batch.Queue(sqlInsertTerms, termColumns(emails)...)
	if attachments := attachmentColumns(emails); attachments != nil {
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

func contentColumns(emails []emailRow) ([]any, error) {
	n := len(emails)
	ids, orgs, from, subjects := make([]uuid.UUID, n), make([]uuid.UUID, n), make([]string, n), make([]string, n)
	html, text, recipients := make([]*string, n), make([]*string, n), make([]string, n)
	unsubscribe := make([]bool, n)
	const lists = 7 // to, cc, bcc, reply_to, headers, tags, metadata
	var documents [lists][]*string
	for column := range documents {
		documents[column] = make([]*string, n)
	}
	for i, e := range emails {
		m := e.message
		ids[i], orgs[i], from[i], subjects[i] = e.id, e.org, m.From, m.Subject
		html[i], text[i], recipients[i] = nullable(m.HTML), nullable(m.Text), textArray(e.recipients)
		unsubscribe[i] = m.ListUnsubscribe
		for column, value := range [lists]any{m.To, m.Cc, m.Bcc, m.ReplyTo, m.Headers, m.Tags, m.Metadata} {
			document, err := json.Marshal(value)
			if err != nil {
				return nil, fmt.Errorf("store email: %w", err)
			}
			documents[column][i] = nullableDocument(document)
		}
	}
	return []any{
		ids, orgs, from, documents[0], documents[1], documents[2], documents[3],
		subjects, html, text, documents[4], documents[5], documents[6], recipients, unsubscribe,
	}, nil
}

func attachmentColumns(emails []emailRow) []any {
	var ids []uuid.UUID
	var positions []int16
	var names []string
	var types, contentIDs []*string
	var contents [][]byte
	for _, e := range emails {
		for position, a := range e.message.Attachments {
			ids, positions = append(ids, e.id), append(positions, int16(position))
			names, types = append(names, a.Filename), append(types, nullable(a.ContentType))
			contentIDs = append(contentIDs, nullable(a.ContentID))
			content := a.Content
			if content == nil { // would be NULL
				content = []byte{}
			}
			contents = append(contents, content)
		}
	}
	if ids == nil {
		return nil
	}
	return []any{ids, positions, names, types, contentIDs, contents}
}

// nullable stores a zero value as NULL: absent and empty are the same thing.
func nullable[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func nullableDocument(document []byte) *string {
	switch s := string(document); s {
	case "null", "[]", "{}":
		return nil
	default:
		return &s
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
