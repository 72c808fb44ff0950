package outbox

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/providers"
)

// Recipients that the org does not send to are left out of an email when an
// attempt begins; the others get it. sqlBegin is what makes that certain: it
// refuses if one of those that are left was suppressed in between.

// leaveOut takes recipients out of a message and returns their addresses. Who is
// out depends on the address in its normal form.
//
// Providers want somebody in To. If nobody is left there, the first of Cc moves
// up, whom everybody sees anyway, or a blind recipient who is the only one left.
// Of several blind ones none may be shown to the others, so then nobody is left
// in To, and the email cannot be sent.
func leaveOut(m *providers.Message, out func(address string) bool) (left []string) {
	for _, list := range []*[]providers.Address{&m.To, &m.Cc, &m.Bcc} {
		*list = slices.DeleteFunc(*list, func(a providers.Address) bool {
			bare := normalized(a)
			if !out(bare) {
				return false
			}
			left = append(left, bare)
			return true
		})
	}
	switch {
	case len(m.To) > 0:
	case len(m.Cc) > 0:
		m.To, m.Cc = m.Cc[:1], m.Cc[1:]
	case len(m.Bcc) == 1:
		m.To, m.Bcc = m.Bcc, nil
	}
	return left
}

func (d *delivery) isSuppressed(address string) bool {
	_, suppressed := d.suppressed[address]
	return suppressed
}

// wasLeftOut says it of the open attempt.
func (d *delivery) wasLeftOut(address string) bool {
	return slices.Contains(d.SuppressedRecipients, address)
}

// leftOut is who is left out, as the table has it: in clear, or sealed like the rest
// of the email. The zero value: the same as by the attempt before.
type leftOut struct {
	clear  *string // a Postgres array, empty if it is sealed
	keyID  *string
	sealed []byte
}

// newlyLeftOut compares who is left out with the attempt before.
func (d *deliverer) newlyLeftOut(e *delivery) (left leftOut, news []Suppression) {
	if slices.Equal(e.leftOut, e.SuppressedRecipients) {
		return leftOut{}, nil
	}
	for _, address := range e.leftOut {
		if !e.wasLeftOut(address) {
			news = append(news, Suppression{Address: address, Reason: e.suppressed[address]})
		}
	}
	if e.keyID == "" {
		array := textArray(e.leftOut)
		return leftOut{clear: &array}, news
	}
	none := textArray(nil)
	left.clear = &none
	if len(e.leftOut) > 0 {
		key := d.cfg.Keys.first()
		left.keyID, left.sealed = &key.id, key.of(e.Org, e.ID).suppressed(e.leftOut)
	}
	return left, news
}

func bareAddresses(list []providers.Address) []string {
	bare := make([]string, len(list))
	for i, a := range list {
		bare[i] = normalized(a)
	}
	return bare
}

// suppressedEvents are events that say who was left out, as columns.
type suppressedEvents struct {
	ids, emails         []uuid.UUID
	recipients, reasons []string
}

func (s *suppressedEvents) add(email uuid.UUID, list []Suppression) {
	for _, l := range list {
		s.ids, s.emails = append(s.ids, newID()), append(s.emails, email)
		s.recipients, s.reasons = append(s.recipients, l.Address), append(s.reasons, string(l.Reason))
	}
}

// endSuppressed ends an email that nobody is left of.
func (d *deliverer) endSuppressed(ctx context.Context, e *delivery, m providers.Message) error {
	var detail string
	if n := len(m.Bcc); n > 0 {
		detail = fmt.Sprintf("only %d blind recipients are left, and one of them would be shown to the others", n)
	}
	left, news := d.newlyLeftOut(e)
	var events suppressedEvents
	events.add(e.ID, news)
	reason := e.suppressionReason()
	_, err := d.pool.Exec(ctx, sqlEndSuppressed, e.ID, string(StatusSuppressed), reason, detail, e.attempts,
		left.clear, events.ids, events.emails, events.recipients, events.reasons, left.keyID, left.sealed)
	if err != nil {
		return fmt.Errorf("end email: %w", err)
	}
	d.log.InfoContext(ctx, "email ended", "email", e.ID, "status", StatusSuppressed, "reason", reason, "detail", detail)
	return nil
}

// suppressionReason is why the recipients are suppressed, where all are for the
// same reason.
func (d *delivery) suppressionReason() string {
	var reason SuppressionReason
	for _, r := range d.suppressed {
		if reason != "" && r != reason {
			return ""
		}
		reason = r
	}
	return string(reason)
}
