package providers

import (
	"fmt"
	"net/textproto"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Refuse returns the error of Render for a message that cannot be carried.
// The detail may name parts of the message, see [Error].Detail.
func Refuse(code, detail string) *Error {
	return &Error{Outcome: Rejected, Code: code, Detail: detail}
}

// Check refuses what must never reach a header or an envelope: control
// characters, text that is not UTF-8, malformed or repeated addresses, header
// names of the message's own structure. The outbox has checked before; Render
// calls Check again because an injected header is worth two locks. The error
// is an *[Error] with outcome [Rejected].
func Check(m Message) error {
	for _, check := range []func(Message) *Error{
		checkTexts, checkAddresses, checkHeaders, checkBodies,
	} {
		if err := check(m); err != nil {
			return err
		}
	}
	return nil
}

// IsASCII reports whether s has no byte above 127.
func IsASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > unicode.MaxASCII }) < 0
}

// isLine reports whether s is UTF-8 without control characters and without the
// separators of lines that only Unicode knows.
func isLine(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0 && !strings.ContainsAny(s, "\u2028\u2029")
}

func checkTexts(m Message) *Error {
	lines := []string{m.Subject}
	for _, a := range m.Attachments {
		lines = append(lines, a.Filename, a.ContentType, a.ContentID)
	}
	for _, t := range m.Tags {
		lines = append(lines, t.Name, t.Value)
	}
	for _, line := range lines {
		if !isLine(line) {
			return Refuse("control_character", fmt.Sprintf("not a line of text: %q", line))
		}
	}
	return nil
}

func checkBodies(m Message) *Error {
	if m.HTML == "" && m.Text == "" {
		return Refuse("empty_body", "neither an HTML nor a text body")
	}
	if !utf8.ValidString(m.HTML) || !utf8.ValidString(m.Text) {
		return Refuse("invalid_utf8", "a body is not UTF-8")
	}
	return nil
}

// Recipients returns the addresses of To, Cc and Bcc, in this order.
func (m Message) Recipients() []Address {
	all := make([]Address, 0, len(m.To)+len(m.Cc)+len(m.Bcc))
	all = append(all, m.To...)
	all = append(all, m.Cc...)
	return append(all, m.Bcc...)
}

func checkAddresses(m Message) *Error {
	recipients := m.Recipients()
	if len(recipients) == 0 {
		return Refuse("no_recipient", "no recipient")
	}
	for _, list := range [][]Address{{m.From}, recipients, m.ReplyTo} {
		for _, a := range list {
			if err := checkAddress(a); err != nil {
				return err
			}
		}
	}
	seen := make(map[string]bool, len(recipients))
	for _, a := range recipients {
		// SendGrid refuses the whole request for an address that comes
		// twice, and compares without regard to case: sendgrid-ruby#461.
		folded := strings.ToLower(a.Email)
		if seen[folded] {
			return Refuse("repeated_recipient", "recipient given twice: "+a.Email)
		}
		seen[folded] = true
	}
	return nil
}

func checkAddress(a Address) *Error {
	if !isLine(a.Name) {
		return Refuse("control_character", fmt.Sprintf("not a display name: %q", a.Name))
	}
	at := strings.LastIndexByte(a.Email, '@')
	if at < 1 || !isDotAtom(a.Email[:at]) || !isDomain(a.Email[at+1:]) {
		return Refuse("bad_address", fmt.Sprintf("not an address: %q", a.Email))
	}
	return nil
}

// isDotAtom reports whether s can stand unquoted before the @: RFC 5322, 3.2.3,
// with the characters beyond ASCII that RFC 6532 adds. A quoted local part is
// refused, because its spaces and angle brackets would have to survive an SMTP
// command line.
func isDotAtom(s string) bool {
	if !isLine(s) || strings.HasPrefix(s, ".") || strings.HasSuffix(s, ".") || strings.Contains(s, "..") {
		return false
	}
	return !strings.ContainsAny(s, " ()<>[]:;@\\,\"")
}

// isDomain reports whether s is a host name in ASCII (A-labels, RFC 5890).
func isDomain(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || strings.IndexFunc(label, notInLabel) >= 0 {
			return false
		}
	}
	return true
}

func notInLabel(r rune) bool {
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	return !letter && (r < '0' || r > '9') && r != '-' && r != '_'
}

// structural are the fields that rendering writes or that belong to the
// services on the way, in canonical form. Content-* and DKIM-* are structural
// as well.
var structural = map[string]bool{
	"Bcc": true, "Cc": true, "Date": true, "From": true, "Message-Id": true,
	"Mime-Version": true, "Received": true, "Reply-To": true, "Return-Path": true,
	"Subject": true, "To": true,
}

func checkHeaders(m Message) *Error {
	for _, h := range m.Headers {
		name := textproto.CanonicalMIMEHeaderKey(h.Name)
		switch {
		case !isFieldName(h.Name):
			return Refuse("bad_header", fmt.Sprintf("not a header name: %q", h.Name))
		case !isLine(h.Value):
			return Refuse("bad_header", fmt.Sprintf("not a value for header %s: %q", h.Name, h.Value))
		case structural[name], strings.HasPrefix(name, "Content-"), strings.HasPrefix(name, "Dkim-"):
			return Refuse("protected_header", "header "+h.Name+" is not the sender's to set")
		}
	}
	return nil
}

// isFieldName reports whether s is printable ASCII without a colon: RFC 5322,
// 3.6.8. The length keeps a line with its value foldable.
func isFieldName(s string) bool {
	if s == "" || len(s) > 76 {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) < 0
}
