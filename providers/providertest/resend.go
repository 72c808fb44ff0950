package providertest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/mail"
	"regexp"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// Resend is POST /emails, with idempotency keys:
// https://resend.com/docs/api-reference/emails/send-email
// https://resend.com/docs/dashboard/emails/idempotency-keys
var Resend = Dialect{
	Name: "resend",
	Path: "/emails",
	Keys: KeyRules{
		Header: "Idempotency-Key",
		Window: 24 * time.Hour,
		OtherBody: resendError(http.StatusConflict, "invalid_idempotent_request",
			"Same idempotency key used with a different request payload."),
		Concurrent: resendError(http.StatusConflict, "concurrent_idempotent_requests",
			"Same idempotency key used while original request is still in progress."),
	},
	Parse: func(r Seen) Parsed {
		var m resendMail
		err := json.Unmarshal(r.Body, &m)
		reference := ""
		for _, t := range m.Tags {
			if t.Name == "outboxd_attempt" {
				reference = t.Value
			}
		}
		return Parsed{
			Reference: reference,
			From:      bareAddress(m.From), To: m.recipients(), Subject: m.Subject,
			Refusal: checkResend(r, m, err),
			Accepted: func(id string) Reaction {
				return Reply(http.StatusOK, fmt.Sprintf(`{"id":%q}`, id)).With("Content-Type", "application/json")
			},
		}
	},
	Refuse: func(status int) Reaction {
		name, ok := resendErrorNames[status]
		if !ok {
			name = "application_error"
		}
		return resendError(status, name, http.StatusText(status))
	},
	Read: readResend,
}

// resendErrorNames are names of https://resend.com/docs/api-reference/errors for
// answers that a script asks for by their status alone.
var resendErrorNames = map[int]string{
	http.StatusBadRequest:                 "validation_error",
	http.StatusUnauthorized:               "missing_api_key",
	http.StatusForbidden:                  "invalid_api_key",
	http.StatusNotFound:                   "not_found",
	http.StatusMethodNotAllowed:           "method_not_allowed",
	http.StatusConflict:                   "concurrent_idempotent_requests",
	http.StatusUnprocessableEntity:        "validation_error",
	http.StatusTooManyRequests:            "rate_limit_exceeded",
	http.StatusUnavailableForLegalReasons: "security_error",
	http.StatusInternalServerError:        "internal_server_error",
}

