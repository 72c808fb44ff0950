package providertest

import (
	"bytes"
	"errors"
	"fmt"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"

	"github.com/jhillyerd/enmime/v2"

	"github.com/outboxd/outboxd/providers"
)

// ReadMIME returns the message that recipients read in content, which goes to
// the given envelope. It is strict: what common readers forgive, such as a bare
// line feed or a file that no multipart/related holds, is an error.
//
// It is built on a parser that shares no code with this module's renderer.
func ReadMIME(content []byte, recipients []string) (providers.Message, error) {
	var m providers.Message
	if err := checkMIME(content); err != nil {
		return m, err
	}
	parsed, err := mail.ReadMessage(bytes.NewReader(content))
	if err != nil {
		return m, err
	}
	if err := readAddresses(&m, parsed.Header, recipients); err != nil {
		return m, err
	}
	envelope, err := enmime.ReadEnvelope(bytes.NewReader(content))
	if err != nil {
		return m, err
	}
	for _, e := range envelope.Errors {
		if e.Name != enmime.ErrorPlainTextFromHTML { // a service of the parser
			return m, e
		}
	}
	m.Subject = envelope.GetHeader("Subject")
	for name := range envelope.Root.Header {
		if isOwnField(name) {
			continue
		}
		for _, value := range envelope.GetHeaderValues(name) {
			m.Headers = append(m.Headers, providers.Header{Name: name, Value: value})
		}
	}
	readParts(&m, envelope.Root)
	return m, nil
}

// ownFields are those that a message has of itself, in canonical form.
var ownFields = []string{
	"Bcc", "Cc", "Date", "From", "Message-Id", "Mime-Version", "Reply-To", "Subject", "To",
}

func isOwnField(name string) bool {
	name = textproto.CanonicalMIMEHeaderKey(name)
	return slices.Contains(ownFields, name) || strings.HasPrefix(name, "Content-")
}

// readAddresses fills in the address fields. Who is in the envelope and in no
// field gets a blind copy.
func readAddresses(m *providers.Message, h mail.Header, recipients []string) error {
	from, err := addresses(h, "From")
	if err != nil {
		return err
	}
	if len(from) != 1 {
		return fmt.Errorf("%d addresses in From, want 1", len(from))
	}
	m.From = from[0]
	for field, list := range map[string]*[]providers.Address{"To": &m.To, "Cc": &m.Cc, "Reply-To": &m.ReplyTo} {
		if *list, err = addresses(h, field); err != nil {
			return err
		}
	}
	var shown []string
	for _, a := range m.Recipients() {
		if !slices.Contains(recipients, a.Email) {
			return fmt.Errorf("%s is in a field and not in the envelope", a.Email)
		}
		shown = append(shown, a.Email)
	}
	for _, email := range recipients {
		if !slices.Contains(shown, email) {
			m.Bcc = append(m.Bcc, providers.Address{Email: email})
		}
	}
	return nil
}

func addresses(h mail.Header, field string) ([]providers.Address, error) {
	list, err := h.AddressList(field)
	if errors.Is(err, mail.ErrHeaderNotPresent) {
		return nil, nil
	}
	var out []providers.Address
	for _, a := range list {
		out = append(out, providers.Address{Name: a.Name, Email: a.Address})
	}
	return out, err
}

// readParts fills in the bodies and the files.
func readParts(m *providers.Message, p *enmime.Part) {
	if p.FirstChild != nil {
		for child := p.FirstChild; child != nil; child = child.NextSibling {
			readParts(m, child)
		}
		return
	}
	switch {
	case p.ContentType == "text/plain" && p.Disposition == "":
		m.Text += string(p.Content)
	case p.ContentType == "text/html" && p.Disposition == "":
		m.HTML += string(p.Content)
	default:
		m.Attachments = append(m.Attachments, providers.Attachment{
			Filename: p.FileName, ContentType: p.Header.Get("Content-Type"),
			ContentID: p.ContentID, Content: p.Content,
		})
	}
}
