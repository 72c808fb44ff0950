package mailgun_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/mailgun"
	"github.com/outboxd/outboxd/providers/providertest"
)

// field is one of a form: a file has a name and a type.
type field struct {
	Name, Filename, Type, Value string
}

// form reads a payload, whose boundary is its first line.
func form(t testing.TB, payload []byte) []field {
	t.Helper()
	first, _, _ := bytes.Cut(payload, []byte("\r\n"))
	reader := multipart.NewReader(bytes.NewReader(payload), strings.TrimPrefix(string(first), "--"))
	var fields []field
	for {
		part, err := reader.NextRawPart()
		if errors.Is(err, io.EOF) {
			return fields
		}
		if err != nil {
			t.Fatalf("not a form: %v", err)
		}
		value, err := io.ReadAll(part)
		if err != nil {
			t.Fatal(err)
		}
		_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil {
			t.Fatal(err)
		}
		fields = append(fields, field{params["name"], params["filename"], part.Header.Get("Content-Type"), string(value)})
	}
}

func rendered(t *testing.T, c mailgun.Config, r providers.Request) []field {
	t.Helper()
	payload, err := newProvider(t, c).Render(r)
	if err != nil {
		t.Fatal(err)
	}
	return form(t, payload)
}

func whole() providers.Request {
	r := providertest.Request(1)
	r.Message = providers.Message{
		From:    providers.Address{Name: "Müller, Jürgen", Email: "sender@xn--bcher-kva.example"},
		To:      []providers.Address{{Name: "A", Email: "a@example.org"}, {Email: "b@example.org"}},
		Cc:      []providers.Address{{Name: `C "the sea" \ D`, Email: "c@example.org"}},
		Bcc:     []providers.Address{{Email: "d@example.org"}},
		ReplyTo: []providers.Address{{Name: "Ü", Email: "reply@example.com"}, {Email: "r2@example.com"}},
		Subject: strings.Repeat("Grüße 🎉 ", 20),
		Text:    ".\r\n",
		HTML:    `<a href="https://example.com/?a=1&b=2">x</a><img src="cid:logo@example">`,
		Headers: []providers.Header{
			{Name: "List-Unsubscribe", Value: "<https://example.com/u>"},
			{Name: "List-Unsubscribe-Post", Value: "List-Unsubscribe=One-Click"},
			{Name: "X-Zebra", Value: "Grüße"},
		},
		Attachments: []providers.Attachment{
			{Filename: `Über"sicht/1.pdf`, ContentType: `application/pdf; name="x.pdf"`, Content: []byte("p\r\n--df")},
			{Filename: "logo.png", ContentType: "image/png", ContentID: "logo@example", Content: []byte("png")},
			{Filename: "empty.txt"},
		},
		Tags: []providers.Tag{{Name: "campaign", Value: "spring"}, {Name: "plain"}},
	}
	return r
}

// Rows 1, 4, 12, 14, 19 and 20, F23 and F24. The service takes the same bytes.
func TestRenderWholeMessage(t *testing.T) {
	t.Parallel()
	r := whole()
	p, server := start(t, mailgun.Config{Sandbox: true}, nil)
	payload, err := p.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	want := []field{
		{Name: "from", Value: "=?utf-8?B?TcO8bGxlciwgSsO8cmdlbg==?= <sender@xn--bcher-kva.example>"},
		{Name: "to", Value: `"A" <a@example.org>`},
		{Name: "to", Value: "<b@example.org>"},
		{Name: "cc", Value: `"C \"the sea\" \\ D" <c@example.org>`},
		{Name: "bcc", Value: "<d@example.org>"},
		{Name: "subject", Value: r.Message.Subject},
		{Name: "text", Value: ".\r\n"},
		{Name: "html", Value: r.Message.HTML},
		{Name: "o:tag", Value: "campaign:spring"},
		{Name: "o:tag", Value: "plain"},
		{Name: "o:testmode", Value: "yes"},
		{Name: "h:Message-Id", Value: "<0198c0de-0000-7000-8000-000000000001@mg.example.com>"},
		{Name: "h:Reply-To", Value: "=?utf-8?B?w5w=?= <reply@example.com>, <r2@example.com>"},
		{Name: "h:List-Unsubscribe", Value: "<https://example.com/u>"},
		{Name: "h:List-Unsubscribe-Post", Value: "List-Unsubscribe=One-Click"},
		{Name: "h:X-Zebra", Value: "=?utf-8?B?R3LDvMOfZQ==?="},
		{Name: "v:outboxd_attempt", Value: "0198c0de-0000-7000-8000-000000000001"},
		{"attachment", `Über"sicht/1.pdf`, `application/pdf; name="x.pdf"`, "p\r\n--df"},
		{"inline", "logo@example", "image/png", "png"},
		{"attachment", "empty.txt", "application/octet-stream", ""},
	}
	if diff := cmp.Diff(want, form(t, payload)); diff != "" {
		t.Errorf("form (-want +got):\n%s", diff)
	}
	if _, err := p.Send(t.Context(), providers.Sending{Request: r, Payload: payload}); err != nil {
		t.Errorf("refused: %v, %s", err, providers.AsError(err).Detail)
	}
	if n := len(server.Accepted()); n != 1 {
		t.Errorf("%d accepted, want 1", n)
	}
}

