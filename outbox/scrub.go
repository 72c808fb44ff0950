package outbox

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	"github.com/outboxd/outboxd/internal/redact"
	"github.com/outboxd/outboxd/providers"
)

// maxDetail bounds, in bytes, what is kept of a text of others.
const maxDetail = 500

// scrub takes addresses out of a provider's text, which tends to quote them,
// and bounds it: job errors, logs and attempts outlive the email's content.
func scrub(text string) string {
	return plain(redact.Text(text), maxDetail)
}

// scrub takes out of a text also what the message says: its subject and text, the
// values of its headers and metadata, names of people and files.
func (m *Message) scrub(text string) string {
	var parts []string
	for _, part := range m.writtenParts() {
		if len(part) >= minQuote {
			parts = append(parts, part)
		}
	}
	// Of two that begin alike the longer one goes first, or its end would be left.
	slices.SortFunc(parts, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, part := range parts {
		text = strings.ReplaceAll(text, part, "(content)")
	}
	return scrub(text)
}

// minQuote is how long, in bytes, a part of a message has to be to be looked for:
// shorter ones are found within words and numbers that say nothing of it.
const minQuote = 4

func (m *Message) writtenParts() []string {
	parts := []string{m.Subject, m.Text, m.HTML}
	for _, addresses := range [][]string{{m.From}, m.To, m.Cc, m.Bcc, m.ReplyTo} {
		for _, address := range addresses {
			if name, _, ok := strings.Cut(address, "<"); ok {
				parts = append(parts, strings.Trim(name, ` "`))
			}
		}
	}
	for _, values := range []map[string]string{m.Headers, m.Metadata} {
		for _, value := range values {
			parts = append(parts, value)
		}
	}
	for _, a := range m.Attachments {
		parts = append(parts, a.Filename, string(a.Content))
	}
	return parts
}

// scrubError returns what an adapter said without what the message says; nil stays
// nil. What is stored and logged of it is made from this.
func (m *Message) scrubError(err error) error {
	if err == nil {
		return nil
	}
	e := *providers.AsError(err)
	e.Detail, e.Code = m.scrub(wordsOf(&e)), redact.Text(e.Code)
	return &e
}

// wordsOf is a failure in the provider's own words, or else in those of its cause.
func wordsOf(e *providers.Error) string {
	if e.Detail == "" && e.Err != nil {
		return e.Err.Error()
	}
	return e.Detail
}

// plain makes a provider's text one that the tables take, whatever it is: an
// outcome that could not be recorded would become a doubt.
func plain(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
