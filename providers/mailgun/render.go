package mailgun

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"mime/multipart"
	"net/textproto"
	"regexp"
	"strings"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/imf"
)

const (
	// maxBytes is the largest message, as a request and with its attachments
	// in base64:
	// https://documentation.mailgun.com/docs/mailgun/user-manual/sending-messages/send-http
	maxBytes = 25 << 20

	// maxRecipients: https://www.rubydoc.info/gems/mailgun-ruby/Mailgun/Chains
	// (MAX_RECIPIENTS), which is Mailgun's own.
	maxRecipients = 1000

	// maxOptions bounds all fields that begin with o:, h: or v:, together. The
	// service answers a 400 beyond it: "Send options [...] are limited to 16 kB
	// total".
	maxOptions = 16 << 10

	// maxTags: https://help.mailgun.com/hc/en-us/articles/34389096824219-Tags
	// maxTag:
	// https://documentation.mailgun.com/docs/mailgun/user-manual/tracking-messages/track-tagging
	maxTags = 10
	maxTag  = 128
)

// service is what Mailgun refuses with a 400. Fields that begin with X-Mailgun-
// tell it what to do, up to dropping the message (github.com/mailgun/documentation,
// source/user_manual.rst, Passing Sending Options).
var service = providers.Service{
	Name: "Mailgun", MaxRecipients: maxRecipients, MaxBytes: maxBytes,
	OwnPrefixes: []string{"X-Mailgun-"},
}

// Render implements [providers.Provider]: a form, whose fields are on
// https://documentation.mailgun.com/docs/mailgun/api-reference/openapi-final/tag/Messages/
//
// Tags become tags only and no variables, because Mailgun puts variables into a
// header that the recipients get:
// https://documentation.mailgun.com/docs/mailgun/user-manual/sending-messages/send-attachments
func (p *Provider) Render(r providers.Request) ([]byte, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	m := r.Message
	f := newForm(r.Key)
	f.mailboxes("from", m.From)
	f.mailboxes("to", m.To...)
	f.mailboxes("cc", m.Cc...)
	f.mailboxes("bcc", m.Bcc...)
	f.field("subject", m.Subject)
	f.optional("text", m.Text)
	f.optional("html", m.HTML)
	for _, t := range m.Tags {
		f.option("o:tag", label(t))
	}
	if p.sandbox {
		f.option("o:testmode", "yes")
	}
	f.option("h:Message-Id", "<"+p.messageID(r.Key)+">")
	if len(m.ReplyTo) > 0 {
		f.option("h:Reply-To", mailboxes(m.ReplyTo))
	}
	for _, h := range m.Headers {
		f.option("h:"+h.Name, imf.Unstructured(h.Name, h.Value))
	}
	f.option("v:"+ReferenceVariable, r.Key)
	for _, a := range m.Attachments {
		if err := f.file(a, m.HTML != ""); err != nil {
			return nil, err
		}
	}
	return f.finish()
}

// label is the tag by which Mailgun aggregates.
func label(t providers.Tag) string {
	if t.Value == "" {
		return t.Name
	}
	return t.Name + ":" + t.Value
}

func mailboxes(list []providers.Address) string {
	var out []string
	for _, a := range list {
		out = append(out, imf.Mailbox(a))
	}
	return strings.Join(out, ", ")
}

// boundary separates the fields of the form. It follows from the key, so that
// the same request gives the same bytes, and nobody who writes a message can
// know it before.
func boundary(key string) string {
	sum := sha256.Sum256([]byte("outboxd form " + key))
	return hex.EncodeToString(sum[:20])
}

// form is a body of the type multipart/form-data (RFC 7578) in the making.
type form struct {
	body    bytes.Buffer
	w       *multipart.Writer
	options int // bytes of the options
	mime    int // about what the message will have, see file
}

func newForm(key string) *form {
	f := &form{}
	f.w = multipart.NewWriter(&f.body)
	_ = f.w.SetBoundary(boundary(key)) // of 40 hexadecimal digits
	return f
}

