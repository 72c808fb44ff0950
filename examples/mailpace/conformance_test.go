package mailpace_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/examples/mailpace"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

const token = "a-token-that-must-not-be-seen"

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, providertest.Suite{
		Start: func(t testing.TB) providertest.Server { return providertest.NewHTTP(t, dialect) },
		New: func(t testing.TB, url string) providers.Provider {
			p, err := mailpace.New(mailpace.Config{Token: token, BaseURL: url})
			if err != nil {
				t.Fatal(err)
			}
			return p
		},
		Secrets: []string{token},
		// https://docs.mailpace.com/reference/responses
		Definite: map[int]providers.Outcome{
			400: providers.Rejected,
			401: providers.Misconfigured,
			403: providers.Misconfigured,
			406: providers.Rejected,
			413: providers.Rejected,
			429: providers.Deferred,
		},
		Fit:     func(m *providers.Message) { m.Headers = nil },
		Refuses: []string{mailpace.CodeHeader, mailpace.CodeFileType},
	})
}

// dialect is POST /send, written from https://docs.mailpace.com/reference/send
// and not with the adapter's types.
var dialect = providertest.Dialect{
	Name: "mailpace",
	Path: "/send",
	Keys: providertest.KeyRules{Header: "Idempotency-Key", Window: 24 * time.Hour},
	Parse: func(r providertest.Seen) providertest.Parsed {
		m, err := parse(r)
		reference := ""
		for _, tag := range m.Tags {
			if key, ok := strings.CutPrefix(tag, "outboxd_attempt:"); ok {
				reference = key
			}
		}
		return providertest.Parsed{
			Reference: reference,
			Refusal:   refusal(r, m, err),
			ID:        fmt.Sprint(r.Number),
			Accepted: func(id string) providertest.Reaction {
				return providertest.Reply(http.StatusOK, `{"id":`+id+`,"status":"pending"}`)
			},
		}
	},
	Read: read,
}

// sent is the request as the page describes it.
type sent struct {
	From, To, Cc, Bcc, ReplyTo, Subject, HTMLBody, TextBody string

	InReplyTo, References string
	ListUnsubscribe       string `json:"list_unsubscribe"`
	Tags                  []string
	Attachments           []struct {
		Name, Content, CID string
		ContentType        string `json:"content_type"`
	}
}

func parse(r providertest.Seen) (m sent, err error) {
	err = json.Unmarshal(r.Body, &m)
	return m, err
}

func refuse(status int, message string) providertest.Reaction {
	return providertest.Reply(status, `{"error":"`+message+`"}`)
}

// refusal is what the service answers, and the zero Reaction where it accepts.
func refusal(r providertest.Seen, m sent, err error) providertest.Reaction {
	switch {
	case r.Header.Get("MailPace-Server-Token") == "":
		return refuse(http.StatusUnauthorized, "Missing API Token")
	case err != nil || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Accept") != "application/json":
		return refuse(http.StatusNotAcceptable, "Invalid request format or content type")
	case m.HTMLBody == "" && m.TextBody == "":
		return refuse(http.StatusBadRequest, "no body")
	}
	if _, err := mail.ParseAddress(m.From); err != nil {
		return refuse(http.StatusBadRequest, "Email from address not parseable")
	}
	if to, err := mail.ParseAddressList(m.To); err != nil || len(to) > 50 {
		return refuse(http.StatusBadRequest, "to is invalid")
	}
	for _, file := range m.Attachments {
		if _, err := base64.StdEncoding.DecodeString(file.Content); err != nil || strings.Count(file.Name, ".") != 1 {
			return refuse(http.StatusBadRequest, "attachment is invalid")
		}
	}
	return providertest.Reaction{}
}

// read returns the message as its recipients get it.
func read(r providertest.Seen) (m providers.Message, err error) {
	s, err := parse(r)
	if err != nil {
		return m, err
	}
	m.Subject, m.HTML, m.Text = s.Subject, s.HTMLBody, s.TextBody
	from, err := addresses(s.From)
	if err != nil {
		return m, err
	}
	m.From = from[0]
	for list, text := range map[*[]providers.Address]string{&m.To: s.To, &m.Cc: s.Cc, &m.Bcc: s.Bcc, &m.ReplyTo: s.ReplyTo} {
		if *list, err = addresses(text); err != nil {
			return m, err
		}
	}
	for name, value := range map[string]string{
		"In-Reply-To": s.InReplyTo, "References": s.References, "List-Unsubscribe": s.ListUnsubscribe,
	} {
		if value != "" {
			m.Headers = append(m.Headers, providers.Header{Name: name, Value: value})
		}
	}
	for _, file := range s.Attachments {
		content, err := base64.StdEncoding.DecodeString(file.Content)
		if err != nil {
			return m, err
		}
		m.Attachments = append(m.Attachments, providers.Attachment{
			Filename: file.Name, ContentType: file.ContentType, ContentID: strings.Trim(file.CID, "<>"), Content: content,
		})
	}
	return m, nil
}

func addresses(list string) ([]providers.Address, error) {
	if list == "" {
		return nil, nil
	}
	parsed, err := mail.ParseAddressList(list)
	if err != nil {
		return nil, err
	}
	var all []providers.Address
	for _, a := range parsed {
		all = append(all, providers.Address{Name: a.Name, Email: a.Address})
	}
	return all, nil
}

// The page's errors whose text says more than their status.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status  int
		message string
		want    providers.Outcome
	}{
		{400, "Invalid API Token", providers.Misconfigured},
		{400, "Email from address not parseable", providers.Rejected},
		{403, "Domain DKIM DNS not verified, please complete DKIM Verification", providers.Misconfigured},
		{403, "Verified domain does not match domain in From address of email", providers.Deferred},
		{500, "Invalid API Token", providers.InDoubt},
	} {
		server := providertest.NewHTTP(t, dialect)
		server.Respond(func(providertest.Seen) providertest.Reaction { return refuse(tt.status, tt.message) })
		p, err := mailpace.New(mailpace.Config{Token: token, BaseURL: server.URL()})
		if err != nil {
			t.Fatal(err)
		}
		r := providertest.Request(1)
		r.Message.Headers = nil
		payload, err := p.Render(r)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Send(t.Context(), providers.Sending{Request: r, Payload: payload})
		if e := providers.AsError(err); err == nil || e.Outcome != tt.want || !strings.Contains(e.Detail, tt.message) {
			t.Errorf("%d %s: %v, want %v", tt.status, tt.message, err, tt.want)
		}
	}
}
