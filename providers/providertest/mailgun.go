package providertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/mail"
	"strconv"
	"strings"

	"github.com/outboxd/outboxd/providers"
)

// Mailgun is POST /v3/{domain}/messages, and GET /v3/{domain}/events to search
// by Message-ID:
// https://documentation.mailgun.com/docs/mailgun/api-reference/openapi-final/tag/Messages/
// https://documentation.mailgun.com/docs/mailgun/api-reference/send/mailgun/events/get-v3-domain_name-events
var Mailgun = Dialect{
	Name: "mailgun",
	Path: "/v3/*/messages",
	Parse: func(r Seen) Parsed {
		form, err := parseMailgun(r)
		return Parsed{
			Reference: form.first("v:outboxd_attempt"),
			From:      bareAddress(form.first("from")), To: form.recipients(), Subject: form.first("subject"),
			ID:      mailgunID(form.first("h:Message-Id")),
			Refusal: checkMailgun(r, form, err),
			Accepted: func(id string) Reaction {
				return replyJSON(http.StatusOK, map[string]any{"id": "<" + id + ">", "message": "Queued. Thank you."})
			},
		}
	},
	Read:   readMailgun,
	Search: &Search{Path: "/v3/*/events", Answer: searchMailgun},
	Refuse: func(status int) Reaction { return mailgunError(status, http.StatusText(status)) },
}

// Limits of the service, see the rules in checkMailgun.
const (
	mailgunBytes      = 25 << 20
	mailgunRecipients = 1000
	mailgunOptions    = 16 << 10
	mailgunTags       = 10
	mailgunTag        = 128
)

// mailgunForm is a form of the type multipart/form-data. It is written from
// the API's page and RFC 7578 and not with the adapter's code.
type mailgunForm struct {
	fields map[string][]string
	files  []mailgunFile
	// options is the size of the fields that begin with o:, h: or v:.
	options int
}

type mailgunFile struct {
	field, name, contentType string
	content                  []byte
}

func (f mailgunForm) first(field string) string {
	if values := f.fields[field]; len(values) > 0 {
		return values[0]
	}
	return ""
}

func (f mailgunForm) recipients() []string {
	var all []string
	for _, field := range []string{"to", "cc", "bcc"} {
		for _, list := range f.fields[field] {
			all = append(all, bareAddresses(list)...)
		}
	}
	return all
}

func parseMailgun(r Seen) (mailgunForm, error) {
	form := mailgunForm{fields: map[string][]string{}}
	mediaType, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != "multipart/form-data" {
		return form, fmt.Errorf("the type of the request is %q", mediaType)
	}
	reader := multipart.NewReader(bytes.NewReader(r.Body), params["boundary"])
	for {
		part, err := reader.NextRawPart()
		if errors.Is(err, io.EOF) {
			return form, nil
		}
		if err != nil {
			return form, err
		}
		value, err := io.ReadAll(part)
		if err != nil {
			return form, err
		}
		form.add(part, string(value))
	}
}

func (f *mailgunForm) add(part *multipart.Part, value string) {
	// FileName would cut the name at its slashes.
	_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	field := part.FormName()
	if field == "attachment" || field == "inline" {
		f.files = append(f.files, mailgunFile{
			field: field, name: params["filename"],
			contentType: part.Header.Get("Content-Type"), content: []byte(value),
		})
		return
	}
	f.fields[field] = append(f.fields[field], value)
	if strings.HasPrefix(field, "o:") || strings.HasPrefix(field, "h:") || strings.HasPrefix(field, "v:") {
		f.options += len(field) + len(value)
	}
}

// readMailgun is what the page on Messages says of each field. A file of the
// field "inline" has its name for a content id:
// https://documentation.mailgun.com/docs/mailgun/user-manual/sending-messages/send-attachments
func readMailgun(r Seen) (providers.Message, error) {
	form, err := parseMailgun(r)
	if err != nil {
		return providers.Message{}, err
	}
	m := providers.Message{Subject: form.first("subject"), Text: form.first("text"), HTML: form.first("html")}
	err = readLists(&m, map[string][]string{
		"From": form.fields["from"], "To": form.fields["to"], "Cc": form.fields["cc"],
		"Bcc": form.fields["bcc"], "Reply-To": form.fields["h:Reply-To"],
	})
	if err != nil {
		return m, err
	}
	for field, values := range form.fields {
		name, ok := strings.CutPrefix(field, "h:")
		if !ok || isOwnField(name) {
			continue
		}
		for _, value := range values {
			// Encoded words are the reader's to decode.
			text, err := new(mime.WordDecoder).DecodeHeader(value)
			if err != nil {
				return m, err
			}
			m.Headers = append(m.Headers, providers.Header{Name: name, Value: text})
		}
	}
	for _, file := range form.files {
		a := providers.Attachment{Filename: file.name, ContentType: file.contentType, Content: file.content}
		if file.field == "inline" {
			a.ContentID = file.name
		}
		m.Attachments = append(m.Attachments, a)
	}
	return m, nil
}

