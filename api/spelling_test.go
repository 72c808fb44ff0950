package api_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"pgregory.net/rapid"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

// One request in two spellings is one request; changed in one place it is
// another. Equal requests ⇔ equal fingerprints, from the wire on.
func TestSpellingDoesNotMatterAndContentDoes(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	number := 0
	rapid.Check(t, func(t *rapid.T) {
		number++ // rapid runs a case again to shrink it
		key := fmt.Sprint("key-", number)
		m := anyMessage(t)
		first := s.do("POST", "/emails", spell(t, m), "Idempotency-Key", key)
		if first.status != http.StatusAccepted {
			t.Fatalf("answer %d %s to %+v", first.status, first.body, m)
		}
		again := spell(t, m)
		if a := s.do("POST", "/emails", again, "Idempotency-Key", key); a.body != first.body || a.header.Get("Idempotent-Replayed") != "true" {
			t.Fatalf("answer %d %s to another spelling: %s", a.status, a.body, again)
		}
		what := changeOnePlace(t, &m)
		other := spell(t, m)
		if a := s.do("POST", "/emails", other, "Idempotency-Key", key); !strings.Contains(a.body, `"invalid_idempotent_request"`) {
			t.Fatalf("answer %d %s to a request with another %s: %s", a.status, a.body, what, other)
		}
	})
}

var (
	address = rapid.SampledFrom([]string{"a@example.com", "Zoë <zoe@example.com>", `"Doe, J." <j@example.com>`, "x+y@example.org"})
	line    = rapid.SampledFrom([]string{"a", "Grüße ✓", `"quoted" \ /`, "😀 <b>&amp;", "{}[]:,", "null"})
	text    = rapid.SampledFrom([]string{"", "a", "two\r\nlines\ttab", "😀\u2028\uFFFD", `\u0041`})
	name    = rapid.SampledFrom([]string{"X-A", "X-B", "x-c"})
)

// anyMessage is a valid one.
func anyMessage(t *rapid.T) outbox.Message {
	few := rapid.SliceOfN(address, 0, 2)
	at := time.Now().Add(48 * time.Hour).Truncate(time.Microsecond).UTC()
	m := outbox.Message{
		From: address.Draw(t, "from"), To: rapid.SliceOfN(address, 1, 3).Draw(t, "to"),
		Cc: few.Draw(t, "cc"), Bcc: few.Draw(t, "bcc"), ReplyTo: few.Draw(t, "reply_to"),
		Subject: line.Draw(t, "subject"), Text: "t" + text.Draw(t, "text"), HTML: text.Draw(t, "html"),
		Headers:  rapid.MapOfN(name, line, 0, 2).Draw(t, "headers"),
		Metadata: rapid.MapOfN(line, text, 0, 2).Draw(t, "metadata"),
		Provider: rapid.SampledFrom([]string{"", "smtp"}).Draw(t, "provider"),
		Priority: rapid.SampledFrom([]outbox.Priority{"", outbox.PriorityNormal}).Draw(t, "priority"),
	}
	for range rapid.IntRange(0, 2).Draw(t, "attachments") {
		m.Attachments = append(m.Attachments, outbox.Attachment{
			Filename: line.Draw(t, "filename"), Content: rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "content"),
			ContentType: rapid.SampledFrom([]string{"", "text/plain"}).Draw(t, "content_type"),
		})
	}
	if rapid.Bool().Draw(t, "tag") {
		m.Tags = []outbox.Tag{{Name: "kind", Value: "receipt"}}
	}
	if rapid.Bool().Draw(t, "scheduled") {
		m.ScheduledAt, m.ExpiresAt = at, at.Add(time.Hour)
	}
	m.ListUnsubscribe = rapid.Bool().Draw(t, "list_unsubscribe")
	return forOne(m)
}

// forOne leaves the message one recipient, if it has a link for one.
func forOne(m outbox.Message) outbox.Message {
	if m.ListUnsubscribe {
		m.To, m.Cc, m.Bcc = m.To[:1], nil, nil
	}
	return m
}

