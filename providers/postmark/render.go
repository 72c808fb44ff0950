package postmark

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf16"

	"github.com/outboxd/outboxd/providers"
)

// Limits of https://postmarkapp.com/developer/user-guide/send-email-with-api
// (size, bodies, recipients) and of the error that the service answers beyond
// them (metadata: dittofeed/dittofeed#1759, anymail/django-anymail#238). What
// fits into metadata is always shorter than the 1000 characters of a tag.
const (
	maxBytes         = 10 << 20
	maxBodyBytes     = 5 << 20
	maxRecipients    = 50
	maxMetadata      = 10
	maxMetadataName  = 20
	maxMetadataValue = 80
)

// request is the body of POST /email:
// https://postmarkapp.com/developer/api/email-api#send-a-single-email
type request struct {
	From          string            `json:"From"`
	To            string            `json:"To"`
	Cc            string            `json:"Cc,omitempty"`
	Bcc           string            `json:"Bcc,omitempty"`
	ReplyTo       string            `json:"ReplyTo,omitempty"`
	Subject       string            `json:"Subject"`
	Tag           string            `json:"Tag,omitempty"`
	HTMLBody      string            `json:"HtmlBody,omitempty"`
	TextBody      string            `json:"TextBody,omitempty"`
	Headers       []header          `json:"Headers,omitempty"`
	Metadata      map[string]string `json:"Metadata"`
	Attachments   []file            `json:"Attachments,omitempty"`
	MessageStream string            `json:"MessageStream"`
}

type header struct {
	Name  string `json:"Name"`
	Value string `json:"Value"`
}

// file is an attachment. Content is there for an empty file too.
type file struct {
	Name        string `json:"Name"`
	Content     string `json:"Content"`
	ContentType string `json:"ContentType"`
	ContentID   string `json:"ContentID,omitempty"`
}

// Render implements [providers.Provider].
//
// Postmark has one tag for a message, by which it aggregates, and metadata. The
// first tag is both, with its value; all others are metadata, so none is lost.
func (p *Provider) Render(r providers.Request) ([]byte, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	m := r.Message
	body := request{
		From:          m.From.Mailbox(),
		To:            mailboxes(m.To),
		Cc:            mailboxes(m.Cc),
		Bcc:           mailboxes(m.Bcc),
		ReplyTo:       mailboxes(m.ReplyTo),
		Subject:       m.Subject,
		Tag:           label(m.Tags),
		HTMLBody:      m.HTML,
		TextBody:      m.Text,
		Metadata:      map[string]string{ReferenceField: r.Key},
		MessageStream: p.stream,
	}
	for _, t := range m.Tags {
		body.Metadata[t.Name] = t.Value
	}
	for _, h := range m.Headers {
		body.Headers = append(body.Headers, header(h))
	}
	for _, a := range m.Attachments {
		if err := service.CheckFile(a); err != nil {
			return nil, err
		}
		body.Attachments = append(body.Attachments, attachment(a))
	}
	return service.JSON(body)
}

func mailboxes(list []providers.Address) string {
	var out []string
	for _, a := range list {
		out = append(out, a.Mailbox())
	}
	return strings.Join(out, ", ")
}

// label returns the tag by which Postmark aggregates.
func label(tags []providers.Tag) string {
	switch {
	case len(tags) == 0:
		return ""
	case tags[0].Value == "":
		return tags[0].Name
	}
	return tags[0].Name + ":" + tags[0].Value
}

// attachment gives a file that has no type the one for bytes of any kind
// (RFC 2046, 4.5.1), because Postmark wants one.
func attachment(a providers.Attachment) file {
	out := file{
		Name:        a.Name(),
		Content:     base64.StdEncoding.EncodeToString(a.Content),
		ContentType: a.ContentType,
	}
	if out.ContentType == "" {
		out.ContentType = "application/octet-stream"
	}
	if a.ContentID != "" {
		// https://postmarkapp.com/developer/user-guide/send-email-with-api (attachments)
		out.ContentID = "cid:" + a.ContentID
	}
	return out
}

// service is what Postmark refuses with a 422. Fields that begin with X-Pm-
// tell it what to do, such as X-PM-Metadata-outboxd_attempt:
// https://postmarkapp.com/support/article/1125-custom-metadata-faq
var service = providers.Service{
	Name: "Postmark", MaxRecipients: maxRecipients, MaxBytes: maxBytes,
	OwnPrefixes: []string{"X-Pm-"},
}

// reference is what a key may be, which is searched for as part of a URL.
var reference = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

// check refuses what Postmark cannot carry.
func check(r providers.Request) error {
	if err := service.Check(r.Message); err != nil {
		return err
	}
	if !reference.MatchString(r.Key) {
		return providers.Refuse("bad_key", "Postmark carries no such key: "+r.Key)
	}
	if len(r.Message.HTML) > maxBodyBytes || len(r.Message.Text) > maxBodyBytes {
		return providers.Refuse("too_large", fmt.Sprintf("Postmark takes %d bytes of a body", maxBodyBytes))
	}
	return checkTags(r.Message.Tags)
}

// checkTags refuses tags that metadata cannot hold. Names are compared without
// regard to case: https://postmarkapp.com/support/article/1125-custom-metadata-faq
func checkTags(tags []providers.Tag) error {
	if len(tags) >= maxMetadata {
		return providers.Refuse("too_many_tags", fmt.Sprintf("Postmark takes %d tags, and one is outboxd's", maxMetadata))
	}
	seen := map[string]bool{ReferenceField: true}
	for _, t := range tags {
		if t.Name == "" || length(t.Name) > maxMetadataName || length(t.Value) > maxMetadataValue {
			return providers.Refuse("bad_tag", fmt.Sprintf("Postmark takes %d characters of a tag's name and %d of its value: %s",
				maxMetadataName, maxMetadataValue, t.Name))
		}
		folded := strings.ToLower(t.Name)
		if seen[folded] {
			return providers.Refuse("repeated_tag", "Postmark carries one value of a tag, and "+ReferenceField+" is outboxd's: "+t.Name)
		}
		seen[folded] = true
	}
	return nil
}

// length counts characters in the larger of the two ways to count them: those
// beyond the basic plane are two, as on the service's platform.
func length(s string) int { return len(utf16.Encode([]rune(s))) }