// checkMailgun refuses what the service is known to refuse, and what it is
// known to drop in silence: an adapter that lets that happen has to fail.
// https://documentation.mailgun.com/docs/mailgun/quickstart-guide/responses
func checkMailgun(r Seen, f mailgunForm, err error) Reaction {
	switch {
	case !mailgunUser(r):
		return Reply(http.StatusUnauthorized, "Forbidden")
	case len(r.Body) > mailgunBytes:
		return mailgunError(http.StatusRequestEntityTooLarge, "Request Entity Too Large")
	case err != nil:
		return mailgunError(http.StatusBadRequest, "bad form: "+err.Error())
	case f.first("from") == "":
		return mailgunError(http.StatusBadRequest, "from parameter is missing")
	case len(f.fields["to"]) == 0:
		return mailgunError(http.StatusBadRequest, "to parameter is missing")
	case f.first("text") == "" && f.first("html") == "":
		return mailgunError(http.StatusBadRequest, "Need at least one of 'text' or 'html' parameters specified")
	case f.options > mailgunOptions:
		return mailgunError(http.StatusBadRequest, "Send options (parameters starting with o:, h:, or v:) are limited to 16 kB total")
	}
	for _, reason := range []string{badMailgunAddress(f), badMailgunTag(f), badMailgunFile(f), badMailgunHeader(f)} {
		if reason != "" {
			return mailgunError(http.StatusBadRequest, reason)
		}
	}
	return Reaction{}
}

// mailgunUser reports whether r has a key of the user "api".
func mailgunUser(r Seen) bool {
	user, key, ok := (&http.Request{Header: r.Header}).BasicAuth()
	return ok && user == "api" && key != ""
}

func badMailgunAddress(f mailgunForm) string {
	recipients := 0
	for _, field := range []string{"from", "to", "cc", "bcc"} {
		for _, value := range f.fields[field] {
			list, err := mail.ParseAddressList(value)
			if err != nil {
				return field + " parameter is not a valid address. please check documentation"
			}
			for _, a := range list {
				// anymail/django-anymail#270: such a name arrives with quotes
				// too many, unless it is encoded.
				if !isASCII(value) && strings.ContainsAny(a.Name, `(),"`) {
					return field + " has a name that would be encoded wrongly"
				}
			}
			if field != "from" {
				recipients += len(list)
			}
		}
	}
	if recipients > mailgunRecipients {
		return "Too many recipients; max is 1000"
	}
	return ""
}

// badMailgunTag: https://help.mailgun.com/hc/en-us/articles/34389096824219-Tags
// https://documentation.mailgun.com/en/latest/api-tags.html
func badMailgunTag(f mailgunForm) string {
	tags := f.fields["o:tag"]
	if len(tags) > mailgunTags {
		return "tags beyond the tenth would be dropped"
	}
	for _, tag := range tags {
		if len(tag) > mailgunTag || !isASCII(tag) {
			return "a tag's characters beyond ASCII or the 128th would be dropped"
		}
	}
	return ""
}

// badMailgunFile: anymail/django-anymail#128
func badMailgunFile(f mailgunForm) string {
	for _, file := range f.files {
		if file.name == "" {
			return "an attachment without a name would be dropped"
		}
	}
	return ""
}

func badMailgunHeader(f mailgunForm) string {
	for name := range f.fields {
		if strings.HasPrefix(name, "h:") && !isASCII(name) {
			return "Header name must be pure ASCII"
		}
	}
	return ""
}

// mailgunID returns the id of a message that names one: id@domain in angle
// brackets.
func mailgunID(header string) string {
	id := strings.TrimSuffix(strings.TrimPrefix(header, "<"), ">")
	if header != "<"+id+">" || strings.Count(id, "@") != 1 {
		return ""
	}
	return id
}

// searchMailgun finds events of one domain. Its filter is loose: it matches
// fields that contain the term, and with angle brackets all of them
// (mailgun/mailgun.js#296).
func searchMailgun(r Seen, findable []Accepted) Reaction {
	if !mailgunUser(r) {
		return Reply(http.StatusUnauthorized, "Forbidden")
	}
	begin, err := strconv.ParseInt(r.Query.Get("begin"), 10, 64)
	if err != nil || r.Query.Get("ascending") != "yes" {
		return mailgunError(http.StatusBadRequest, "a range needs begin in epoch seconds and a direction")
	}
	domain := strings.TrimSuffix(r.Path, "/events")
	term := r.Query.Get("message-id")
	items := []map[string]any{}
	for _, a := range findable {
		matches := strings.Contains(a.ID, term) || strings.HasPrefix(term, "<")
		if matches && strings.TrimSuffix(a.Path, "/messages") == domain && a.At.Unix() >= begin {
			items = append(items, map[string]any{
				"event": "accepted", "timestamp": float64(a.At.UnixMilli()) / 1000,
				"user-variables": map[string]any{"outboxd_attempt": a.Reference},
				"message":        map[string]any{"headers": map[string]any{"message-id": a.ID}},
			})
		}
	}
	return replyJSON(http.StatusOK, map[string]any{"items": items, "paging": map[string]any{}})
}

func mailgunError(status int, message string) Reaction {
	return replyJSON(status, map[string]any{"message": message})
}
