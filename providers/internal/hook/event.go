package hook

import (
	"encoding/json"
	"net/mail"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/outboxd/outboxd/providers"
)

const (
	// MaxEvents bounds the events of one request. Providers post a few hundred.
	MaxEvents = 10_000

	// maxDetail bounds [providers.Event].Detail, in bytes.
	maxDetail = 500

	// maxAddress is more than an address may have (RFC 3696, erratum 1690).
	maxAddress = 320

	// Years beyond these are not when something happened, and no database has
	// to store them.
	firstYear, lastYear = 2000, 9999
)

// Clean returns an event as it can be stored: its texts bounded and without
// control characters, its time in UTC. It reports false for an event without a
// time, or with one that cannot be true.
func Clean(e providers.Event) (providers.Event, bool) {
	e.OccurredAt = e.OccurredAt.UTC()
	if y := e.OccurredAt.Year(); y < firstYear || y > lastYear {
		return providers.Event{}, false
	}
	e.Reference = providers.MessageID(e.Reference)
	e.ProviderMessageID = providers.MessageID(e.ProviderMessageID)
	e.Recipient = address(e.Recipient)
	e.Detail = bounded(e.Detail)
	return e, true
}

// address returns the address in a text such as "Name <address>", and nothing
// for what cannot be one.
func address(text string) string {
	text = strings.TrimSpace(text)
	if strings.HasSuffix(text, ">") {
		parsed, err := mail.ParseAddress(text)
		if err != nil {
			return ""
		}
		text = parsed.Address
	}
	if len(text) > maxAddress || !strings.Contains(text, "@") || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return ""
	}
	return text
}

// bounded returns the beginning of a text on one line.
func bounded(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), maxDetail)], "")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text))
}

// Detail joins what is known, most specific last.
func Detail(parts ...string) string {
	var known []string
	for _, p := range parts {
		if p != "" {
			known = append(known, p)
		}
	}
	return strings.Join(known, ": ")
}

// Time parses the form that most providers write a time in. A time that is not
// in it is no time, see [Clean].
func Time(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

// Members are members of a JSON object that others may have put there too: the
// account's other programs add theirs to messages of their own, in any form.
// What is no object has no members, and is no error.
type Members map[string]json.RawMessage

// UnmarshalJSON implements [json.Unmarshaler].
func (m *Members) UnmarshalJSON(text []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		members = nil
	}
	*m = members
	return nil
}

// Text returns a member that is a string, and nothing for any other.
func (m Members) Text(name string) string {
	var text string
	if raw, ok := m[name]; !ok || json.Unmarshal(raw, &text) != nil {
		return ""
	}
	return text
}