// changeOnePlace changes the message into another valid one, and says what it
// changed.
func changeOnePlace(t *rapid.T, m *outbox.Message) string {
	changes := map[string]func(){
		"from":                    func() { m.From = "other@example.com" },
		"to":                      func() { m.To = append(slices.Clone(m.To), "other@example.com") },
		"order of to":             func() { m.To = append([]string{"other@example.com"}, m.To...) },
		"cc":                      func() { m.Cc = append(slices.Clone(m.Cc), "other@example.com") },
		"bcc":                     func() { m.Bcc = append(slices.Clone(m.Bcc), "other@example.com") },
		"reply_to":                func() { m.ReplyTo = append(slices.Clone(m.ReplyTo), "other@example.com") },
		"subject":                 func() { m.Subject += " " },
		"text":                    func() { m.Text += "\n" },
		"html":                    func() { m.HTML += " " },
		"headers":                 func() { m.Headers = with(m.Headers, "X-Other", "") },
		"metadata":                func() { m.Metadata = with(m.Metadata, "other", "") },
		"attachment":              func() { m.Attachments = append(slices.Clone(m.Attachments), outbox.Attachment{Filename: "other"}) },
		"tag":                     func() { m.Tags = append(slices.Clone(m.Tags), outbox.Tag{Name: "other", Value: "x"}) },
		"scheduled_at":            func() { m.ScheduledAt = time.Now().Add(40 * time.Hour).Truncate(time.Microsecond) },
		"expires_at":              func() { m.ExpiresAt = time.Now().Add(90 * time.Hour).Truncate(time.Microsecond) },
		"expires_at by a little":  func() { m.ExpiresAt = laterBy(m.ExpiresAt, time.Microsecond) },
		"on_unknown":              func() { m.OnUnknown = outbox.PolicyDrop },
		"priority":                func() { m.Priority = outbox.PriorityHigh },
		"a to that moved to a cc": func() { m.To, m.Cc = m.To[:1], slices.Concat(m.To[1:], m.Cc, []string{"c@example.com"}) },
	}
	if len(m.Attachments) > 0 {
		m.Attachments = slices.Clone(m.Attachments)
		a := &m.Attachments[len(m.Attachments)-1]
		changes["content"] = func() { a.Content = append(slices.Clone(a.Content), 0) }
		changes["filename"] = func() { a.Filename += "x" }
		changes["content_type"] = func() { a.ContentType = "text/html" }
		changes["content_id"] = func() { a.ContentID = "cid" }
	}
	if m.ListUnsubscribe { // for one recipient only
		for _, more := range []string{"to", "order of to", "cc", "bcc", "a to that moved to a cc"} {
			delete(changes, more)
		}
		changes["list_unsubscribe"] = func() { m.ListUnsubscribe = false }
		changes["to"] = func() { m.To = []string{"other@example.com"} }
	}
	what := rapid.SampledFrom(slices.Sorted(maps.Keys(changes))).Draw(t, "change")
	changes[what]()
	return what
}

func with(values map[string]string, name, value string) map[string]string {
	out := map[string]string{name: value}
	maps.Copy(out, values)
	return out
}

// laterBy moves a time; one that is not set becomes set.
func laterBy(at time.Time, d time.Duration) time.Time {
	if at.IsZero() {
		at = time.Now().Add(90 * time.Hour).Truncate(time.Microsecond)
	}
	return at.Add(d)
}

// speller writes JSON in one of the spellings that mean the same.
type speller struct {
	t   *rapid.T
	out strings.Builder
}

type member struct {
	name  string
	write func()
}

// spell writes the body of POST /emails.
func spell(t *rapid.T, m outbox.Message) string {
	w := &speller{t: t}
	var members []member
	field := func(name string, absent bool, empty string, write func()) {
		if absent {
			// Absent, null and empty are the same.
			spelling := w.choose("", "null", empty)
			if spelling == "" {
				return
			}
			write = func() { w.out.WriteString(spelling) }
		}
		members = append(members, member{name, write})
	}
	for _, f := range []struct{ name, value string }{
		{"from", m.From},
		{"subject", m.Subject},
		{"html", m.HTML},
		{"text", m.Text},
		{"on_unknown", string(m.OnUnknown)},
		{"priority", string(m.Priority)},
		{"provider", m.Provider},
	} {
		field(f.name, f.value == "", `""`, func() { w.string(f.value) })
	}
	for name, list := range map[string][]string{"to": m.To, "cc": m.Cc, "bcc": m.Bcc, "reply_to": m.ReplyTo} {
		field(name, len(list) == 0, "[]", func() { w.addresses(list) })
	}
	field("headers", len(m.Headers) == 0, "{}", func() { w.dict(m.Headers) })
	field("metadata", len(m.Metadata) == 0, "{}", func() { w.dict(m.Metadata) })
	field("tags", len(m.Tags) == 0, "[]", func() { w.list(len(m.Tags), func(i int) { w.tag(m.Tags[i]) }) })
	field("attachments", len(m.Attachments) == 0, "[]", func() {
		w.list(len(m.Attachments), func(i int) { w.attachment(m.Attachments[i]) })
	})
	field("scheduled_at", m.ScheduledAt.IsZero(), `""`, func() { w.time(m.ScheduledAt) })
	field("expires_at", m.ExpiresAt.IsZero(), `""`, func() { w.time(m.ExpiresAt) })
	field("list_unsubscribe", !m.ListUnsubscribe, "false", func() { w.out.WriteString("true") })
	w.object(members)
	return w.out.String()
}

