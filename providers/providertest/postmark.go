package providertest

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/mail"
	"strings"

	"github.com/outboxd/outboxd/providers"
)

// Postmark is POST /email, and GET /messages/outbound to search by metadata:
// https://postmarkapp.com/developer/api/email-api
// https://postmarkapp.com/developer/api/messages-api
var Postmark = Dialect{
	Name: "postmark",
	Path: "/email",
	Parse: func(r Seen) Parsed {
		var m postmarkMail
		err := json.Unmarshal(r.Body, &m)
		return Parsed{
			Reference: m.Metadata["outboxd_attempt"],
			From:      bareAddress(m.From), To: m.recipients(), Subject: m.Subject,
			Refusal: checkPostmark(r, m, err),
			Accepted: func(id string) Reaction {
				return replyJSON(http.StatusOK, map[string]any{
					"To": m.To, "SubmittedAt": "2026-03-01T12:00:00.0000000-05:00",
					"MessageID": id, "ErrorCode": 0, "Message": "OK",
				})
			},
		}
	},
	Read:   readPostmark,
	Search: &Search{Path: "/messages/outbound", Answer: searchPostmark},
	Refuse: func(status int) Reaction {
		return postmarkError(status, postmarkErrorCodes[status], http.StatusText(status))
	},
}

// postmarkErrorCodes are codes for answers that a script asks for by their
// status alone: https://postmarkapp.com/developer/api/overview#error-codes
var postmarkErrorCodes = map[int]int{
	http.StatusUnauthorized:        10,
	http.StatusUnprocessableEntity: 300,
	http.StatusServiceUnavailable:  100,
}

// Limits of the service, see the rules in checkPostmark.
const (
	postmarkRecipients    = 50
	postmarkBytes         = 10 << 20
	postmarkBodyBytes     = 5 << 20
	postmarkTag           = 1000
	postmarkMetadata      = 10
	postmarkMetadataName  = 20
	postmarkMetadataValue = 80
)

// postmarkMail is the part of the request that the service's rules look at. It
// is written from the API's page and not with the adapter's types.
type postmarkMail struct {
	From, To, Cc, Bcc, ReplyTo string
	Subject, Tag               string
	HTMLBody                   string `json:"HtmlBody"`
	TextBody                   string
	Metadata                   map[string]string
	MessageStream              string
	Headers                    []struct{ Name, Value string }
	Attachments                []struct {
		Name, Content, ContentType, ContentID string
	}
}

// stream is the message stream, which is "outbound" where none is named.
func (m postmarkMail) stream() string {
	if m.MessageStream == "" {
		return "outbound"
	}
	return m.MessageStream
}

func (m postmarkMail) recipients() []string {
	var all []string
	for _, list := range []string{m.To, m.Cc, m.Bcc} {
		all = append(all, bareAddresses(list)...)
	}
	return all
}

// readPostmark is what https://postmarkapp.com/developer/api/email-api says of
// each field.
func readPostmark(r Seen) (providers.Message, error) {
	var mail postmarkMail
	if err := json.Unmarshal(r.Body, &mail); err != nil {
		return providers.Message{}, err
	}
	m := providers.Message{Subject: mail.Subject, HTML: mail.HTMLBody, Text: mail.TextBody}
	err := readLists(&m, map[string][]string{
		"From": {mail.From}, "To": {mail.To}, "Cc": {mail.Cc}, "Bcc": {mail.Bcc}, "Reply-To": {mail.ReplyTo},
	})
	if err != nil {
		return m, err
	}
	for _, h := range mail.Headers {
		m.Headers = append(m.Headers, providers.Header{Name: h.Name, Value: h.Value})
	}
	for _, file := range mail.Attachments {
		content, err := base64.StdEncoding.DecodeString(file.Content)
		if err != nil {
			return m, err
		}
		m.Attachments = append(m.Attachments, providers.Attachment{
			Filename: file.Name, ContentType: file.ContentType,
			ContentID: strings.TrimPrefix(file.ContentID, "cid:"), Content: content,
		})
	}
	return m, nil
}

