package sendgrid

import (
	"encoding/base64"
	"fmt"
	"mime"
	"slices"
	"strings"

	"github.com/sendgrid/sendgrid-go/helpers/mail"

	"github.com/outboxd/outboxd/providers"
)

// Render implements [providers.Provider]: the JSON body of POST /v3/mail/send,
// with one personalization, so that one request is one message.
func (p *Provider) Render(r providers.Request) ([]byte, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	m := r.Message
	body := &mail.SGMailV3{
		From:             email(m.From),
		Subject:          m.Subject,
		Personalizations: []*mail.Personalization{{To: emails(m.To), CC: emails(m.Cc), BCC: emails(m.Bcc)}},
		Content:          contents(m),
		Headers:          headers(m.Headers),
		Categories:       categories(m.Tags),
		CustomArgs:       customArgs(r),
		ReplyToList:      emails(m.ReplyTo),
	}
	for _, a := range m.Attachments {
		file, err := attachment(a)
		if err != nil {
			return nil, err
		}
		body.Attachments = append(body.Attachments, file)
	}
	if p.sandbox {
		on := true
		body.MailSettings = &mail.MailSettings{SandboxMode: &mail.Setting{Enable: &on}}
	}
	return service.JSON(body)
}

func email(a providers.Address) *mail.Email {
	return &mail.Email{Name: a.Name, Address: a.Email}
}

func emails(list []providers.Address) []*mail.Email {
	var out []*mail.Email
	for _, a := range list {
		out = append(out, email(a))
	}
	return out
}

// contents leaves an empty body out, for which SendGrid refuses the request.
// Plain text has to come first:
// https://www.twilio.com/docs/sendgrid/api-reference/mail-send/mail-send
func contents(m providers.Message) []*mail.Content {
	var out []*mail.Content
	if m.Text != "" {
		out = append(out, &mail.Content{Type: "text/plain", Value: m.Text})
	}
	if m.HTML != "" {
		out = append(out, &mail.Content{Type: "text/html", Value: m.HTML})
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

// label is the category of a tag.
func label(t providers.Tag) string {
	if t.Value == "" {
		return t.Name
	}
	return t.Name + ":" + t.Value
}

// categories makes the first ten tags categories, which is what SendGrid
// aggregates by. All of them come back in events, see customArgs.
func categories(tags []providers.Tag) []string {
	var out []string
	for _, t := range tags {
		name := label(t)
		if len(out) < maxCategories && len(name) <= maxCategoryLen && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// customArgs carries the reference and the tags. SendGrid puts them beside the
// fields of its own in every event, hence the prefix: a tag "email" must not
// hide the recipient.
func customArgs(r providers.Request) map[string]string {
	out := map[string]string{ReferenceArg: r.Key}
	for _, t := range r.Message.Tags {
		out["tag_"+t.Name] = t.Value
	}
	return out
}

// attachment refuses what SendGrid would: an empty file (content has at least
// one character), one without a name, and a type with parameters
// (sendgrid/sendgrid-go#450).
func attachment(a providers.Attachment) (*mail.Attachment, error) {
	out := &mail.Attachment{
		Content:     base64.StdEncoding.EncodeToString(a.Content),
		Filename:    a.Name(),
		Disposition: "attachment",
	}
	if a.ContentID != "" {
		out.ContentID, out.Disposition = a.ContentID, "inline"
	}
	if len(a.Content) == 0 {
		return nil, providers.Refuse("empty_attachment", "SendGrid carries no empty file: "+a.Filename)
	}
	if err := service.CheckFile(a); err != nil {
		return nil, err
	}
	mediaType, err := bareType(a.ContentType)
	out.Type = mediaType
	return out, err
}

// bareType returns a media type without parameters. A file name is given
// elsewhere and UTF-8 is what readers assume; other parameters, like the
// method of a calendar file, change what the file is and cannot be dropped.
func bareType(contentType string) (string, error) {
	if contentType == "" {
		return "", nil
	}
	mediaType, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return "", providers.Refuse("bad_content_type", "not a content type: "+contentType)
	}
	charset := strings.ToLower(params["charset"])
	delete(params, "name")
	if charset == "utf-8" || charset == "us-ascii" {
		delete(params, "charset")
	}
	if len(params) > 0 {
		return "", providers.Refuse("content_type_parameters", "SendGrid carries no parameters of a content type: "+contentType)
	}
	return mediaType, nil
}

// service is what SendGrid refuses with a 400. It sets two fields itself:
// https://www.twilio.com/docs/sendgrid/api-reference/mail-send/errors
var service = providers.Service{
	Name: "SendGrid", MaxRecipients: maxRecipients, MaxBytes: maxBytes,
	OwnHeaders: []string{"X-Sg-Id", "X-Sg-Eid"},
}

// check refuses what SendGrid cannot carry.
func check(r providers.Request) error {
	if err := service.Check(r.Message); err != nil {
		return err
	}
	return checkArgs(r)
}

func checkArgs(r providers.Request) error {
	size := 0
	seen := map[string]bool{}
	for _, t := range r.Message.Tags {
		if seen[t.Name] {
			return providers.Refuse("repeated_tag", "SendGrid carries one value of a tag: "+t.Name)
		}
		seen[t.Name] = true
	}
	for name, value := range customArgs(r) {
		size += len(name) + len(value)
	}
	if size > maxCustomArgs {
		return providers.Refuse("tags_too_large", fmt.Sprintf("SendGrid takes %d bytes of tags", maxCustomArgs))
	}
	return nil
}