func (w *speller) choose(spellings ...string) string {
	return rapid.SampledFrom(spellings).Draw(w.t, "spelling")
}

func (w *speller) space() { w.out.WriteString(w.choose("", "", " ", "\n\t")) }

// object writes members in any order. Maps were ranged over in a random one:
// sorting first lets rapid repeat a case.
func (w *speller) object(members []member) {
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	members = rapid.Permutation(members).Draw(w.t, "order")
	w.out.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			w.out.WriteByte(',')
		}
		w.space()
		w.string(m.name)
		w.space()
		w.out.WriteByte(':')
		w.space()
		m.write()
		w.space()
	}
	w.out.WriteByte('}')
}

func (w *speller) list(n int, element func(int)) {
	w.out.WriteByte('[')
	for i := range n {
		if i > 0 {
			w.out.WriteByte(',')
		}
		w.space()
		element(i)
		w.space()
	}
	w.out.WriteByte(']')
}

// addresses writes one address with or without its list.
func (w *speller) addresses(list []string) {
	if len(list) == 1 && w.choose("list", "string") == "string" {
		w.string(list[0])
		return
	}
	w.list(len(list), func(i int) { w.string(list[i]) })
}

func (w *speller) dict(values map[string]string) {
	var members []member
	for name, value := range values {
		members = append(members, member{name, func() { w.string(value) }})
	}
	w.object(members)
}

func (w *speller) tag(tag outbox.Tag) {
	w.object([]member{{"name", func() { w.string(tag.Name) }}, {"value", func() { w.string(tag.Value) }}})
}

func (w *speller) attachment(a outbox.Attachment) {
	members := []member{
		{"filename", func() { w.string(a.Filename) }},
		{"content", func() { w.content(a.Content) }},
	}
	for _, f := range []struct{ name, value string }{{"content_type", a.ContentType}, {"content_id", a.ContentID}} {
		if f.value != "" || w.choose("absent", "empty") == "empty" {
			members = append(members, member{f.name, func() { w.string(f.value) }})
		}
	}
	w.object(members)
}

// content writes a file in one of the forms that official SDKs send.
func (w *speller) content(content []byte) {
	values := func() { w.list(len(content), func(i int) { fmt.Fprint(&w.out, content[i]) }) }
	encoded := base64.StdEncoding.EncodeToString(content)
	switch w.choose("base64", "base64 in lines", "array", "buffer") {
	case "base64":
		w.string(encoded)
	case "base64 in lines":
		w.string(encoded[:len(encoded)/2] + "\r\n" + encoded[len(encoded)/2:])
	case "array":
		values()
	case "buffer":
		w.object([]member{{"type", func() { w.string("Buffer") }}, {"data", values}})
	}
}

// time writes a time as in any place of the world, with any number of digits
// that leaves out nothing.
func (w *speller) time(at time.Time) {
	zone := rapid.SampledFrom([]int{0, 60, -150, 23*60 + 59, -(23*60 + 59)}).Draw(w.t, "zone")
	layout := w.choose("2006-01-02T15:04:05.000000Z07:00", "2006-01-02T15:04:05.000000000Z07:00", time.RFC3339Nano)
	w.string(at.In(time.FixedZone("", zone*60)).Format(layout))
}

// string escapes what must be, or everything.
func (w *speller) string(s string) {
	escape := w.choose("no", "no", `\u%04x`, `\u%04X`)
	w.out.WriteByte('"')
	for _, c := range s {
		switch {
		case escape != "no":
			for _, unit := range utf16.Encode([]rune{c}) {
				fmt.Fprintf(&w.out, escape, unit)
			}
		case c < ' ' || c == '"' || c == '\\':
			fmt.Fprintf(&w.out, `\u%04x`, c)
		default:
			w.out.WriteRune(c)
		}
	}
	w.out.WriteByte('"')
}
