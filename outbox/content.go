package outbox

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// envelope is what the sealed part of that name holds; the parts are described in
// migration 13. Empty fields are left out, as the tables have NULL for them.
type envelope struct {
	From       string            `json:"from"`
	To         []string          `json:"to,omitempty"`
	Cc         []string          `json:"cc,omitempty"`
	Bcc        []string          `json:"bcc,omitempty"`
	ReplyTo    []string          `json:"reply_to,omitempty"`
	Subject    string            `json:"subject"`
	Headers    map[string]string `json:"headers,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Recipients []string          `json:"recipients,omitempty"`
}

// emailKey seals the parts of one email.
type emailKey struct {
	*sealKey
	org, email uuid.UUID
}

// of returns the key for an email; k is not nil.
func (k *sealKey) of(org, email uuid.UUID) emailKey { return emailKey{k, org, email} }

func (k emailKey) envelope(m *Message, recipients []string) ([]byte, error) {
	plain, err := json.Marshal(envelope{
		From: m.From, To: m.To, Cc: m.Cc, Bcc: m.Bcc, ReplyTo: m.ReplyTo, Subject: m.Subject,
		Headers: m.Headers, Metadata: m.Metadata, Recipients: recipients,
	})
	if err != nil {
		return nil, fmt.Errorf("seal email: %w", err)
	}
	return k.seal(place{k.org, k.email, partEnvelope, 0}, plain), nil
}

func (k emailKey) body(m *Message) []byte {
	return k.seal(place{k.org, k.email, partBody, 0}, pack([]byte(m.HTML), []byte(m.Text)))
}

func (k emailKey) attachment(position int, a Attachment) []byte {
	return k.seal(place{k.org, k.email, partAttachment, position},
		pack([]byte(a.Filename), []byte(a.ContentType), []byte(a.ContentID), a.Content))
}

func (k emailKey) suppressed(addresses []string) []byte {
	fields := make([][]byte, len(addresses))
	for i, address := range addresses {
		fields[i] = []byte(address)
	}
	return k.seal(place{k.org, k.email, partSuppressed, 0}, pack(fields...))
}

// sealedEmail is what of an email is sealed, as the tables have it. An empty key id:
// it is in clear.
type sealedEmail struct {
	keyID           string
	envelope, body  []byte // a nil body was not read
	suppressedKeyID string
	suppressed      []byte
}

// sealedColumnsSQL is what a sealedEmail is scanned from, but for the body.
const sealedColumnsSQL = `coalesce(c.key_id, ''), c.sealed, coalesce(c.suppressed_key_id, ''), c.sealed_suppressed`

func (s *sealedEmail) columns() []any {
	return []any{&s.keyID, &s.envelope, &s.suppressedKeyID, &s.suppressed}
}

// open completes an email that is sealed, but for attachments, and returns its
// recipients. It leaves alone what is in clear. Errors may be a *[SealError].
func (s *sealedEmail) open(r *KeyRing, e *Email) (recipients []string, err error) {
	if s.keyID == "" {
		return nil, nil
	}
	content, err := s.openEnvelope(r, e.Org, e.ID)
	if err != nil {
		return nil, err
	}
	m := &e.Message
	m.From, m.To, m.Cc, m.Bcc, m.ReplyTo = content.From, content.To, content.Cc, content.Bcc, content.ReplyTo
	m.Subject, m.Headers, m.Metadata = content.Subject, content.Headers, content.Metadata
	if s.body != nil {
		if m.HTML, m.Text, err = s.openBody(r, e.Org, e.ID); err != nil {
			return nil, err
		}
	}
	if s.suppressedKeyID != "" {
		e.SuppressedRecipients, err = s.openSuppressed(r, e.Org, e.ID)
	}
	return content.Recipients, err
}

func (s *sealedEmail) openEnvelope(r *KeyRing, org, email uuid.UUID) (content envelope, err error) {
	plain, err := r.open(s.keyID, place{org, email, partEnvelope, 0}, s.envelope)
	if err != nil {
		return content, err
	}
	if json.Unmarshal(plain, &content) != nil {
		return content, errPacked
	}
	return content, nil
}

func (s *sealedEmail) openBody(r *KeyRing, org, email uuid.UUID) (html, text string, err error) {
	plain, err := r.open(s.keyID, place{org, email, partBody, 0}, s.body)
	if err != nil {
		return "", "", err
	}
	var h, t []byte
	err = unpack(plain, &h, &t)
	return string(h), string(t), err
}

func (s *sealedEmail) openSuppressed(r *KeyRing, org, email uuid.UUID) ([]string, error) {
	plain, err := r.open(s.suppressedKeyID, place{org, email, partSuppressed, 0}, s.suppressed)
	if err != nil {
		return nil, err
	}
	return unpackAll(plain)
}

// storedAttachment is an attachment as the table has it.
type storedAttachment struct {
	Email    uuid.UUID
	Position int16
	Attachment
	KeyID  string
	Sealed []byte
}

// attachmentColumnsSQL is what a storedAttachment is scanned from.
const attachmentColumnsSQL = `a.email_id, a.position, coalesce(a.filename, ''), coalesce(a.content_type, ''),
    coalesce(a.content_id, ''), a.content, coalesce(a.key_id, ''), a.sealed`

func (a *storedAttachment) columns() []any {
	return []any{&a.Email, &a.Position, &a.Filename, &a.ContentType, &a.ContentID, &a.Content, &a.KeyID, &a.Sealed}
}

func scanAttachment(row pgx.CollectableRow) (a storedAttachment, err error) {
	return a, row.Scan(a.columns()...)
}

func openAttachments(r *KeyRing, org uuid.UUID, stored []storedAttachment) (list []Attachment, err error) {
	for _, s := range stored {
		a, err := s.open(r, org)
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

// open returns the attachment of an email of the org.
func (a *storedAttachment) open(r *KeyRing, org uuid.UUID) (Attachment, error) {
	if a.KeyID == "" {
		return a.Attachment, nil
	}
	plain, err := r.open(a.KeyID, place{org, a.Email, partAttachment, int(a.Position)}, a.Sealed)
	if err != nil {
		return Attachment{}, err
	}
	var name, kind, id, content []byte
	err = unpack(plain, &name, &kind, &id, &content)
	return Attachment{Filename: string(name), ContentType: string(kind), ContentID: string(id), Content: content}, err
}
