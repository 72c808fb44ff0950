package imf_test

import (
	"bytes"
	"errors"
	"mime"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jhillyerd/enmime/v2"
	"pgregory.net/rapid"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/imf"
)

// base is a message that the tests vary; numbers in their names are rows of
// the project's list of hard inputs.
func base() providers.Request {
	return providers.Request{
		Key:  "0198c0de-0000-7000-8000-000000000001",
		Date: time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("", 3600)),
		Message: providers.Message{
			From:    providers.Address{Name: "Sender", Email: "sender@example.com"},
			To:      []providers.Address{{Email: "a@example.org"}},
			Subject: "Hello",
			Text:    "text\r\n",
			HTML:    "<p>html</p>\r\n",
		},
	}
}

// render renders r and reads it back with a parser that shares no code with
// the renderer.
func render(t testing.TB, r providers.Request) ([]byte, *enmime.Envelope) {
	t.Helper()
	message, err := imf.Render(r)
	if err != nil {
		t.Fatalf("render: %v (%s)", err, providers.AsError(err).Detail)
	}
	return message, parse(t, message)
}

func parse(t interface{ Fatalf(string, ...any) }, message []byte) *enmime.Envelope {
	envelope, err := enmime.ReadEnvelope(bytes.NewReader(message))
	if err != nil {
		t.Fatalf("parse: %v\n%s", err, message)
	}
	for _, e := range envelope.Errors {
		if e.Name == enmime.ErrorPlainTextFromHTML {
			continue // a service of the parser
		}
		t.Fatalf("parse: %v\n%s", e, message)
	}
	return envelope
}

