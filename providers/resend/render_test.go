package resend_test

import (
	"bytes"
	"encoding/json"
	"net/mail"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

func whole() providers.Request {
	r := providertest.Request(1)
	r.Message = providers.Message{
		From:    providers.Address{Name: "Müller, Jürgen", Email: "sender@xn--bcher-kva.example"},
		To:      []providers.Address{{Name: "Ünal", Email: "a@example.org"}, {Email: "b@example.org"}},
		Cc:      []providers.Address{{Name: `C "the sea" \ D`, Email: "c@example.org"}},
		Bcc:     []providers.Address{{Email: "d@example.org"}},
		ReplyTo: []providers.Address{{Email: "reply@example.com"}},
		Subject: strings.Repeat("Grüße 🎉 ", 20),
		Text:    ".\r\n",
		HTML:    `<a href="https://example.com/?a=1&b=2">x</a>`,
		Headers: []providers.Header{
			{Name: "X-Zebra", Value: "z"},
			{Name: "List-Unsubscribe-Post", Value: "List-Unsubscribe=One-Click"},
		},
		Attachments: []providers.Attachment{
			{Filename: "Übersicht.pdf", ContentType: `application/pdf; name="x.pdf"`, Content: []byte("pdf")},
			{ContentType: "image/png", ContentID: "logo@example", Content: []byte("png")},
			{Filename: "empty.txt"},
		},
		Tags: []providers.Tag{{Name: "campaign", Value: "spring"}, {Name: "email", Value: "not-the-recipient"}},
	}
	return r
}

// The bytes are compared and not only what they mean: after a release that
// renders differently, a replay meets a 409 and stays in doubt. Change the file
// only together with a changelog line.
func TestRenderGolden(t *testing.T) {
	t.Parallel()
	const name = "testdata/whole.json"
	p, server := start(t, nil)
	payload, err := p.Render(whole())
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(append(payload, '\n'), want) {
		t.Errorf("payload is not the golden file's: %s", cmp.Diff(string(want), string(payload)+"\n"))
	}
	if _, err := p.Send(t.Context(), providers.Sending{Request: whole(), Payload: payload}); err != nil {
		t.Errorf("refused: %v, %s", err, providers.AsError(err).Detail)
	}
	if n := len(server.Accepted()); n != 1 {
		t.Errorf("%d accepted, want 1", n)
	}
}

// Rows 1 and 2: names arrive as they were, whatever is in them.
func TestRow1DisplayName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"":               "s@example.com",
		"Acme":           "Acme <s@example.com>",
		"Jürgen Müller":  "Jürgen Müller <s@example.com>",
		"山田太郎":           "山田太郎 <s@example.com>",
		"Müller, Jürgen": `"Müller, Jürgen" <s@example.com>`,
		`a "b" \ c`:      `"a \"b\" \\ c" <s@example.com>`,
		"<x@y.z>":        `"<x@y.z>" <s@example.com>`,
		"Acme Inc.":      `"Acme Inc." <s@example.com>`,
		" a ":            `" a " <s@example.com>`,
		"=?utf-8?q?x?=":  `"=?utf-8?q?x?=" <s@example.com>`,
	} {
		r := providertest.Request(1)
		r.Message.From = providers.Address{Name: name, Email: "s@example.com"}
		r.Message.To[0].Name = name
		payload, err := newProvider(t, "").Render(r)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		var got struct {
			From string   `json:"from"`
			To   []string `json:"to"`
		}
		if err := json.Unmarshal(payload, &got); err != nil {
			t.Fatal(err)
		}
		if got.From != want {
			t.Errorf("%q: from %q, want %q", name, got.From, want)
		}
		for _, address := range []string{got.From, got.To[0]} {
			parsed, err := mail.ParseAddress(address)
			if err != nil || parsed.Name != name && name != "=?utf-8?q?x?=" {
				t.Errorf("%q: %q reads as %v, %v", name, address, parsed, err)
			}
		}
	}
}