// Rows 1 and 2: names arrive as they were. On the wire they are ASCII, because
// Mailgun encodes some of the others wrongly (anymail/django-anymail#270).
func TestRow1DisplayName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"", "Acme", "Jürgen Müller", "山田太郎", "Müller, Jürgen", `a "b" \ c`, "<x@y.z>", "Acme Inc.", "Ünal (IT)",
		"=?utf-8?q?x?=", strings.Repeat("Grüße ", 30),
	} {
		r := providertest.Request(1)
		r.Message.To[0].Name = name
		got := rendered(t, mailgun.Config{}, r)[1].Value
		address, err := mail.ParseAddress(got)
		if err != nil || address.Name != strings.TrimSpace(name) && address.Name != name || !providers.IsASCII(got) {
			t.Errorf("%q is written %s and read %v, %v", name, got, address, err)
		}
	}
}

// Row 13: an empty body is left out.
func TestRow13EmptyBody(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*providers.Message){
		"text": func(m *providers.Message) { m.Text = "" }, "html": func(m *providers.Message) { m.HTML = "" },
	} {
		r := providertest.Request(1)
		edit(&r.Message)
		for _, f := range rendered(t, mailgun.Config{}, r) {
			if f.Name == name {
				t.Errorf("an empty %s is in the form", name)
			}
		}
	}
}

// Row 19: without HTML nothing refers to an inline part, and it is attached.
func TestRow19InlineWithoutHTML(t *testing.T) {
	t.Parallel()
	r := providertest.Request(1)
	r.Message.HTML = ""
	r.Message.Attachments = []providers.Attachment{
		{Filename: "logo.png", ContentID: "a", Content: []byte("1")}, {ContentID: "b", Content: []byte("2")},
	}
	fields := rendered(t, mailgun.Config{}, r)
	for i, want := range []string{"logo.png", "b"} {
		if got := fields[len(fields)-2+i]; got.Name != "attachment" || got.Filename != want {
			t.Errorf("got %+v, want the attachment %s", got, want)
		}
	}
}

