package providertest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/mail"
	"strings"

	"github.com/outboxd/outboxd/providers"
)

// Dialect is how an HTTP API takes a message. A new provider is one more value
// of this type.
type Dialect struct {
	// Name is the service's name.
	Name string
	// Path is where messages are posted: a pattern of [path.Match].
	Path string
	// Keys says how idempotency keys are treated; the zero value: not at all.
	Keys KeyRules
	// Parse looks at a complete request.
	Parse func(Seen) Parsed
	// Refuse is the service's own form of an answer with this status.
	Refuse func(status int) Reaction
	// Read returns the message of a request as its recipients get it, for the
	// suite's check of what arrives. It reads what the service's page says and
	// not what the adapter writes. Tags are left out. Nil: nothing is checked.
	Read func(Seen) (providers.Message, error)
	// Search is the service's search by the reference; nil where there is none.
	Search *Search
}

// Parsed is what the service makes of a request.
type Parsed struct {
	// Reference is the attempt's key.
	Reference string
	// From, To (with Cc and Bcc) and Subject are the message's; the addresses
	// are without names.
	From    string
	To      []string
	Subject string
	// ID is the name that the request gives its message; empty where the
	// service makes one up.
	ID string
	// Refusal is what the service itself refuses the request with; the zero
	// Reaction lets it pass.
	Refusal Reaction
	// Accepted is the answer to an accepted message with the given id.
	Accepted func(id string) Reaction
	// Content is what the adapter rendered, where the request wraps it: see
	// [Accepted].Body. Nil is the request's body.
	Content []byte
}

// readLists fills in m's addresses from the values that a request has for each
// field: lists of addresses, of which each may be empty.
func readLists(m *providers.Message, fields map[string][]string) error {
	var from []providers.Address
	into := map[string]*[]providers.Address{"From": &from, "To": &m.To, "Cc": &m.Cc, "Bcc": &m.Bcc, "Reply-To": &m.ReplyTo}
	for field, values := range fields {
		for _, value := range values {
			if value == "" {
				continue
			}
			list, err := mail.ParseAddressList(value)
			if err != nil {
				return fmt.Errorf("%s %q: %w", field, value, err)
			}
			for _, a := range list {
				*into[field] = append(*into[field], providers.Address{Name: a.Name, Email: a.Address})
			}
		}
	}
	if len(from) != 1 {
		return fmt.Errorf("%d addresses in From, want 1", len(from))
	}
	m.From = from[0]
	return nil
}

// SendGrid is POST /v3/mail/send:
// https://www.twilio.com/docs/sendgrid/api-reference/mail-send/mail-send
var SendGrid = Dialect{
	Name: "sendgrid",
	Path: "/v3/mail/send",
	Parse: func(r Seen) Parsed {
		mail, err := parseSendGrid(r.Body)
		status := http.StatusAccepted
		if mail.MailSettings.SandboxMode.Enable {
			status = http.StatusOK
		}
		return Parsed{
			Reference: mail.CustomArgs["outboxd_attempt"],
			From:      mail.From.Email, To: mail.recipients(), Subject: mail.Subject,
			Refusal:  checkSendGrid(r, mail, err),
			Accepted: func(id string) Reaction { return Reply(status, "").With("X-Message-Id", id) },
		}
	},
	Refuse: func(status int) Reaction { return sendGridError(status, http.StatusText(status)) },
	Read:   readSendGrid,
}

// sendGridMail is the part of the request that the service's rules look at. It
// is written from the API's page and not with the SDK's types, which the
// adapter uses.
type sendGridMail struct {
	Personalizations []struct {
		To  []sendGridAddress `json:"to"`
		Cc  []sendGridAddress `json:"cc"`
		Bcc []sendGridAddress `json:"bcc"`
	} `json:"personalizations"`
	From        sendGridAddress   `json:"from"`
	ReplyTo     *sendGridAddress  `json:"reply_to"`
	ReplyToList []sendGridAddress `json:"reply_to_list"`
	Subject     string            `json:"subject"`
	Content     []struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	} `json:"content"`
	Attachments []struct {
		Content   string `json:"content"`
		Type      string `json:"type"`
		Filename  string `json:"filename"`
		ContentID string `json:"content_id"`
	} `json:"attachments"`
	Headers      map[string]string `json:"headers"`
	Categories   []string          `json:"categories"`
	CustomArgs   map[string]string `json:"custom_args"`
	MailSettings struct {
		SandboxMode struct {
			Enable bool `json:"enable"`
		} `json:"sandbox_mode"`
	} `json:"mail_settings"`
}

type sendGridAddress struct {
	Email string `json:"email"`
	Name  string `json:"name"`
}

