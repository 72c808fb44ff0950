package outbox

import (
	"fmt"
	"maps"
	"slices"

	"github.com/outboxd/outboxd/providers"
)

// compose checks the message and parses it. One that came through SQL is checked
// here for the first time in depth, so an error may be a [refusalError]. For the
// same email and secret the result is the same.
func (d *delivery) compose(publicURL string) (providers.Message, error) {
	m := &d.Message
	if err := m.Validate(); err != nil {
		return providers.Message{}, &refusalError{err}
	}
	out, err := m.parse()
	if err != nil {
		return providers.Message{}, &refusalError{err}
	}
	if !m.ListUnsubscribe {
		return out, nil
	}
	if publicURL == "" {
		return providers.Message{}, &refusalError{errNoPublicURL}
	}
	token, err := d.secret.seal(unsubscribing{d.Org, d.ID, normalized(out.To[0])})
	if err != nil {
		return providers.Message{}, err
	}
	out.Headers = append(out.Headers, unsubscribeHeaders(publicURL, token)...)
	return out, nil
}

// parse brings a valid message into the form that adapters render.
//
// An address in several lists stays in the first of To, Cc and Bcc: providers
// refuse the whole message otherwise, or send it twice.
func (m *Message) parse() (providers.Message, error) {
	out := providers.Message{Subject: m.Subject, HTML: m.HTML, Text: m.Text}
	var err error
	if out.From, err = parseAddress(m.From); err != nil {
		return providers.Message{}, fmt.Errorf("from: %w", err)
	}
	seen := map[string]bool{}
	for _, list := range []struct {
		from []string
		to   *[]providers.Address
		seen map[string]bool
	}{{m.To, &out.To, seen}, {m.Cc, &out.Cc, seen}, {m.Bcc, &out.Bcc, seen}, {m.ReplyTo, &out.ReplyTo, map[string]bool{}}} {
		if *list.to, err = parseList(list.from, list.seen); err != nil {
			return providers.Message{}, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		out.Headers = append(out.Headers, providers.Header{Name: name, Value: m.Headers[name]})
	}
	for _, a := range m.Attachments {
		out.Attachments = append(out.Attachments, providers.Attachment(a))
	}
	for _, t := range m.Tags {
		out.Tags = append(out.Tags, providers.Tag(t))
	}
	return out, nil
}

// parseList leaves out addresses that were seen, in any case of letters.
func parseList(addresses []string, seen map[string]bool) ([]providers.Address, error) {
	var out []providers.Address
	for _, s := range addresses {
		address, err := parseAddress(s)
		if err != nil {
			return nil, err
		}
		if bare := normalized(address); !seen[bare] {
			seen[bare] = true
			out = append(out, address)
		}
	}
	return out, nil
}

// RepeatedRecipients are those of To, Cc and Bcc that get no mail of their own
// because the same address comes before them, in any case of letters.
func (m *Message) RepeatedRecipients() []string {
	seen := map[string]bool{}
	var repeated []string
	for _, s := range slices.Concat(m.To, m.Cc, m.Bcc) {
		address, err := parseAddress(s)
		if err != nil {
			continue // such an email fails, with the address for a reason
		}
		if bare := normalized(address); seen[bare] {
			repeated = append(repeated, s)
		} else {
			seen[bare] = true
		}
	}
	return repeated
}