func tags(n int) []providers.Tag {
	var out []providers.Tag
	for i := range n {
		out = append(out, providers.Tag{Name: strings.Repeat("t", i+1), Value: "v"})
	}
	return out
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	file := func(a providers.Attachment) func(*providers.Request) {
		return func(r *providers.Request) { r.Message.Attachments = []providers.Attachment{a} }
	}
	header := func(name string) func(*providers.Request) {
		return func(r *providers.Request) { r.Message.Headers = []providers.Header{{Name: name, Value: "1"}} }
	}
	labels := func(tags ...providers.Tag) func(*providers.Request) {
		return func(r *providers.Request) { r.Message.Tags = tags }
	}
	content := []byte("x")
	tests := []struct {
		name string
		code string
		edit func(*providers.Request)
	}{
		{"row 2: CRLF in the subject", "control_character", func(r *providers.Request) { r.Message.Subject = "a\r\nb" }},
		{"row 2: CRLF in a name", "control_character", func(r *providers.Request) { r.Message.From.Name = "a\r\nb" }},
		{"row 3: CRLF in a header name", "bad_header", header("X\r\nBcc")},
		{"row 5: UTF-8 local part", "utf8_address", func(r *providers.Request) { r.Message.To[0].Email = "jürgen@example.org" }},
		{"row 5: UTF-8 local part in Reply-To", "utf8_address", func(r *providers.Request) {
			r.Message.ReplyTo = []providers.Address{{Email: "jürgen@example.org"}}
		}},
		{"row 7: two dots", "bad_address", func(r *providers.Request) { r.Message.To[0].Email = "a..b@example.org" }},
		{"row 10: an address twice (F40)", "repeated_recipient", func(r *providers.Request) {
			r.Message.Cc = []providers.Address{{Email: strings.ToUpper(r.Message.To[0].Email)}}
		}},
		{"row 13: empty bodies", "empty_body", func(r *providers.Request) { r.Message.Text, r.Message.HTML = "", "" }},
		{"row 17: too large", "too_large", file(providers.Attachment{Filename: "a", Content: make([]byte, 30<<20)})},
		{"row 22: protected header", "protected_header", header("DKIM-Signature")},
		{"row 22: Resend's own header", "bad_header", header("resend-idempotency-key")},
		{"row 24: invalid UTF-8", "invalid_utf8", func(r *providers.Request) { r.Message.HTML = "\xff" }},
		{"a header twice", "bad_header", func(r *providers.Request) {
			r.Message.Headers = []providers.Header{{Name: "X-A", Value: "1"}, {Name: "x-a", Value: "2"}}
		}},
		{"malformed type", "bad_content_type", file(providers.Attachment{Filename: "a", ContentType: "a/b; =", Content: content})},
		{"file without a name", "unnamed_attachment", file(providers.Attachment{Content: content})},
		{"long content id", "bad_content_id", file(providers.Attachment{ContentID: strings.Repeat("c", 128), Content: content})},
		{"no subject", "empty_subject", func(r *providers.Request) { r.Message.Subject = "" }},
		{"nobody in To", "no_recipient", func(r *providers.Request) { r.Message.Bcc, r.Message.To = r.Message.To, nil }},
		{"51 recipients", "too_many_recipients", func(r *providers.Request) {
			for i := range 50 {
				r.Message.Bcc = append(r.Message.Bcc, providers.Address{Email: strings.Repeat("x", i+1) + "@example.org"})
			}
		}},
		{"a tag twice", "repeated_tag", labels(providers.Tag{Name: "a", Value: "1"}, providers.Tag{Name: "a", Value: "2"})},
		{"our own tag", "repeated_tag", labels(providers.Tag{Name: "outboxd_attempt", Value: "1"})},
		{"tag beyond ASCII", "bad_tag", labels(providers.Tag{Name: "a", Value: "ü"})},
		{"tag without a value", "bad_tag", labels(providers.Tag{Name: "a"})},
		{"75 tags and ours", "too_many_tags", labels(tags(75)...)},
		{"no key", "bad_key", func(r *providers.Request) { r.Key = "" }},
		{"key that no header carries", "bad_key", func(r *providers.Request) { r.Key = "a\r\nb" }},
		{"long key", "bad_key", func(r *providers.Request) { r.Key = strings.Repeat("k", 257) }},
	}
	p := newProvider(t, "")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := providertest.Request(1)
			tt.edit(&r)
			_, err := p.Render(r)
			if e := providers.AsError(err); err == nil || e.Outcome != providers.Rejected || e.Code != tt.code {
				t.Errorf("got %v, want rejected %s", err, tt.code)
			}
		})
	}
}

// At the limits nothing is refused, by the adapter or by the service.
func TestRenderAtTheLimits(t *testing.T) {
	t.Parallel()
	r := providertest.Request(1)
	r.Message.HTML = ""
	r.Message.Tags = tags(74)
	for i := range 49 {
		r.Message.To = append(r.Message.To, providers.Address{Email: strings.Repeat("x", i+1) + "@example.org"})
	}
	r.Message.Attachments = []providers.Attachment{
		{Filename: "row 14: empty.txt"},
		{ContentID: strings.Repeat("c", 127), Content: []byte("x")},
		{Filename: "a.ics", ContentType: "text/calendar; method=REQUEST; charset=utf-8", Content: []byte("x")},
	}
	p, _ := start(t, nil)
	payload, err := p.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(t.Context(), providers.Sending{Request: r, Payload: payload}); err != nil {
		t.Errorf("refused: %v, %s", err, providers.AsError(err).Detail)
	}
	if bytes.Contains(payload, []byte(`"html"`)) {
		t.Error("row 13: an empty body is in the payload")
	}
}