// checkPostmark refuses what the service is known to refuse:
// https://postmarkapp.com/developer/api/overview (statuses, codes)
// https://postmarkapp.com/support/article/1180-what-does-errorcode-300-mean
func checkPostmark(r Seen, m postmarkMail, err error) Reaction {
	invalid := func(message string) Reaction {
		return postmarkError(http.StatusUnprocessableEntity, 300, message)
	}
	switch {
	case r.Header.Get("X-Postmark-Server-Token") == "":
		return postmarkError(http.StatusUnauthorized, 10, "Request does not contain a valid Server token.")
	case len(r.Body) > postmarkBytes:
		return Reply(http.StatusRequestEntityTooLarge, "")
	case r.Header.Get("Content-Type") != "application/json":
		return Reply(http.StatusUnsupportedMediaType, "")
	case err != nil:
		return postmarkError(http.StatusUnprocessableEntity, 402, "Received invalid JSON input.")
	case m.HTMLBody == "" && m.TextBody == "":
		return invalid("Provide either email TextBody or HtmlBody or both.")
	case len(m.HTMLBody) > postmarkBodyBytes || len(m.TextBody) > postmarkBodyBytes:
		return invalid("A body exceeds 5 MB.")
	case len(m.Tag) > postmarkTag:
		return invalid("The tag exceeds 1000 characters.")
	}
	for _, reason := range []string{badPostmarkAddress(m), badPostmarkMetadata(m), badPostmarkFile(m)} {
		if reason != "" {
			return invalid(reason)
		}
	}
	return Reaction{}
}

func badPostmarkAddress(m postmarkMail) string {
	if m.To == "" {
		return "Zero recipients specified."
	}
	if from, err := mail.ParseAddress(m.From); err != nil || !isASCII(from.Address) {
		return "Invalid 'From' address."
	}
	recipients := 0
	for field, list := range map[string]string{"To": m.To, "Cc": m.Cc, "Bcc": m.Bcc, "ReplyTo": m.ReplyTo} {
		if list == "" {
			continue
		}
		addresses, err := mail.ParseAddressList(list)
		if err != nil {
			return "Error parsing '" + field + "'."
		}
		for _, a := range addresses {
			if !isASCII(a.Address) {
				return "Error parsing '" + field + "': Illegal email address."
			}
		}
		if field != "ReplyTo" {
			recipients += len(addresses)
		}
	}
	if recipients > postmarkRecipients {
		return "Maximum of 50 recipients allowed per email message."
	}
	return ""
}

// badPostmarkMetadata: the text is in dittofeed/dittofeed#1759, the rule about
// case in https://postmarkapp.com/support/article/1125-custom-metadata-faq
func badPostmarkMetadata(m postmarkMail) string {
	if len(m.Metadata) > postmarkMetadata {
		return "Invalid metadata content. There is a limit of 10 fields."
	}
	seen := map[string]bool{}
	for name, value := range m.Metadata {
		if len([]rune(name)) > postmarkMetadataName || len([]rune(value)) > postmarkMetadataValue {
			return "Invalid metadata content. Field names are limited to 20 characters and field values are limited to 80 characters in length."
		}
		if seen[strings.ToLower(name)] {
			return "Invalid metadata content. Duplicate keys are not allowed."
		}
		seen[strings.ToLower(name)] = true
	}
	return ""
}

func badPostmarkFile(m postmarkMail) string {
	for _, file := range m.Attachments {
		if _, err := base64.StdEncoding.DecodeString(file.Content); err != nil || file.ContentType == "" {
			return "An attachment needs base64 Content and a ContentType."
		}
		if file.ContentID != "" && !strings.HasPrefix(file.ContentID, "cid:") {
			return "The ContentID of an inline attachment begins with cid:."
		}
	}
	return ""
}

// searchPostmark finds messages of one stream by one field of their metadata.
func searchPostmark(r Seen, findable []Accepted) Reaction {
	if r.Header.Get("X-Postmark-Server-Token") == "" {
		return postmarkError(http.StatusUnauthorized, 10, "Request does not contain a valid Server token.")
	}
	if r.Query.Get("count") == "" || r.Query.Get("offset") == "" {
		return Reply(http.StatusUnprocessableEntity, "")
	}
	stream := r.Query.Get("messagestream")
	if stream == "" {
		stream = "outbound"
	}
	found := []map[string]any{}
	for _, a := range findable {
		var m postmarkMail
		if json.Unmarshal(a.Body, &m) == nil && m.stream() == stream && m.matches(r) {
			found = append(found, map[string]any{
				"MessageID": a.ID, "MessageStream": stream, "Tag": m.Tag, "From": m.From,
				"Subject": m.Subject, "Status": "Sent", "Metadata": m.Metadata,
			})
		}
	}
	return replyJSON(http.StatusOK, map[string]any{"TotalCount": len(found), "Messages": found})
}

// matches reports whether m has the metadata that r asks for.
func (m postmarkMail) matches(r Seen) bool {
	for parameter, values := range r.Query {
		name, ok := strings.CutPrefix(parameter, "metadata_")
		if ok && m.Metadata[name] != values[0] {
			return false
		}
	}
	return true
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > '~' }) < 0
}

func postmarkError(status, code int, message string) Reaction {
	return replyJSON(status, map[string]any{"ErrorCode": code, "Message": message})
}

// replyJSON answers with v, which has numbers, strings and the like in it.
func replyJSON(status int, v any) Reaction {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return Reply(status, string(body)).With("Content-Type", "application/json")
}
