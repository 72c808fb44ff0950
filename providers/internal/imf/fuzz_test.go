package imf_test

import (
	"bytes"
	"net/mail"
	"slices"
	"strings"
	"testing"

	"github.com/jhillyerd/enmime/v2"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/imf"
)

// fields are the names in the header of a message, as another parser reads it.
func fields(t *testing.T, message []byte) (names []string) {
	t.Helper()
	m, err := mail.ReadMessage(bytes.NewReader(message))
	if err != nil {
		t.Fatalf("read: %v\n%q", err, message)
	}
	for name, values := range m.Header {
		for range values {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// FuzzRender: whatever is in a message, it is refused or rendered as the header
// fields and parts that it has and no others, in lines that end with CRLF.
func FuzzRender(f *testing.F) {
	for _, s := range []string{
		"x", "a\r\nBcc: b@example.org", "a\nb", "a\rb", "\x00", "\u2028", "\u0085", "=?utf-8?q?=0D=0ABcc:_x?=", `"`, `\`, `a"; name="b`, "ü🎉", "\xff",
		" ", "  a  b ", "a\r\n.\r\nb", "\n.\n", ".", "--=_", "<a@b>", "(comment", ",;:", strings.Repeat("long ", 100), strings.Repeat("x", 1100),
	} {
		f.Add(s, s, "X-"+s, s, "x"+s, "x"+s, "text/plain; a="+s, s)
		f.Add("n", "s", "X-A", s, s, "", s, "")
	}
	f.Add("n", "s", "X-A", "v", "f.html", "text", `text/html; charset="utf-8"; name=a`, "cid")
	f.Fuzz(func(t *testing.T, name, subject, header, value, filename, text, contentType, contentID string) {
		r := base()
		r.Message.From.Name, r.Message.To[0].Name, r.Message.Subject = name, name, subject
		r.Message.Headers = []providers.Header{{Name: header, Value: value}}
		r.Message.Text, r.Message.HTML = text, text
		r.Message.Attachments = []providers.Attachment{{Filename: filename, ContentType: contentType, ContentID: contentID, Content: []byte(text)}}
		message, err := imf.Render(r)
		if err != nil {
			if e := providers.AsError(err); e.Outcome != providers.Rejected {
				t.Fatalf("outcome %v of %v", e.Outcome, err)
			}
			return
		}
		checkLines(t, message, 998)
		want := []string{"Content-Type", "Date", "From", "Message-Id", "Mime-Version", "Subject", "To", canonical(header)}
		slices.Sort(want)
		if got := fields(t, message); !slices.Equal(got, want) {
			t.Fatalf("header fields %q, want %q", got, want)
		}
		checkParts(t, message, r.Message)
	})
}

func canonical(name string) string {
	m, err := mail.ReadMessage(strings.NewReader(name + ": x\r\n\r\n"))
	if err != nil {
		return name
	}
	for name := range m.Header {
		return name
	}
	return name
}

// checkParts: both bodies and the file come back, and nothing else is there.
func checkParts(t *testing.T, message []byte, m providers.Message) {
	t.Helper()
	root, err := enmime.ReadParts(bytes.NewReader(message))
	if err != nil {
		t.Fatalf("parse: %v\n%q", err, message)
	}
	leaves := root.DepthMatchAll(func(p *enmime.Part) bool { return p.FirstChild == nil })
	if len(leaves) != 3 {
		t.Fatalf("%d parts, want 3:\n%q", len(leaves), message)
	}
	for i, body := range []string{m.Text, m.HTML} {
		if got := string(leaves[i].Content); got != normal(body) {
			t.Fatalf("body %d %q came back as %q", i, body, got)
		}
	}
	// A parser decodes a file that says it is text, so its bytes are compared where
	// it says nothing.
	if file := leaves[2]; m.Attachments[0].ContentType == "" && string(file.Content) != m.Text {
		t.Fatalf("file %q came back as %q", m.Text, file.Content)
	}
}
