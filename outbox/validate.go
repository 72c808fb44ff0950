package outbox

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
)

// Limits of a message. They protect the database and every provider; a
// provider's own, narrower limits are checked when it is chosen.
const (
	MaxRecipients    = 50
	MaxAttachments   = 100
	MaxHeaders       = 50
	MaxTags          = 50
	MaxMetadata      = 50
	MaxScheduleAhead = 90 * 24 * time.Hour

	maxSubject       = 2000 // bytes; the renderer folds the header
	maxHeaderValue   = 8000
	maxMetadataValue = 2000
	maxName          = 256
	maxYear          = 9999 // RFC 3339 cannot write a later one, so reading the email would fail
)

var tagPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)

// ownHeaders are fields that outboxd or the provider writes. A sender's own
// copy would contradict the envelope or break a signature.
var ownHeaders = map[string]bool{
	"from": true, "to": true, "cc": true, "bcc": true, "subject": true,
	"reply-to": true, "date": true, "message-id": true, "return-path": true,
	"mime-version": true, "received": true,
}

var ownHeaderPrefixes = []string{"content-", "dkim-"}

// Validate reports everything that is wrong with the message whenever it is
// looked at, as a *[ValidationError]. What depends on the clock is checked
// when the message is enqueued for the first time.
func (m *Message) Validate() error {
	var errs fieldErrors
	m.validateAddresses(&errs)
	m.validateContent(&errs)
	m.validateHeaders(&errs)
	m.validateAttachments(&errs)
	m.validateLabels(&errs)
	m.validateOptions(&errs)
	m.validateUnsubscribe(&errs)
	return errs.err()
}

func (m *Message) validateAddresses(errs *fieldErrors) {
	if m.From == "" {
		errs.add("from", "is required")
	} else if _, err := parseAddress(m.From); err != nil {
		errs.add("from", "%v", err)
	}
	if len(m.To) == 0 {
		errs.add("to", "is required")
	}
	if n := len(m.To) + len(m.Cc) + len(m.Bcc); n > MaxRecipients {
		errs.add("to", "has %d recipients with cc and bcc, more than %d", n, MaxRecipients)
	}
	if len(m.ReplyTo) > MaxRecipients {
		errs.add("reply_to", "has more than %d addresses", MaxRecipients)
		return
	}
	for _, list := range []struct {
		field     string
		addresses []string
	}{{"to", m.To}, {"cc", m.Cc}, {"bcc", m.Bcc}, {"reply_to", m.ReplyTo}} {
		for i, address := range list.addresses {
			if _, err := parseAddress(address); err != nil {
				errs.add(fmt.Sprintf("%s[%d]", list.field, i), "%v", err)
			}
		}
	}
}

func (m *Message) validateContent(errs *fieldErrors) {
	switch {
	case m.Subject == "":
		errs.add("subject", "is required")
	case hasControl(m.Subject):
		errs.add("subject", noControl)
	case len(m.Subject) > maxSubject:
		errs.add("subject", "is longer than %d bytes", maxSubject)
	}
	if m.HTML == "" && m.Text == "" {
		errs.add("html", "is required unless text is given")
	}
	storable(errs, "html", m.HTML)
	storable(errs, "text", m.Text)
}

func (m *Message) validateHeaders(errs *fieldErrors) {
	if len(m.Headers) > MaxHeaders {
		errs.add("headers", "has more than %d fields", MaxHeaders)
	}
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		field, lower := "headers."+quoteField(name), strings.ToLower(name)
		switch {
		case len(name) > maxName || !httpguts.ValidHeaderFieldName(name):
			errs.add(field, "is not a valid header name")
		case isOwnHeader(lower):
			errs.add(field, "is written by outboxd and cannot be set")
		case seen[lower]:
			errs.add(field, "is given twice")
		case hasControl(m.Headers[name]):
			errs.add(field, noControl)
		case len(m.Headers[name]) > maxHeaderValue:
			errs.add(field, "is longer than %d bytes", maxHeaderValue)
		}
		seen[lower] = true
	}
}

func isOwnHeader(lower string) bool {
	return ownHeaders[lower] || slices.ContainsFunc(ownHeaderPrefixes, func(prefix string) bool {
		return strings.HasPrefix(lower, prefix)
	})
}

