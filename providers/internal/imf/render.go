// Package imf renders messages in the Internet Message Format (RFC 5322, MIME)
// for the adapters whose protocol carries it.
//
// It is built on the standard library's mime, mime/multipart and
// mime/quotedprintable. The message builders that were looked at each break a
// rule this package has to keep: a header name with a line break injects a
// field (go-mail's SetGenHeader), file names go out as encoded words where
// RFC 2231 is asked for, attachments in another charset are refused, or an
// over-long word gets a space put into it (go-message).
package imf

import (
	"bytes"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// maxLine is the longest line that a message may have, without its CRLF:
// RFC 5322, 2.1.1.
const maxLine = 998

// Render returns r's message with CRLF line ends and a CRLF at its end. The
// same request gives the same bytes. There is never a Bcc field: those
// addresses are in the envelope only. Errors are *[providers.Error] with
// outcome [providers.Rejected].
func Render(r providers.Request) ([]byte, error) {
	if err := providers.Check(r.Message); err != nil {
		return nil, err
	}
	if r.Key == "" || !isContentID(r.Key) {
		return nil, providers.Refuse("bad_key", "the attempt's key cannot stand in a Message-ID")
	}
	root, err := structure(r.Message)
	if err != nil {
		return nil, err
	}
	content, body, err := root.encode(r.Key)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Grow(len(body) + 2048)
	writeHeader(&b, r)
	for _, name := range []string{"Content-Type", "Content-Transfer-Encoding"} {
		if v := content.Get(name); v != "" {
			writeField(&b, name, v)
		}
	}
	b.WriteString("\r\n")
	b.Write(body)
	// The end of mail data is CRLF "." CRLF, so SMTP cannot carry a last line
	// without its end: RFC 5321, 4.1.1.4.
	if !bytes.HasSuffix(body, []byte("\r\n")) {
		b.WriteString("\r\n")
	}
	if hasLongLine(b.Bytes()) {
		return nil, providers.Refuse("line_too_long", "a header has a word that does not fit on a line of 998 bytes")
	}
	return b.Bytes(), nil
}

// MessageID returns the Message-ID of r with its angle brackets: the key at the
// sender's domain, hence the same for every send of the attempt.
func MessageID(r providers.Request) string {
	_, domain, _ := strings.Cut(r.Message.From.Email, "@")
	return "<" + r.Key + "@" + domain + ">"
}

// NeedsUTF8 reports whether an address of m is beyond ASCII, so that the
// message can only travel with SMTPUTF8 (RFC 6531). All else is encoded.
func NeedsUTF8(m providers.Message) bool {
	for _, list := range [][]providers.Address{{m.From}, m.Recipients(), m.ReplyTo} {
		for _, a := range list {
			if !providers.IsASCII(a.Email) {
				return true
			}
		}
	}
	return false
}

func writeHeader(b *bytes.Buffer, r providers.Request) {
	m := r.Message
	writeField(b, "Date", r.Date.UTC().Format(time.RFC1123Z))
	writeField(b, "Message-ID", MessageID(r))
	writeField(b, "From", addressList([]providers.Address{m.From}))
	writeAddresses(b, "Reply-To", m.ReplyTo)
	writeAddresses(b, "To", m.To)
	writeAddresses(b, "Cc", m.Cc)
	if len(m.To) == 0 && len(m.Cc) == 0 {
		writeField(b, "To", "undisclosed-recipients:;")
	}
	writeField(b, "Subject", subject(m.Subject))
	for _, h := range m.Headers {
		writeField(b, h.Name, Unstructured(h.Name, h.Value))
	}
	writeField(b, "MIME-Version", "1.0")
}

func writeAddresses(b *bytes.Buffer, name string, list []providers.Address) {
	if len(list) > 0 {
		writeField(b, name, addressList(list))
	}
}

func addressList(list []providers.Address) string {
	formatted := make([]string, len(list))
	for i, a := range list {
		formatted[i] = address(a)
	}
	return strings.Join(formatted, ", ")
}

func hasLongLine(message []byte) bool {
	for line := range bytes.Lines(message) {
		if len(line) > maxLine+len("\r\n") {
			return true
		}
	}
	return false
}