// resendMail is the part of the request that the service's rules look at. It
// is written from the API's page and not with the adapter's types.
type resendMail struct {
	From        string   `json:"from"`
	To          []string `json:"to"`
	Cc          []string `json:"cc"`
	Bcc         []string `json:"bcc"`
	ReplyTo     []string `json:"reply_to"`
	Subject     string   `json:"subject"`
	HTML        string   `json:"html"`
	Text        string   `json:"text"`
	Attachments []struct {
		Content     *string `json:"content"`
		Path        string  `json:"path"`
		Filename    string  `json:"filename"`
		ContentType string  `json:"content_type"`
		ContentID   string  `json:"content_id"`
	} `json:"attachments"`
	Headers map[string]string `json:"headers"`
	Tags    []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"tags"`
}

func (m resendMail) recipients() []string {
	var all []string
	for _, list := range [][]string{m.To, m.Cc, m.Bcc} {
		for _, a := range list {
			all = append(all, bareAddress(a))
		}
	}
	return all
}

// bareAddress returns the address in Name <email@example.com>, or s as it is
// where it is no address.
func bareAddress(s string) string {
	a, err := mail.ParseAddress(s)
	if err != nil {
		return s
	}
	return a.Address
}

// bareAddresses returns the addresses of a list, separated by commas.
func bareAddresses(list string) []string {
	addresses, err := mail.ParseAddressList(list)
	if err != nil {
		return nil
	}
	var all []string
	for _, a := range addresses {
		all = append(all, a.Address)
	}
	return all
}

// checkResend refuses what the service is known to refuse:
// https://resend.com/docs/api-reference/errors
func checkResend(r Seen, m resendMail, err error) Reaction {
	if key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); !ok || key == "" {
		return resendError(http.StatusUnauthorized, "missing_api_key", "Missing API Key")
	}
	if keys := r.Header.Values("Idempotency-Key"); len(keys) > 0 && (keys[0] == "" || len(keys[0]) > 256) {
		return resendError(http.StatusBadRequest, "invalid_idempotency_key",
			"Idempotency keys, if present, must have between 1 and 256 characters.")
	}
	invalid := func(name, message string) Reaction {
		return resendError(http.StatusUnprocessableEntity, name, message)
	}
	switch {
	case err != nil:
		return resendError(http.StatusBadRequest, "validation_error", "The request body is not valid JSON.")
	case m.From == "" || len(m.To) == 0 || m.Subject == "":
		return invalid("missing_required_field", "The request body is missing one or more required fields.")
	case m.HTML == "" && m.Text == "":
		return invalid("validation_error", "Missing `html` or `text` field.")
	case len(m.To) > 50:
		return invalid("validation_error", "The `to` field must not have more than 50 items.")
	case !isResendMailbox(m.From):
		return invalid("invalid_from_address", "Invalid `from` field.")
	case strings.HasPrefix(m.From, "=?"):
		return resendError(http.StatusUnavailableForLegalReasons, "security_error",
			"The email payload contain invalid characters")
	}
	for _, list := range [][]string{m.To, m.Cc, m.Bcc, m.ReplyTo} {
		for _, address := range list {
			if !isResendMailbox(address) {
				return invalid("validation_error", "Invalid email address: "+address)
			}
		}
	}
	if reason := badResendTag(m); reason != "" {
		return invalid("validation_error", reason)
	}
	if reason := badResendFile(m); reason != "" {
		return invalid("invalid_attachment", reason)
	}
	return Reaction{}
}

// readResend is what https://resend.com/docs/api-reference/emails/send-email
// says of each field.
func readResend(r Seen) (providers.Message, error) {
	var mail resendMail
	if err := json.Unmarshal(r.Body, &mail); err != nil {
		return providers.Message{}, err
	}
	m := providers.Message{Subject: mail.Subject, HTML: mail.HTML, Text: mail.Text}
	err := readLists(&m, map[string][]string{
		"From": {mail.From}, "To": mail.To, "Cc": mail.Cc, "Bcc": mail.Bcc, "Reply-To": mail.ReplyTo,
	})
	if err != nil {
		return m, err
	}
	for name, value := range mail.Headers {
		m.Headers = append(m.Headers, providers.Header{Name: name, Value: value})
	}
	for _, file := range mail.Attachments {
		if file.Content == nil {
			return m, fmt.Errorf("file %q has no content", file.Filename)
		}
		content, err := base64.StdEncoding.DecodeString(*file.Content)
		if err != nil {
			return m, err
		}
		m.Attachments = append(m.Attachments, providers.Attachment{
			Filename: file.Filename, ContentType: file.ContentType, ContentID: file.ContentID, Content: content,
		})
	}
	return m, nil
}

// isResendMailbox reports whether s has the form email@example.com or
// Name <email@example.com>, with an ASCII address.
func isResendMailbox(s string) bool {
	a, err := mail.ParseAddress(s)
	if err != nil {
		return false
	}
	return isASCII(a.Address)
}

var resendTag = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)

func badResendTag(m resendMail) string {
	if len(m.Tags) > 75 {
		return "There is a limit of 75 tags."
	}
	for _, t := range m.Tags {
		if !resendTag.MatchString(t.Name) || !resendTag.MatchString(t.Value) {
			return "Tags should only contain ASCII letters, numbers, underscores, or dashes."
		}
	}
	return ""
}

func badResendFile(m resendMail) string {
	for _, file := range m.Attachments {
		switch {
		case file.Content == nil && file.Path == "":
			return "Attachment must have either a `content` or `path`."
		case len(file.ContentID) >= 128:
			return "The content id must be less than 128 characters."
		case file.Content != nil:
			if _, err := base64.StdEncoding.DecodeString(*file.Content); err != nil {
				return "The content must be base64 encoded."
			}
		}
	}
	return ""
}

func resendError(status int, name, message string) Reaction {
	return replyJSON(status, map[string]any{"statusCode": status, "name": name, "message": message})
}
