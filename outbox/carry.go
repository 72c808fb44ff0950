package outbox

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// render returns the bytes for a provider, or why it cannot carry the message.
func render(p providers.Provider, r providers.Request) ([]byte, *providers.Error) {
	limits := p.Capabilities()
	if n := len(r.Message.Recipients()); limits.MaxRecipients > 0 && n > limits.MaxRecipients {
		return nil, providers.Refuse("too_many_recipients", fmt.Sprintf("takes at most %d recipients, not %d", limits.MaxRecipients, n))
	}
	payload, err := p.Render(r)
	if err != nil {
		return nil, providers.AsError(err)
	}
	if limits.MaxBytes > 0 && len(payload) > limits.MaxBytes {
		return nil, providers.Refuse("too_large", fmt.Sprintf("takes at most %d bytes, the message has %d", limits.MaxBytes, len(payload)))
	}
	return payload, nil
}

// pinned returns the one of the providers that a message asks for, or all when
// it asks for none.
func pinned(list []providers.Provider, name string) ([]providers.Provider, error) {
	if name == "" {
		return list, nil
	}
	i := slices.IndexFunc(list, func(p providers.Provider) bool { return p.Name() == name })
	if i < 0 {
		return nil, &ValidationError{Fields: []FieldError{{
			Field: "provider", Message: fmt.Sprintf("%q is not configured; use one of %s", name, strings.Join(namesOf(list), ", ")),
		}}}
	}
	return list[i : i+1], nil
}

func namesOf(list []providers.Provider) []string {
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = p.Name()
	}
	return names
}

// foresight is what a client knows of the workers that will deliver.
type foresight struct {
	providers []providers.Provider // nil: nothing
	publicURL string
}

// carriable refuses a message that none of the providers can carry: the sender
// learns it from the answer, and not from an email that failed. It renders the
// message, so that no rule is written down a second time.
func (f foresight) carriable(m *Message, now time.Time) error {
	if m.ListUnsubscribe && f.publicURL == "" {
		return errNoPublicURL
	}
	if f.providers == nil {
		return nil
	}
	list, err := pinned(f.providers, m.Provider)
	if err != nil {
		return err
	}
	composed, err := m.parse()
	if err != nil {
		return err
	}
	if m.ListUnsubscribe {
		composed.Headers = append(composed.Headers, unsubscribeHeaders(f.publicURL, longestToken)...)
	}
	request := providers.Request{Key: newID().String(), Date: now, Message: composed}
	var errs fieldErrors
	for _, p := range list {
		_, refusal := render(p, request)
		if refusal == nil {
			return nil
		}
		errs.add(fieldOf(refusal.Code), "%s cannot carry it: %s", p.Name(), refusal.Detail)
	}
	return errs.err()
}

// fieldOf names the field of a message that a provider's refusal is about; the
// empty string: the whole.
func fieldOf(code string) string {
	for _, known := range refusedFields {
		if slices.ContainsFunc(known.words, func(word string) bool { return strings.Contains(code, word) }) {
			return known.field
		}
	}
	return ""
}

// refusedFields are the fields that codes of refusals speak of.
var refusedFields = []struct {
	field string
	words []string
}{
	{"to", []string{"recipient"}},
	{"subject", []string{"subject"}},
	{"headers", []string{"header"}},
	{"attachments", []string{"attachment", "content_type", "content_id", "filename"}},
	{"tags", []string{"tag"}},
}
