package outbox

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"
)

// fingerprintVersion is the version that new keys are stored with. A release
// that changes the canonical form keeps the old ones, because a stored key is
// compared with the version that it was stored with; and it writes the old
// version for one release more, so that during a rolling deployment the old
// release still understands the new one's keys.
const fingerprintVersion = 1

// fingerprint identifies a request: two submissions under one idempotency key
// are the same request if and only if their fingerprints are equal.
//
// The canonical form is a sequence of fields, each "name:length:value" and a
// line feed, where length counts bytes. Lists repeat their field, maps are
// sorted by name, absent and empty fields are left out. So neither the order
// of keys nor white space nor "to":"a" against "to":["a"] matters, and a new
// optional field does not change the fingerprint of requests without it. It
// needs no JSON, so that SQL can compute the same.
func fingerprint(version int16, endpoint string, s *Submission) ([]byte, error) {
	if version != 1 {
		return nil, fmt.Errorf("idempotency key with fingerprint version %d, from a newer release", version)
	}
	f := canonical{sha256.New()}
	f.field("version", "1")
	f.field("org", s.Org.String())
	f.field("endpoint", endpoint)
	if s.Permissive {
		f.field("permissive", "")
	}
	for i := range s.Messages {
		if raw := s.Refused[i].Raw; raw != nil {
			f.bytes("refused", raw)
			continue
		}
		f.message(&s.Messages[i])
	}
	return f.hash.Sum(nil), nil
}

type canonical struct{ hash hash.Hash }

func (c canonical) message(m *Message) {
	c.field("email", "")
	c.optional("from", m.From)
	c.list("to", m.To)
	c.list("cc", m.Cc)
	c.list("bcc", m.Bcc)
	c.list("reply_to", m.ReplyTo)
	c.optional("subject", m.Subject)
	c.optional("html", m.HTML)
	c.optional("text", m.Text)
	c.dict("header", m.Headers)
	for _, a := range m.Attachments {
		c.field("attachment", a.Filename)
		c.optional("content_type", a.ContentType)
		c.optional("content_id", a.ContentID)
		c.bytes("content", a.Content)
	}
	for _, t := range m.Tags {
		c.field("tag", t.Name)
		c.field("value", t.Value)
	}
	c.dict("metadata", m.Metadata)
	c.instant("scheduled_at", m.ScheduledAt)
	c.instant("expires_at", m.ExpiresAt)
	c.optional("on_unknown", string(m.OnUnknown))
	c.optional("priority", string(m.Priority))
	c.optional("provider", m.Provider)
	if m.ListUnsubscribe {
		c.field("list_unsubscribe", "true")
	}
}

// Writing to a hash never fails.

func (c canonical) field(name, value string) {
	c.header(name, len(value))
	_, _ = io.WriteString(c.hash, value)
	_, _ = c.hash.Write([]byte{'\n'})
}

func (c canonical) bytes(name string, value []byte) {
	c.header(name, len(value))
	_, _ = c.hash.Write(value)
	_, _ = c.hash.Write([]byte{'\n'})
}

func (c canonical) header(name string, length int) {
	_, _ = io.WriteString(c.hash, name+":"+strconv.Itoa(length)+":")
}

func (c canonical) optional(name, value string) {
	if value != "" {
		c.field(name, value)
	}
}

func (c canonical) list(name string, values []string) {
	for _, v := range values {
		c.field(name, v)
	}
}

func (c canonical) dict(name string, values map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		c.field(name, key)
		c.field("value", values[key])
	}
}

// instant writes microseconds since 1970, which is all that Postgres keeps.
func (c canonical) instant(name string, t time.Time) {
	if !t.IsZero() {
		c.field(name, strconv.FormatInt(t.UnixMicro(), 10))
	}
}