func tags(n int) []providers.Tag {
	var out []providers.Tag
	for i := range n {
		out = append(out, providers.Tag{Name: fmt.Sprintf("t%d", i), Value: "v"})
	}
	return out
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	file := func(a providers.Attachment) func(*providers.Request) {
		return func(r *providers.Request) { r.Message.Attachments = []providers.Attachment{a} }
	}
	header := func(name, value string) func(*providers.Request) {
		return func(r *providers.Request) { r.Message.Headers = []providers.Header{{Name: name, Value: value}} }
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
		{"row 2: CRLF in a name", "control_character", func(r *providers.Request) { r.Message.To[0].Name = "a\r\nb" }},
		{"row 3: CRLF in a header name", "bad_header", header("X\r\nBcc", "1")},
		{"row 5: UTF-8 local part", "utf8_address", func(r *providers.Request) { r.Message.To[0].Email = "jürgen@example.org" }},
		{"row 7: two dots", "bad_address", func(r *providers.Request) { r.Message.To[0].Email = "a..b@example.org" }},
		{"row 10: an address twice (F40)", "repeated_recipient", func(r *providers.Request) {
			r.Message.Cc = []providers.Address{{Email: strings.ToUpper(r.Message.To[0].Email)}}
		}},
		{"row 13: empty bodies", "empty_body", func(r *providers.Request) { r.Message.Text, r.Message.HTML = "", "" }},
		{"row 17: too large in base64", "too_large", file(providers.Attachment{Filename: "a", Content: make([]byte, 19<<20)})},
		{"row 22: protected header", "protected_header", header("DKIM-Signature", "1")},
		{"row 22: the id is ours", "protected_header", header("message-id", "<a@b.c>")},
		{"row 22: Mailgun's own header", "bad_header", header("x-mailgun-drop-message", "yes")},
		{"row 24: invalid UTF-8", "invalid_utf8", func(r *providers.Request) { r.Message.HTML = "\xff" }},
		{"malformed type", "bad_content_type", file(providers.Attachment{Filename: "a", ContentType: "a/b; =", Content: content})},
		{"F23: file without a name", "unnamed_attachment", file(providers.Attachment{Content: content})},
		{"16 kB of headers", "headers_too_large", header("X-Long", strings.Repeat("x", 16<<10))},
		{"no subject", "empty_subject", func(r *providers.Request) { r.Message.Subject = "" }},
		{"nobody in To", "no_recipient", func(r *providers.Request) { r.Message.Bcc, r.Message.To = r.Message.To, nil }},
		{"1001 recipients", "too_many_recipients", func(r *providers.Request) {
			for i := range 1000 {
				r.Message.Bcc = append(r.Message.Bcc, providers.Address{Email: fmt.Sprintf("x%d@example.org", i)})
			}
		}},
		{"11 tags", "too_many_tags", labels(tags(11)...)},
		{"a tag twice", "repeated_tag", labels(providers.Tag{Name: "a", Value: "1"}, providers.Tag{Name: "A", Value: "1"})},
		{"tag beyond ASCII", "bad_tag", labels(providers.Tag{Name: "a", Value: "ü"})},
		{"long tag", "bad_tag", labels(providers.Tag{Name: "a", Value: strings.Repeat("v", 127)})},
		{"tag without a name", "bad_tag", labels(providers.Tag{Value: "1"})},
		{"no key", "bad_key", func(r *providers.Request) { r.Key = "" }},
		{"key that is an address", "bad_key", func(r *providers.Request) { r.Key = "a@b" }},
	}
	p := newProvider(t, mailgun.Config{})
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
	r.Message.Tags = append(tags(9), providers.Tag{Name: "a", Value: strings.Repeat("v", 126)})
	r.Message.Headers = append(r.Message.Headers, providers.Header{Name: "X-Long", Value: strings.Repeat("x", 15<<10)})
	for i := range 999 {
		r.Message.To = append(r.Message.To, providers.Address{Email: fmt.Sprintf("x%d@example.org", i)})
	}
	r.Message.Attachments = []providers.Attachment{
		{Filename: "large", Content: make([]byte, 18<<20)},
		{Filename: "a.ics", ContentType: "text/calendar; method=REQUEST; charset=utf-8", Content: []byte("x")},
	}
	p, _ := start(t, mailgun.Config{}, nil)
	payload, err := p.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(t.Context(), providers.Sending{Request: r, Payload: payload}); err != nil {
		t.Errorf("refused: %v, %s", err, providers.AsError(err).Detail)
	}
}

// Whatever a sender writes, it comes back as it was and no field is added.
func FuzzForm(f *testing.F) {
	p, err := mailgun.New(mailgun.Config{APIKey: apiKey, Domain: domain})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"x", "--", "\r\n--", "a\"; name=\"bcc", "\\", "ü/é", "\r\n\r\nb", "%22", "=?utf-8?q?x?="} {
		f.Add("n"+seed, seed)
	}
	r := providertest.Request(1)
	before, err := p.Render(r)
	if err != nil {
		f.Fatal(err)
	}
	n := len(form(f, before))
	f.Fuzz(func(t *testing.T, filename, text string) {
		if text == "" {
			t.Skip("an empty body is left out")
		}
		r := providertest.Request(1)
		r.Message.Text = text
		r.Message.Attachments = []providers.Attachment{{Filename: filename, Content: []byte(text)}}
		payload, err := p.Render(r)
		if err != nil {
			t.Skip("refused")
		}
		fields := form(t, payload)
		if got := fields[len(fields)-1]; len(fields) != n+1 || got.Filename != filename || got.Value != text || fields[3].Value != text {
			t.Errorf("%q, %q came back as %+v", filename, text, fields)
		}
	})
}