// field writes a field. Writing to a buffer does not fail.
func (f *form) field(name, value string) {
	w, _ := f.w.CreateFormField(name)
	_, _ = w.Write([]byte(value))
	f.mime += len(value)
}

func (f *form) optional(name, value string) {
	if value != "" {
		f.field(name, value)
	}
}

func (f *form) option(name, value string) {
	f.options += len(name) + len(value)
	f.field(name, value)
}

// mailboxes writes a field for each address. Names are in ASCII: Mailgun
// quotes a name before it encodes it, so that one with a comma and an umlaut
// arrives with quotes too many (anymail/django-anymail#270, mailgun/flanker#161).
// What is encoded already it leaves as it is.
func (f *form) mailboxes(name string, list ...providers.Address) {
	for _, a := range list {
		f.field(name, imf.Mailbox(a))
	}
}

// file writes an attachment. Mailgun drops one without a name in silence
// (anymail/django-anymail#128), and one whose name is encoded as in RFC 2231
// (anymail/django-anymail#125), so the name is UTF-8 as RFC 7578, 4.2 has it. An
// inline part goes by its content id, which is how the HTML refers to it:
// https://documentation.mailgun.com/docs/mailgun/user-manual/sending-messages/send-attachments
// Without HTML nothing can, and the part is an attachment.
func (f *form) file(a providers.Attachment, html bool) error {
	if err := service.CheckFile(a); err != nil {
		return err
	}
	field, name, contentType := "attachment", a.Name(), a.ContentType
	if a.ContentID != "" && html {
		field, name = "inline", a.ContentID
	}
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	w, _ := f.w.CreatePart(textproto.MIMEHeader{
		"Content-Disposition": {multipart.FileContentDisposition(field, name)},
		"Content-Type":        {contentType},
	})
	_, _ = w.Write(a.Content)
	// In base64 with a line end after 76 characters: RFC 2045, 6.8.
	f.mime += (len(a.Content) + 2) / 3 * 4 * 78 / 76
	return nil
}

// finish returns the form, unless it is larger than Mailgun takes.
func (f *form) finish() ([]byte, error) {
	_ = f.w.Close()
	switch {
	case f.options > maxOptions:
		return nil, providers.Refuse("headers_too_large", fmt.Sprintf("%d bytes of headers and tags, Mailgun takes %d", f.options, maxOptions))
	case f.mime > maxBytes:
		return nil, providers.Refuse("too_large", fmt.Sprintf("%d bytes with attachments in base64, Mailgun takes %d", f.mime, maxBytes))
	}
	if err := service.CheckSize(f.body.Bytes()); err != nil {
		return nil, err
	}
	return f.body.Bytes(), nil
}

// reference is what a key may be, which becomes the left part of a Message-ID
// and of a search.
var reference = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// check refuses what Mailgun cannot carry.
func check(r providers.Request) error {
	if err := service.Check(r.Message); err != nil {
		return err
	}
	if !reference.MatchString(r.Key) {
		return providers.Refuse("bad_key", "Mailgun carries no such key: "+r.Key)
	}
	return checkTags(r.Message.Tags)
}

// checkTags refuses what Mailgun would leave out: tags beyond ten, characters
// beyond ASCII (https://documentation.mailgun.com/en/latest/api-tags.html), and
// the second of two that differ in case.
func checkTags(tags []providers.Tag) error {
	if len(tags) > maxTags {
		return providers.Refuse("too_many_tags", fmt.Sprintf("Mailgun takes %d tags", maxTags))
	}
	seen := map[string]bool{}
	for _, t := range tags {
		name := label(t)
		if t.Name == "" || len(name) > maxTag || !providers.IsASCII(name) {
			return providers.Refuse("bad_tag", fmt.Sprintf("Mailgun takes a tag of %d ASCII characters with its value: %s", maxTag, name))
		}
		folded := strings.ToLower(name)
		if seen[folded] {
			return providers.Refuse("repeated_tag", "Mailgun carries a tag once: "+name)
		}
		seen[folded] = true
	}
	return nil
}