func (m sendGridMail) recipients() []string {
	var all []string
	for _, p := range m.Personalizations {
		for _, list := range [][]sendGridAddress{p.To, p.Cc, p.Bcc} {
			for _, a := range list {
				all = append(all, a.Email)
			}
		}
	}
	return all
}

func parseSendGrid(body []byte) (sendGridMail, error) {
	var mail sendGridMail
	err := json.Unmarshal(body, &mail)
	return mail, err
}

// checkSendGrid refuses what the service is known to refuse:
// https://www.twilio.com/docs/sendgrid/api-reference/mail-send/errors
func checkSendGrid(r Seen, mail sendGridMail, err error) Reaction {
	if key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); !ok || key == "" {
		return sendGridError(http.StatusUnauthorized, "The provided authorization grant is invalid, expired, or revoked")
	}
	switch {
	case err != nil:
		return sendGridError(http.StatusBadRequest, "Bad Request")
	case len(mail.Personalizations) == 0 || len(mail.Personalizations[0].To) == 0:
		return sendGridError(http.StatusBadRequest, "The to array is required for all personalization objects.")
	case mail.Subject == "" || len(mail.Content) == 0 || mail.From.Email == "":
		return sendGridError(http.StatusBadRequest, "from, subject and content are required.")
	case len(mail.Categories) > 10:
		return sendGridError(http.StatusBadRequest, "There is a limit of 10 categories.")
	}
	for _, content := range mail.Content {
		if content.Value == "" {
			return sendGridError(http.StatusBadRequest, "The content value must be a string at least one character in length.")
		}
	}
	if reason := badSendGridFile(mail); reason != "" {
		return sendGridError(http.StatusBadRequest, reason)
	}
	if twice := sendGridTwice(mail); twice != "" {
		return sendGridError(http.StatusBadRequest, "Each email address should be unique between to, cc, and bcc: "+twice)
	}
	return Reaction{}
}

// readSendGrid is what https://www.twilio.com/docs/sendgrid/api-reference/mail-send/mail-send
// says of each field. Headers come without regard to their order.
func readSendGrid(r Seen) (providers.Message, error) {
	mail, err := parseSendGrid(r.Body)
	if err != nil || len(mail.Personalizations) != 1 {
		return providers.Message{}, fmt.Errorf("%d personalizations, want 1: %w", len(mail.Personalizations), err)
	}
	list := func(in []sendGridAddress) (out []providers.Address) {
		for _, a := range in {
			out = append(out, providers.Address{Name: a.Name, Email: a.Email})
		}
		return out
	}
	if mail.ReplyTo != nil {
		mail.ReplyToList = append(mail.ReplyToList, *mail.ReplyTo)
	}
	to := mail.Personalizations[0]
	m := providers.Message{
		From: providers.Address{Name: mail.From.Name, Email: mail.From.Email},
		To:   list(to.To), Cc: list(to.Cc), Bcc: list(to.Bcc), ReplyTo: list(mail.ReplyToList),
		Subject: mail.Subject,
	}
	for _, content := range mail.Content {
		switch content.Type {
		case "text/plain":
			m.Text += content.Value
		case "text/html":
			m.HTML += content.Value
		}
	}
	for name, value := range mail.Headers {
		m.Headers = append(m.Headers, providers.Header{Name: name, Value: value})
	}
	for _, file := range mail.Attachments {
		content, err := base64.StdEncoding.DecodeString(file.Content)
		if err != nil {
			return m, err
		}
		m.Attachments = append(m.Attachments, providers.Attachment{
			Filename: file.Filename, ContentType: file.Type, ContentID: file.ContentID, Content: content,
		})
	}
	return m, nil
}

func badSendGridFile(mail sendGridMail) string {
	for _, file := range mail.Attachments {
		if _, err := base64.StdEncoding.DecodeString(file.Content); err != nil || file.Content == "" {
			return "The attachment content must be base64 encoded and at least one character in length."
		}
		if file.Filename == "" || strings.ContainsAny(file.Type, ";\r\n") {
			return "The attachment needs a filename, and a type without ';' or CRLF."
		}
	}
	return ""
}

// sendGridTwice returns an address that occurs more than once.
func sendGridTwice(mail sendGridMail) string {
	for _, p := range mail.Personalizations {
		seen := map[string]bool{}
		for _, list := range [][]sendGridAddress{p.To, p.Cc, p.Bcc} {
			for _, a := range list {
				folded := strings.ToLower(a.Email)
				if seen[folded] {
					return a.Email
				}
				seen[folded] = true
			}
		}
	}
	return ""
}

func sendGridError(status int, message string) Reaction {
	body := fmt.Sprintf(`{"errors":[{"message":%q,"field":null,"help":null}]}`, message)
	return Reply(status, body).With("Content-Type", "application/json")
}