func TestRenderHeader(t *testing.T) {
	t.Parallel()
	r := base()
	r.Message.Cc = []providers.Address{{Name: `Quote " and, comma`, Email: "b@example.org"}}
	r.Message.Bcc = []providers.Address{{Email: "hidden@example.org"}}
	r.Message.ReplyTo = []providers.Address{{Email: "reply@example.com"}}
	r.Message.Headers = []providers.Header{
		{Name: "List-Unsubscribe", Value: "<https://example.com/u/" + strings.Repeat("x", 200) + ">"},
		{Name: "X-Greeting", Value: "Grüße aus Köln"},
	}
	message, got := render(t, r)
	want := map[string]string{
		"Date":             "Sun, 01 Mar 2026 12:00:00 +0000",
		"Message-ID":       "<0198c0de-0000-7000-8000-000000000001@example.com>",
		"From":             `"Sender" <sender@example.com>`,
		"To":               "<a@example.org>",
		"Cc":               `"Quote \" and, comma" <b@example.org>`,
		"Reply-To":         "<reply@example.com>",
		"Subject":          "Hello",
		"List-Unsubscribe": r.Message.Headers[0].Value,
		"X-Greeting":       "Grüße aus Köln",
		"MIME-Version":     "1.0",
	}
	for name, value := range want {
		if diff := cmp.Diff([]string{value}, got.GetHeaderValues(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if bytes.Contains(bytes.ToLower(message), []byte("bcc")) || bytes.Contains(message, []byte("hidden@")) {
		t.Errorf("the blind copy shows:\n%s", message)
	}
}

func TestRow1DisplayName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Müller, Jürgen", "Doe, Jane", `a "b" c`, strings.Repeat("ö", 100), "=?utf-8?q?x?="} {
		r := base()
		r.Message.From.Name = name
		message, _ := render(t, r)
		// Not with enmime, which decodes names twice.
		got, err := mail.ReadMessage(bytes.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		list, err := got.Header.AddressList("From")
		if err != nil || len(list) != 1 || list[0].Name != name || list[0].Address != "sender@example.com" {
			t.Errorf("name %q came back as %v, %v", name, list, err)
		}
	}
}

func TestRow4InternationalDomain(t *testing.T) {
	t.Parallel()
	r := base()
	r.Message.From.Email = "a@xn--bcher-kva.example"
	message, got := render(t, r)
	if id := got.GetHeader("Message-ID"); !strings.HasSuffix(id, "@xn--bcher-kva.example>") {
		t.Errorf("Message-ID %s", id)
	}
	if !providers.IsASCII(string(message)) {
		t.Error("the message is not ASCII")
	}
	r.Message.From.Email = "a@bücher.example"
	if _, err := imf.Render(r); providers.AsError(err).Code != "bad_address" {
		t.Errorf("a domain beyond ASCII: %v, want a refusal", err)
	}
}

func TestRow5LocalPartNeedsUTF8(t *testing.T) {
	t.Parallel()
	r := base()
	if imf.NeedsUTF8(r.Message) {
		t.Error("an ASCII message needs no SMTPUTF8")
	}
	r.Message.Bcc = []providers.Address{{Email: "jürgen@example.org"}}
	if !imf.NeedsUTF8(r.Message) {
		t.Error("jürgen@ needs SMTPUTF8")
	}
}

func TestRow12Subject(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{
		"", " ", "plain", "two  spaces", strings.Repeat("word ", 50) + "end",
		strings.Repeat("Grüße 🎉 ", 40) + "!", strings.Repeat("x", 2000), strings.Repeat("double  ", 300) + "end",
		"looks =?utf-8?q?like?= a word", "trailing = sign?",
	} {
		r := base()
		r.Message.Subject = subject
		message, got := render(t, r)
		if s := got.GetHeader("Subject"); s != strings.Trim(subject, " ") {
			t.Errorf("subject %q came back as %q", subject, s)
		}
		for word := range strings.FieldsSeq(string(message)) {
			if strings.HasPrefix(word, "=?") && len(word) > 75 {
				t.Errorf("encoded word of %d characters, at most 75: RFC 2047, 2", len(word))
			}
		}
	}
}

func TestRow13EmptyBody(t *testing.T) {
	t.Parallel()
	r := base()
	r.Message.HTML = ""
	if _, got := render(t, r); got.Root.ContentType != "text/plain" || got.Text != "text\r\n" {
		t.Errorf("got %s %q, want the text alone", got.Root.ContentType, got.Text)
	}
	r = base()
	r.Message.Text = ""
	if _, got := render(t, r); got.Root.ContentType != "text/html" || got.HTML != "<p>html</p>\r\n" {
		t.Errorf("got %s %q, want the HTML alone", got.Root.ContentType, got.HTML)
	}
	r.Message.HTML = ""
	if _, err := imf.Render(r); providers.AsError(err).Code != "empty_body" {
		t.Errorf("no body: %v, want a refusal", err)
	}
}

func TestRow14And18Attachments(t *testing.T) {
	t.Parallel()
	binary := make([]byte, 1000)
	for i := range binary {
		binary[i] = byte(i)
	}
	files := []providers.Attachment{
		{Filename: "empty.txt", ContentType: "text/plain", Content: nil},
		{Filename: "Übersicht – März.pdf", ContentType: "application/pdf", Content: binary},
		{Filename: `we"ird; name.bin`, Content: []byte{0, '\r', '\n', '.', '\r', '\n'}},
		{Filename: "invite.ics", ContentType: "text/calendar; method=REQUEST; charset=iso-8859-1", Content: []byte("x")},
		{Filename: "mail.eml", ContentType: "message/rfc822", Content: []byte("Subject: x\n\ny")},
	}
	r := base()
	r.Message.Attachments = files
	message, got := render(t, r)
	if len(got.Attachments) != len(files) {
		t.Fatalf("%d attachments, want %d", len(got.Attachments), len(files))
	}
	for i, part := range got.Attachments {
		if part.FileName != files[i].Filename || !bytes.Equal(part.Content, files[i].Content) {
			t.Errorf("attachment %d: %q with %d bytes, want %q with %d", i,
				part.FileName, len(part.Content), files[i].Filename, len(files[i].Content))
		}
	}
	if !bytes.Contains(message, []byte("filename*=utf-8''%C3%9Cbersicht")) {
		t.Error("the file name is not as RFC 2231 has it")
	}
	if !bytes.Contains(message, []byte("method=REQUEST")) {
		t.Error("a parameter of the content type is lost")
	}
	checkLines(t, message, 998)
	_, encoded, _ := bytes.Cut(message, []byte("application/pdf\r\n\r\n"))
	line, _, _ := bytes.Cut(encoded, []byte("\r\n"))
	if len(line) != 76 {
		t.Errorf("base64 line of %d characters, want 76: RFC 2045, 6.8", len(line))
	}
}

// The test's usual parser decodes a name twice, as readers do with a quoted
// one: hence RFC 2231, which leaves nothing to take for an encoded word.
func TestFileNameLikeAnEncodedWord(t *testing.T) {
	t.Parallel()
	const name = "=?utf-8?q?x?= 100%.txt"
	r := base()
	r.Message.Attachments = []providers.Attachment{{Filename: name, Content: []byte("x")}}
	message, _ := render(t, r)
	_, line, _ := bytes.Cut(message, []byte("Content-Disposition: "))
	line, _, _ = bytes.Cut(line, []byte("\r\n"))
	_, params, err := mime.ParseMediaType(string(line))
	if err != nil || params["filename"] != name || bytes.Contains(line, []byte("=?")) {
		t.Errorf("%s reads as %q, %v; want %q", line, params["filename"], err, name)
	}
}

func TestRow19Inline(t *testing.T) {
	t.Parallel()
	r := base()
	r.Message.HTML = `<img src="cid:logo@example">`
	r.Message.Attachments = []providers.Attachment{
		{Filename: "logo.png", ContentType: "image/png", ContentID: "logo@example", Content: []byte("png")},
		{Filename: "terms.pdf", ContentType: "application/pdf", Content: []byte("pdf")},
	}
	_, got := render(t, r)
	if len(got.Inlines) != 1 || got.Inlines[0].ContentID != "logo@example" {
		t.Fatalf("inlines %v, want the logo", got.Inlines)
	}
	var shape []string
	for p := got.Inlines[0].Parent; p != nil; p = p.Parent {
		shape = append(shape, p.ContentType)
	}
	want := []string{"multipart/related", "multipart/alternative", "multipart/mixed"}
	if diff := cmp.Diff(want, shape); diff != "" {
		t.Errorf("parents of the inline part (-want +got):\n%s", diff)
	}
	// Nothing can show it without HTML; it must not be lost (F23).
	r.Message.HTML = ""
	if _, got := render(t, r); len(got.Attachments)+len(got.Inlines) != 2 {
		t.Errorf("%d parts left without HTML, want 2", len(got.Attachments)+len(got.Inlines))
	}
}

func TestOnlyBlindCopies(t *testing.T) {
	t.Parallel()
	r := base()
	r.Message.Bcc, r.Message.To = r.Message.To, nil
	message, got := render(t, r)
	if got.GetHeader("To") != "undisclosed-recipients:;" || bytes.Contains(message, []byte("a@example.org")) {
		t.Errorf("the blind copy shows:\n%s", message)
	}
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*providers.Request){
		"row 2: CRLF in the subject":  func(r *providers.Request) { r.Message.Subject = "a\r\nBcc: b@example.org" },
		"row 3: CRLF in header name":  headerEdit("X\r\nBcc: b@example.org\r\nY", "v"),
		"row 3: CRLF in header value": headerEdit("X", "v\r\nBcc: b@example.org"),
		"header word over 998 bytes":  headerEdit("X", strings.Repeat("x", 1000)),
		"key with a line break":       func(r *providers.Request) { r.Key = "a\r\nb" },
		"no key":                      func(r *providers.Request) { r.Key = "" },
		"content id with brackets":    fileEdit(providers.Attachment{ContentID: "a>b"}),
		"content type without slash":  fileEdit(providers.Attachment{ContentType: "pdf"}),
		"content type that is no file": fileEdit(providers.Attachment{
			ContentType: "multipart/mixed; boundary=x",
		}),
		"malformed content type":   fileEdit(providers.Attachment{ContentType: "a/b; =c"}),
		"file name over 998 bytes": fileEdit(providers.Attachment{Filename: strings.Repeat("x", 1000)}),
	}
	for name, edit := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := base()
			edit(&r)
			_, err := imf.Render(r)
			e, ok := errors.AsType[*providers.Error](err)
			if !ok || e.Outcome != providers.Rejected {
				t.Errorf("got %v, want a rejection", err)
			}
		})
	}
}

