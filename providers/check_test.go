package providers_test

import (
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// refusals are messages that break other senders; numbers are rows of the
// project's list of hard inputs.
var refusals = []struct {
	name string
	code string
	edit func(*providers.Message)
}{
	{"row 2: CRLF in the subject", "control_character", func(m *providers.Message) { m.Subject = "a\r\nBcc: x@example.org" }},
	{"row 2: LF in a name", "control_character", func(m *providers.Message) { m.From.Name = "a\nb" }},
	{"row 2: CR in a name", "control_character", func(m *providers.Message) { m.To[0].Name = "a\rb" }},
	{"row 2: NUL in the subject", "control_character", func(m *providers.Message) { m.Subject = "a\x00" }},
	{"C1 control in a name", "control_character", func(m *providers.Message) { m.To[0].Name = "a\u0085b" }},
	{"CRLF in a file name", "control_character", func(m *providers.Message) {
		m.Attachments = []providers.Attachment{{Filename: "a\r\nX: y"}}
	}},
	{"CRLF in a file's type", "control_character", func(m *providers.Message) {
		m.Attachments = []providers.Attachment{{ContentType: "text/plain\r\nX: y"}}
	}},
	{"CRLF in a content id", "control_character", func(m *providers.Message) {
		m.Attachments = []providers.Attachment{{ContentID: "a\r\nX: y"}}
	}},
	{"CRLF in a tag", "control_character", func(m *providers.Message) { m.Tags = []providers.Tag{{Name: "a", Value: "\r\n"}} }},
	{"row 3: CRLF in a header name", "bad_header", header("X-A\r\nBcc", "x@example.org")},
	{"row 3: CRLF in a header value", "bad_header", header("X-A", "a\r\nBcc: x@example.org")},
	{"row 3: folded header value", "bad_header", header("X-A", "a\r\n b")},
	{"NUL in a header value", "bad_header", header("X-A", "a\x00b")},
	{"tab in a header value", "bad_header", header("X-A", "a\tb")},
	{"colon in a header name", "bad_header", header("X:A", "b")},
	{"space in a header name", "bad_header", header("Bcc ", "b")},
	{"no header name", "bad_header", header("", "b")},
	{"header name beyond ASCII", "bad_header", header("X-Ä", "b")},
	{"very long header name", "bad_header", header(strings.Repeat("x", 77), "b")},
	{"row 22: Bcc", "protected_header", header("bCC", "x@example.org")},
	{"row 22: From", "protected_header", header("From", "x@example.org")},
	{"row 22: Content-Type", "protected_header", header("content-type", "text/plain")},
	{"row 22: DKIM-Signature", "protected_header", header("DKIM-Signature", "v=1")},
	{"row 4: IDN domain that is not in its ASCII form", "bad_address", to("a@bücher.example")},
	{"row 7: trailing dot", "bad_address", to("a@example.org.")},
	{"row 7: two dots", "bad_address", to("a..b@example.org")},
	{"row 7: leading dot", "bad_address", to(".a@example.org")},
	{"SMTP parameters in an address", "bad_address", to("a@example.org> SIZE=1")},
	{"CRLF in an address", "bad_address", to("a@example.org\r\nRCPT TO:<b@example.org>")},
	{"quoted local part", "bad_address", to(`"a b"@example.org`)},
	{"no domain", "bad_address", to("a")},
	{"no local part", "bad_address", to("@example.org")},
	{"empty sender", "bad_address", func(m *providers.Message) { m.From.Email = "" }},
	{"row 10 and F40: an address twice", "repeated_recipient", func(m *providers.Message) {
		m.Bcc = []providers.Address{{Email: strings.ToUpper(m.To[0].Email)}}
	}},
	{"nobody to send to", "no_recipient", func(m *providers.Message) { m.To = nil }},
	{"row 13: both bodies empty", "empty_body", func(m *providers.Message) { m.HTML, m.Text = "", "" }},
	{"row 24: text that is not UTF-8", "invalid_utf8", func(m *providers.Message) { m.Text = "a\xff" }},
	{"row 24: subject that is not UTF-8", "control_character", func(m *providers.Message) { m.Subject = "a\xff" }},
}

func header(name, value string) func(*providers.Message) {
	return func(m *providers.Message) { m.Headers = []providers.Header{{Name: name, Value: value}} }
}

func to(address string) func(*providers.Message) {
	return func(m *providers.Message) { m.To = []providers.Address{{Email: address}} }
}

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range refusals {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := providertest.Request(1).Message
			tt.edit(&m)
			err := providers.Check(m)
			if err == nil {
				t.Fatal("passed, want a refusal")
			}
			e := providers.AsError(err)
			if e.Outcome != providers.Rejected || e.Code != tt.code {
				t.Errorf("got %v, want rejected %s", err, tt.code)
			}
		})
	}
}

func TestCheckPasses(t *testing.T) {
	t.Parallel()
	passes := map[string]func(*providers.Message){
		"ordinary":                    func(*providers.Message) {},
		"row 1: name with a comma":    func(m *providers.Message) { m.To[0].Name = "Müller, Jürgen" },
		"row 4: A-labels":             to("a@xn--bcher-kva.example"),
		"row 5: UTF-8 local part":     to("jürgen@example.org"),
		"row 20: one-click":           header("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
		"name that looks like a host": header("X_odd.name+1", "fine"),
		"only Bcc":                    func(m *providers.Message) { m.Bcc, m.To = m.To, nil },
		"value beyond ASCII":          header("X-A", "Grüße"),
	}
	for name, edit := range passes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := providertest.Request(1).Message
			edit(&m)
			if err := providers.Check(m); err != nil {
				t.Errorf("refused: %v (%s)", err, providers.AsError(err).Detail)
			}
		})
	}
}
