package outbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// webhookPayload is the body of a message: the members of Resend's, so that what
// reads those reads ours, then our own.
// (https://resend.com/docs/dashboard/webhooks/body-parameters)
type webhookPayload struct {
	Type      WebhookEvent `json:"type"`
	CreatedAt time.Time    `json:"created_at"`
	Data      webhookData  `json:"data"`
}

type webhookData struct {
	EmailID   uuid.UUID         `json:"email_id"`
	CreatedAt *time.Time        `json:"created_at"`
	MessageID *string           `json:"message_id"`
	From      string            `json:"from"`
	To        []string          `json:"to"`
	Subject   string            `json:"subject"`
	Tags      map[string]string `json:"tags"`
	Bounce    *webhookBounce    `json:"bounce,omitempty"`
	Click     *webhookClick     `json:"click,omitempty"`
	Failed    *webhookFailed    `json:"failed,omitempty"`

	Status            Status            `json:"status"`
	Reason            *string           `json:"reason"`
	ReasonDetail      *string           `json:"reason_detail"`
	Provider          *string           `json:"provider"`
	Recipient         *string           `json:"recipient"`
	Detail            *string           `json:"detail"`
	OccurredAt        time.Time         `json:"occurred_at"`
	PossibleDuplicate bool              `json:"possible_duplicate"`
	Metadata          map[string]string `json:"metadata"`
}

// webhookBounce has the words of Resend, who have them from Amazon SES: Permanent
// for an address that will never take mail, else Undetermined.
type webhookBounce struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	SubType string `json:"subType"`
}

type webhookClick struct {
	Link      string    `json:"link"`
	Timestamp time.Time `json:"timestamp"`
}

type webhookFailed struct {
	Reason string `json:"reason"`
}

// payloadSQL reads what a message is about: the email, its content unless that
// has been purged, the attempt that led to a status, or the provider's event.
const (
	payloadColumnsSQL = `
    m.type, m.created_at, m.email_id, m.reason, m.reason_detail, coalesce(e.status, ''), e.created_at,
    coalesce(e.possible_duplicate, false), coalesce(c.from_address, ''), c.to_addresses, coalesce(c.subject, ''),
    c.tags, c.metadata, coalesce(v.provider, a.provider), a.provider_message_id, v.recipient, v.detail,
    coalesce(v.occurred_at, m.created_at), coalesce(v.permanent, false),
    m.org_id, ` + sealedColumnsSQL
	payloadTablesSQL = `
    LEFT JOIN outbox.emails e ON e.id = m.email_id
    LEFT JOIN outbox.email_contents c ON c.email_id = m.email_id
    LEFT JOIN outbox.events v ON v.id = m.event_id
    LEFT JOIN LATERAL (
        SELECT t.provider, t.provider_message_id FROM outbox.attempts t
        WHERE t.email_id = m.email_id AND (m.attempt IS NULL OR t.number = m.attempt)
        ORDER BY t.stage = 'accepted' DESC, t.number DESC LIMIT 1) a ON true`
)

// payloadRow is what payloadColumnsSQL selects.
type payloadRow struct {
	payload            webhookPayload
	to, tags, metadata []byte
	permanent          bool // a bounce
	org                uuid.UUID
	sealed             sealedEmail
}

func (r *payloadRow) columns() []any {
	d := &r.payload.Data
	return append([]any{
		&r.payload.Type, &r.payload.CreatedAt, &d.EmailID, &d.Reason, &d.ReasonDetail, &d.Status, &d.CreatedAt,
		&d.PossibleDuplicate, &d.From, &r.to, &d.Subject,
		&r.tags, &r.metadata, &d.Provider, &d.MessageID, &d.Recipient, &d.Detail, &d.OccurredAt, &r.permanent,
		&r.org,
	}, r.sealed.columns()...)
}

// encode makes the payload. What is read again is encoded to the same bytes. Its
// error may be a *[SealError].
func (r *payloadRow) encode(keys *KeyRing) ([]byte, error) {
	p := &r.payload
	var m Message
	if err := m.scanDocuments(r.to, nil, nil, nil, nil, r.tags, r.metadata); err != nil {
		return nil, err
	}
	if r.sealed.keyID != "" {
		content, err := r.sealed.openEnvelope(keys, r.org, p.Data.EmailID)
		if err != nil {
			return nil, err
		}
		p.Data.From, m.To, p.Data.Subject, m.Metadata = content.From, content.To, content.Subject, content.Metadata
	}
	p.CreatedAt, p.Data.OccurredAt = p.CreatedAt.UTC(), p.Data.OccurredAt.UTC()
	if p.Data.CreatedAt != nil {
		*p.Data.CreatedAt = p.Data.CreatedAt.UTC()
	}
	p.Data.To, p.Data.Tags, p.Data.Metadata = m.To, map[string]string{}, m.Metadata
	if p.Data.To == nil {
		p.Data.To = []string{}
	}
	if p.Data.Metadata == nil {
		p.Data.Metadata = map[string]string{}
	}
	for _, tag := range m.Tags {
		p.Data.Tags[tag.Name] = tag.Value
	}
	p.Data.explain(p.Type, r.permanent)
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // an address in <> is no HTML here
	if err := encoder.Encode(p); err != nil {
		return nil, fmt.Errorf("encode webhook message: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// explain fills in what the type is about.
func (d *webhookData) explain(event WebhookEvent, permanent bool) {
	if d.Recipient != nil {
		d.To = []string{*d.Recipient} // those it concerns, as at Resend
	}
	switch event {
	case WebhookSent:
		d.Status = StatusSent
	case WebhookUnknown:
		d.Status = StatusUnknown
	case WebhookFailed:
		d.Status = StatusFailed
		d.Failed = &webhookFailed{Reason: textOf(d.Reason)}
	case WebhookBounced:
		d.Bounce = &webhookBounce{Message: textOf(d.Detail), Type: "Undetermined", SubType: "Undetermined"}
		if permanent {
			d.Bounce.Type, d.Bounce.SubType = "Permanent", "General"
		}
	case WebhookClicked:
		d.Click = &webhookClick{Link: textOf(d.Detail), Timestamp: d.OccurredAt}
	}
}

// textOf returns the empty string for none.
func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