func headerEdit(name, value string) func(*providers.Request) {
	return func(r *providers.Request) { r.Message.Headers = []providers.Header{{Name: name, Value: value}} }
}

func fileEdit(a providers.Attachment) func(*providers.Request) {
	return func(r *providers.Request) { r.Message.Attachments = []providers.Attachment{a} }
}

// checkLines checks the line ends and lengths that RFC 5322, 2.1.1 demands.
func checkLines(t interface{ Fatalf(string, ...any) }, message []byte, limit int) {
	for line := range bytes.Lines(message) {
		if !bytes.HasSuffix(line, []byte("\r\n")) || bytes.ContainsAny(line[:len(line)-2], "\r\n") {
			t.Fatalf("line without CRLF: %q", line)
		}
		if len(line) > limit+2 {
			t.Fatalf("line of %d bytes: %q", len(line), line)
		}
	}
}

// normal is what a reader gets of text: RFC 5322 has no line end but CRLF.
func normal(text string) string {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	return strings.ReplaceAll(text, "\n", "\r\n")
}

// Whatever is in a body or a file comes back, and the rendering is the same
// each time. F24: lines with dots are among the texts.
func TestRenderRoundTrip(t *testing.T) {
	t.Parallel()
	pieces := rapid.SampledFrom([]string{
		".", "..", "\r\n", "\n", "\r", "=", "--", "From ", " ", "\t", "ü", "🎉", "x", "\x00",
		strings.Repeat("long", 300), "\r\n.\r\n", "=_",
	})
	body := rapid.Map(rapid.SliceOfN(pieces, 1, 40), func(s []string) string { return strings.Join(s, "") })
	rapid.Check(t, func(t *rapid.T) {
		r := base()
		r.Message.Text = body.Draw(t, "text")
		r.Message.HTML = body.Draw(t, "html")
		content := rapid.SliceOf(rapid.Byte()).Draw(t, "content")
		r.Message.Attachments = []providers.Attachment{{Filename: "f", Content: content}}
		message, err := imf.Render(r)
		if err != nil {
			t.Fatalf("render: %v", err)
		}
		if again, _ := imf.Render(r); !bytes.Equal(again, message) {
			t.Fatalf("not deterministic")
		}
		checkLines(t, message, 998)
		envelope := parse(t, message)
		text := envelope.Root.DepthMatchFirst(func(p *enmime.Part) bool { return p.ContentType == "text/plain" })
		html := envelope.Root.DepthMatchFirst(func(p *enmime.Part) bool { return p.ContentType == "text/html" })
		if got, want := string(text.Content), normal(r.Message.Text); got != want {
			t.Fatalf("text %q came back as %q", want, got)
		}
		if got, want := string(html.Content), normal(r.Message.HTML); got != want {
			t.Fatalf("html %q came back as %q", want, got)
		}
		if got := envelope.Attachments[0].Content; !bytes.Equal(got, content) {
			t.Fatalf("file %q came back as %q", content, got)
		}
	})
}

// A header value comes back, with its spaces where the fold was.
func TestHeaderRoundTrip(t *testing.T) {
	t.Parallel()
	word := rapid.StringMatching(`[!-~üß🎉]{1,90} {0,3}`)
	words := rapid.Map(rapid.SliceOfN(word, 1, 20), func(s []string) string {
		return strings.TrimRight(strings.Join(s, ""), " ")
	})
	rapid.Check(t, func(t *rapid.T) {
		value := words.Draw(t, "value")
		if strings.Contains(value, "=?") {
			t.Skip("reads as an encoded word, by intention of the sender")
		}
		r := base()
		r.Message.Headers = []providers.Header{{Name: "X-Any", Value: value}}
		r.Message.Subject = value
		message, err := imf.Render(r)
		if err != nil {
			t.Fatalf("render: %v", err)
		}
		checkLines(t, message, 998)
		envelope := parse(t, message)
		if got := envelope.GetHeader("Subject"); got != value {
			t.Fatalf("subject %q came back as %q", value, got)
		}
		if got := envelope.GetHeader("X-Any"); got != value {
			t.Fatalf("header %q came back as %q", value, got)
		}
	})
}
