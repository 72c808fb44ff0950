package resend

import (
	"encoding/base64"
	"fmt"
	"regexp"

	"github.com/outboxd/outboxd/providers"
)

// request is the body of POST /emails:
// https://resend.com/docs/api-reference/emails/send-email
//
// Its bytes have to stay the same from release to release: a message that
// renders differently under a key that was used gets a 409.
type request struct {
	From        string            `json:"from"`
	To          []string          `json:"to"`
	Cc          []string          `json:"cc,omitempty"`
	Bcc         []string          `json:"bcc,omitempty"`
	ReplyTo     []string          `json:"reply_to,omitempty"`
	Subject     string            `json:"subject"`
	HTML        string            `json:"html,omitempty"`
	Text        string            `json:"text,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	Attachments []file            `json:"attachments,omitempty"`
	Tags        []tag             `json:"tags"`
}

// file is an attachment. Content is there for an empty file too.
type file struct {
	Filename    string `json:"filename"`
	Content     string `json:"content"`
	ContentType string `json:"content_type,omitempty"`
	ContentID   string `json:"content_id,omitempty"`
}

type tag struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Render implements [providers.Provider].
func (p *Provider) Render(r providers.Request) ([]byte, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	m := r.Message
	body := request{
		From:    m.From.Mailbox(),
		To:      mailboxes(m.To),
		Cc:      mailboxes(m.Cc),
		Bcc:     mailboxes(m.Bcc),
		ReplyTo: mailboxes(m.ReplyTo),
		Subject: m.Subject,
		HTML:    m.HTML,
		Text:    m.Text,
		Headers: headers(m.Headers),
		Tags:    []tag{{ReferenceTag, r.Key}},
	}
	for _, a := range m.Attachments {
		attached, err := attachment(a)
		if err != nil {
			return nil, err
		}
		body.Attachments = append(body.Attachments, attached)
	}
	for _, t := range m.Tags {
		body.Tags = append(body.Tags, tag(t))
	}
	return service.JSON(body)
}

// mailboxes leaves names as they are: as an encoded word one was refused in
// From, with a 451 (anymail/django-anymail, anymail/backends/resend.py). Resend
// used to refuse all quotes, so no name has them without need.
func mailboxes(list []providers.Address) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.Mailbox())
	}
	return out
}

func headers(list []providers.Header) map[string]string {
	out := make(map[string]string, len(list))
	for _, h := range list {
		out[h.Name] = h.Value
	}
	return out
}

func attachment(a providers.Attachment) (file, error) {
	out := file{
		Filename:    a.Name(),
		Content:     base64.StdEncoding.EncodeToString(a.Content),
		ContentType: a.ContentType,
		ContentID:   a.ContentID,
	}
	if err := service.CheckFile(a); err != nil {
		return file{}, err
	}
	if len(a.ContentID) > maxContentID {
		return file{}, providers.Refuse("bad_content_id", fmt.Sprintf("Resend takes %d bytes of a content id: %s", maxContentID, a.ContentID))
	}
	return out, nil
}

// word is what a tag's name and value are made of, and the key, which is a
// tag's value: https://resend.com/docs/api-reference/emails/send-email
var word = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)

// service is what Resend refuses with a 422. The field is its key in the form
// for SMTP: a sender's value there could make a second message vanish.
var service = providers.Service{
	Name: "Resend", MaxRecipients: maxRecipients, MaxBytes: maxBytes,
	OwnHeaders: []string{"Resend-Idempotency-Key"},
}

// check refuses what Resend cannot carry.
func check(r providers.Request) error {
	if err := service.Check(r.Message); err != nil {
		return err
	}
	if !word.MatchString(r.Key) {
		return providers.Refuse("bad_key", "Resend carries no such key: "+r.Key)
	}
	return checkTags(r.Message.Tags)
}

// checkTags refuses a name that comes twice: events have the tags as an object.
func checkTags(tags []providers.Tag) error {
	if len(tags) >= maxTags {
		return providers.Refuse("too_many_tags", fmt.Sprintf("Resend takes %d tags, and one is outboxd's", maxTags))
	}
	seen := map[string]bool{ReferenceTag: true}
	for _, t := range tags {
		if !word.MatchString(t.Name) || !word.MatchString(t.Value) {
			return providers.Refuse("bad_tag", "not a tag that Resend carries: "+t.Name)
		}
		if seen[t.Name] {
			return providers.Refuse("repeated_tag", "Resend carries one value of a tag, and "+ReferenceTag+" is outboxd's: "+t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}
