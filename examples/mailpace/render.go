package mailpace

import (
	"encoding/base64"
	"net/mail"
	"net/textproto"
	"path"
	"slices"
	"strings"

	"github.com/outboxd/outboxd/providers"
)

// referenceTag begins the tag with the attempt's key. Tags are what comes back
// in events: https://docs.mailpace.com/guide/webhooks
const referenceTag = "outboxd_attempt:"

// request is the body of POST /send: https://docs.mailpace.com/reference/send
type request struct {
	From            string   `json:"from"`
	To              string   `json:"to"`
	Cc              string   `json:"cc,omitempty"`
	Bcc             string   `json:"bcc,omitempty"`
	ReplyTo         string   `json:"replyto,omitempty"`
	Subject         string   `json:"subject"`
	HTML            string   `json:"htmlbody,omitempty"`
	Text            string   `json:"textbody,omitempty"`
	InReplyTo       string   `json:"inreplyto,omitempty"`
	References      string   `json:"references,omitempty"`
	ListUnsubscribe string   `json:"list_unsubscribe,omitempty"`
	Attachments     []file   `json:"attachments,omitempty"`
	Tags            []string `json:"tags"`
}

type file struct {
	Name        string `json:"name"`
	Content     string `json:"content"`
	ContentType string `json:"content_type"`
	ContentID   string `json:"cid,omitempty"`
}

// service is what MailPace has in common with others.
var service = providers.Service{Name: "MailPace", MaxRecipients: maxRecipients, MaxBytes: maxBytes}

// Codes of what MailPace does not carry and others do.
const (
	CodeHeader   = "custom_header"
	CodeFileType = "file_type"
	CodeReplyTo  = "too_many_reply_to"
	CodeEmpty    = "empty_attachment"
)

// Render implements [providers.Provider]. What MailPace would drop or refuse is
// refused here, with its name.
func (p *Provider) Render(r providers.Request) ([]byte, error) {
	m := r.Message
	if err := service.Check(m); err != nil {
		return nil, err
	}
	if len(m.ReplyTo) > 1 {
		return nil, providers.Refuse(CodeReplyTo, "MailPace takes one address to reply to")
	}
	body := request{
		From: mailboxes([]providers.Address{m.From}), To: mailboxes(m.To), Cc: mailboxes(m.Cc), Bcc: mailboxes(m.Bcc),
		ReplyTo: mailboxes(m.ReplyTo), Subject: m.Subject, HTML: m.HTML, Text: m.Text,
		Tags: []string{referenceTag + r.Key},
	}
	for _, t := range m.Tags {
		body.Tags = append(body.Tags, t.Name+":"+t.Value)
	}
	if err := body.setHeaders(m.Headers); err != nil {
		return nil, err
	}
	for _, a := range m.Attachments {
		attached, err := attachment(a)
		if err != nil {
			return nil, err
		}
		body.Attachments = append(body.Attachments, attached)
	}
	return service.JSON(body)
}

// mailboxes returns a list as RFC 822 has it, names beyond ASCII encoded.
func mailboxes(list []providers.Address) string {
	var all []string
	for _, a := range list {
		if a.Name == "" {
			all = append(all, a.Email)
			continue
		}
		all = append(all, (&mail.Address{Name: a.Name, Address: a.Email}).String())
	}
	return strings.Join(all, ", ")
}

// setHeaders sets the three fields that there is a place for.
func (r *request) setHeaders(list []providers.Header) error {
	for _, h := range list {
		switch textproto.CanonicalMIMEHeaderKey(h.Name) {
		case "In-Reply-To":
			r.InReplyTo = h.Value
		case "References":
			r.References = h.Value
		case "List-Unsubscribe":
			r.ListUnsubscribe = h.Value
		default:
			return providers.Refuse(CodeHeader, "MailPace does not carry the header "+h.Name)
		}
	}
	return nil
}

// extensions are those that MailPace takes, of names with one dot:
// https://docs.mailpace.com/reference/send
var extensions = []string{
	".jpeg", ".jpg", ".png", ".gif", ".txt", ".pdf", ".docx", ".xlsx", ".pptx", ".csv", ".att", ".ics", ".ical",
	".html", ".zip", ".auf", ".xml", ".dwg",
}

func attachment(a providers.Attachment) (file, error) {
	if err := service.CheckFile(a); err != nil {
		return file{}, err
	}
	name := a.Name()
	switch {
	case !slices.Contains(extensions, strings.ToLower(path.Ext(name))) || strings.Count(name, ".") != 1:
		return file{}, providers.Refuse(CodeFileType, "MailPace takes no file of this name: "+name)
	case len(a.Content) == 0:
		return file{}, providers.Refuse(CodeEmpty, "MailPace says nothing of empty files: "+name)
	}
	out := file{Name: name, Content: base64.StdEncoding.EncodeToString(a.Content), ContentType: a.ContentType}
	if out.ContentType == "" {
		out.ContentType = "application/octet-stream"
	}
	if a.ContentID != "" {
		out.ContentID = "<" + a.ContentID + ">"
	}
	return out, nil
}