func (m *Message) validateAttachments(errs *fieldErrors) {
	if len(m.Attachments) > MaxAttachments {
		errs.add("attachments", "has more than %d files", MaxAttachments)
	}
	for i, a := range m.Attachments {
		field := fmt.Sprintf("attachments[%d].", i)
		if a.Filename == "" {
			errs.add(field+"filename", "is required")
		}
		for _, part := range []struct{ name, value string }{
			{"filename", a.Filename}, {"content_type", a.ContentType}, {"content_id", a.ContentID},
		} {
			if hasControl(part.value) {
				errs.add(field+part.name, noControl)
			} else if len(part.value) > maxName {
				errs.add(field+part.name, "is longer than %d bytes", maxName)
			}
		}
		if strings.ContainsAny(a.ContentID, "<> ") {
			errs.add(field+"content_id", "must not contain <, > or spaces")
		}
		if a.ContentType != "" && !validMediaType(a.ContentType) {
			errs.add(field+"content_type", "is not a media type")
		}
	}
}

func (m *Message) validateLabels(errs *fieldErrors) {
	if len(m.Tags) > MaxTags {
		errs.add("tags", "has more than %d tags", MaxTags)
	}
	for i, tag := range m.Tags {
		if !tagPattern.MatchString(tag.Name) {
			errs.add(fmt.Sprintf("tags[%d].name", i), "must match %s", tagPattern)
		}
		if !tagPattern.MatchString(tag.Value) {
			errs.add(fmt.Sprintf("tags[%d].value", i), "must match %s", tagPattern)
		}
	}
	if len(m.Metadata) > MaxMetadata {
		errs.add("metadata", "has more than %d members", MaxMetadata)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Metadata)) {
		field := "metadata." + quoteField(name)
		if name == "" || len(name) > maxName || hasControl(name) {
			errs.add(field, "is not a valid name")
		}
		if len(m.Metadata[name]) > maxMetadataValue {
			errs.add(field, "is longer than %d bytes", maxMetadataValue)
		}
		storable(errs, field, m.Metadata[name])
	}
}

func (m *Message) validateOptions(errs *fieldErrors) {
	switch m.OnUnknown {
	case "", PolicyRetry, PolicyHold, PolicyDrop:
	default:
		errs.add("on_unknown", "must be retry, hold or drop")
	}
	switch m.Priority {
	case "", PriorityHigh, PriorityNormal, PriorityLow:
	default:
		errs.add("priority", "must be high, normal or low")
	}
	if hasControl(m.Provider) || len(m.Provider) > maxName {
		errs.add("provider", "is not a provider's name")
	}
	if year := m.ExpiresAt.UTC().Year(); year > maxYear {
		errs.add("expires_at", "must be before the year %d", maxYear+1)
	}
	if !m.ExpiresAt.IsZero() && !m.ScheduledAt.IsZero() && !m.ExpiresAt.After(m.ScheduledAt) {
		errs.add("expires_at", "must be after scheduled_at")
	}
}

// validateUnsubscribe: one link cannot be right for several recipients, nor
// beside the sender's own.
func (m *Message) validateUnsubscribe(errs *fieldErrors) {
	if !m.ListUnsubscribe {
		return
	}
	if len(m.To)+len(m.Cc)+len(m.Bcc) != 1 {
		errs.add("list_unsubscribe", "needs exactly one recipient: the link is for one")
	}
	for name := range m.Headers {
		if strings.EqualFold(name, headerUnsubscribe) || strings.EqualFold(name, headerUnsubscribePost) {
			errs.add("list_unsubscribe", "cannot be combined with a List-Unsubscribe header of your own")
			return
		}
	}
}

// validateTimes checks what depends on the clock. A replay is not held to it:
// a retry that arrives late is still the same request.
func (m *Message) validateTimes(now time.Time) error {
	var errs fieldErrors
	if !m.ScheduledAt.IsZero() {
		if m.ScheduledAt.Before(now) {
			errs.add("scheduled_at", "is in the past")
		} else if m.ScheduledAt.After(now.Add(MaxScheduleAhead)) {
			errs.add("scheduled_at", "is more than 90 days ahead")
		}
	}
	if !m.ExpiresAt.IsZero() && !m.ExpiresAt.After(now) {
		errs.add("expires_at", "is in the past")
	}
	return errs.err()
}

// storable refuses what Postgres cannot store in text.
func storable(errs *fieldErrors, field, value string) {
	switch {
	case !utf8.ValidString(value):
		errs.add(field, "must be UTF-8")
	case strings.ContainsRune(value, 0):
		errs.add(field, "must not contain U+0000")
	}
}

// quoteField bounds and cleans a name that the client chose, for use in an
// error message.
func quoteField(name string) string {
	name = strings.Map(func(r rune) rune {
		if hasControl(string(r)) {
			return -1
		}
		return r
	}, name)
	return strings.ToValidUTF8(name[:min(len(name), 64)], "")
}

func validMediaType(s string) bool {
	main, _, _ := strings.Cut(s, ";")
	kind, sub, ok := strings.Cut(strings.TrimSpace(main), "/")
	return ok && httpguts.ValidHeaderFieldName(kind) && httpguts.ValidHeaderFieldName(sub)
}
