package providertest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/providers"
)

// plain is a message that nothing is wrong with.
const plain = `Date: Sun, 01 Mar 2026 12:00:00 +0000
Message-ID: <a@example.com>
From: =?utf-8?q?M=C3=BCller?= <from@example.com>
To: "Doe, Jane" <to@example.org>
Subject: Hello
MIME-Version: 1.0
X-Order: 42
Content-Type: multipart/mixed; boundary=b1

--b1
Content-Type: multipart/alternative; boundary=b2

--b2
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: quoted-printable

Gr=C3=BC=C3=9Fe
--b2
Content-Type: multipart/related; boundary=b3; type="text/html"

--b3
Content-Type: text/html; charset=utf-8

<p>x</p>
--b3
Content-Type: image/png
Content-ID: <logo>
Content-Disposition: inline; filename=logo.png
Content-Transfer-Encoding: base64

cG5n
--b3--
--b2--
--b1
Content-Type: application/pdf
Content-Disposition: attachment; filename*=utf-8''%C3%A4.pdf
Content-Transfer-Encoding: base64

--b1--
`

func wire(s string) []byte { return []byte(strings.ReplaceAll(s, "\n", "\r\n")) }

func TestReadMIME(t *testing.T) {
	t.Parallel()
	got, err := ReadMIME(wire(plain), []string{"to@example.org", "bcc@example.org"})
	if err != nil {
		t.Fatal(err)
	}
	want := providers.Message{
		From:    providers.Address{Name: "Müller", Email: "from@example.com"},
		To:      []providers.Address{{Name: "Doe, Jane", Email: "to@example.org"}},
		Bcc:     []providers.Address{{Email: "bcc@example.org"}},
		Subject: "Hello", Text: "Grüße", HTML: "<p>x</p>",
		Headers: []providers.Header{{Name: "X-Order", Value: "42"}},
		Attachments: []providers.Attachment{
			{Filename: "logo.png", ContentType: "image/png", ContentID: "logo", Content: []byte("png")},
			{Filename: "ä.pdf", ContentType: "application/pdf", Content: []byte{}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What readers forgive, and what loses or leaks something, is an error here.
func TestReadMIMEIsStrict(t *testing.T) {
	t.Parallel()
	swap := func(old, with string) []byte { return wire(strings.Replace(plain, old, with, 1)) }
	tests := map[string][]byte{
		"bare LF":                          []byte(plain),
		"bare CR":                          slices.Concat(wire(plain), []byte("a\rb\r\n")),
		"no line end":                      wire(plain + "x")[:len(wire(plain))+1],
		"line of 999 bytes":                swap("X-Order: 42", "X-Order: "+strings.Repeat("x", 990)),
		"8 bits in the body":               swap("Gr=C3=BC=C3=9Fe", "Grüße"),
		"no empty line":                    []byte("From: a@example.com\r\n"),
		"encoded word of 76 characters":    swap("M=C3=BCller", strings.Repeat("x", 76-len("=?utf-8?q??="))),
		"encoded word in a line of 77":     swap("M=C3=BCller", strings.Repeat("x", 71-len("=?utf-8?q??="))),
		"encoded word that cuts a rune":    swap("M=C3=BCller", "M=C3"),
		"encoded word that is no base64":   swap("?q?M=C3=BCller", "?B?=="),
		"no Date":                          swap("Date: Sun", "X-Date: Sun"),
		"a Date that is none":              swap("Sun, 01 Mar", "Sometime in March"),
		"two dates":                        swap("X-Order: 42", "Date: Sun, 01 Mar 2026 12:00:00 +0000"),
		"no Message-ID":                    swap("Message-ID", "X-ID"),
		"Message-ID without a domain":      swap("<a@example.com>", "<a>"),
		"no MIME-Version":                  swap("MIME-Version", "X-Version"),
		"two subjects":                     swap("X-Order", "Subject"),
		"two senders":                      swap("From: ", "From: other@example.com, "),
		"Bcc":                              swap("X-Order: 42", "Bcc: bcc@example.org"),
		"To that is not in the envelope":   swap(`"Doe, Jane" <to@`, `more@example.org, <to@`),
		"text without a charset":           swap("text/plain; charset=utf-8", "text/plain"),
		"text in another charset":          swap("text/plain; charset=utf-8", "text/plain; charset=iso-8859-1"),
		"HTML before the text":             swap("text/plain; charset", "text/html; charset"),
		"inline beside the HTML":           swap("multipart/related", "multipart/mixed"),
		"inline before the HTML":           swap("text/html; charset", "text/x-other; charset"),
		"Content-ID without its brackets":  swap("<logo>", "logo"),
		"encoded word in a file name":      swap("filename=logo.png", `filename="=?utf-8?q?x?="`),
		"base64 in short lines":            swap("cG5n", "cG5n\ncG5n"),
		"no base64":                        swap("cG5n", "c*5n"),
		"quoted-printable in a long line":  swap("Gr=C3=BC=C3=9Fe", strings.Repeat("x", 77)),
		"binary":                           swap("Encoding: base64", "Encoding: binary"),
		"a multipart that does not end":    swap("--b1--", ""),
		"a multipart without its boundary": swap("boundary=b2", "x=y"),
	}
	for name, content := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if m, err := ReadMIME(content, []string{"to@example.org"}); err == nil {
				t.Errorf("read as %+v", m)
			}
		})
	}
}

// A mail that lacks something, or has something else, is told from the one
// that was given.
func TestNormalTellsMessagesApart(t *testing.T) {
	t.Parallel()
	given := func() providers.Message {
		m := Request(1).Message
		m.Cc = []providers.Address{{Name: "C", Email: "cc@example.org"}}
		m.Attachments = []providers.Attachment{{Filename: "a.pdf", ContentType: "application/pdf", Content: []byte("x")}}
		return m
	}
	for name, edit := range map[string]func(*providers.Message){
		"name":         func(m *providers.Message) { m.From.Name = "" },
		"copy":         func(m *providers.Message) { m.Cc = nil },
		"subject":      func(m *providers.Message) { m.Subject += " " },
		"text":         func(m *providers.Message) { m.Text = "" },
		"a line":       func(m *providers.Message) { m.Text = strings.Replace(m.Text, "\r\n.\r\n", "\r\n", 1) },
		"HTML":         func(m *providers.Message) { m.HTML += "x" },
		"header":       func(m *providers.Message) { m.Headers = nil },
		"header value": func(m *providers.Message) { m.Headers[0].Value = "43" },
		"file":         func(m *providers.Message) { m.Attachments = nil },
		"file name":    func(m *providers.Message) { m.Attachments[0].Filename = "b.pdf" },
		"file type":    func(m *providers.Message) { m.Attachments[0].ContentType = "text/plain" },
		"content id":   func(m *providers.Message) { m.Attachments[0].ContentID = "x" },
		"content":      func(m *providers.Message) { m.Attachments[0].Content = nil },
	} {
		m := given()
		edit(&m)
		if cmp.Equal(normal(given()), normal(m)) {
			t.Errorf("another %s is not noticed", name)
		}
	}
}

// Every service that this package speaks for can say what arrived.
func TestDialectsRead(t *testing.T) {
	t.Parallel()
	for _, d := range []Dialect{Mailgun, Postmark, Resend, SendGrid, SES} {
		if d.Read == nil {
			t.Errorf("%s has no Read", d.Name)
		}
	}
}
