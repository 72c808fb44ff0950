package postmark_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/postmark"
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
		HTML:    `<a href="https://example.com/?a=1&b=2">x</a><img src="cid:logo@example">`,
		Headers: []providers.Header{
			{Name: "List-Unsubscribe", Value: "<https://example.com/u>"},
			{Name: "List-Unsubscribe-Post", Value: "List-Unsubscribe=One-Click"},
		},
		Attachments: []providers.Attachment{
			{Filename: "Übersicht.pdf", ContentType: `application/pdf; name="x.pdf"`, Content: []byte("pdf")},
			{ContentType: "image/png", ContentID: "logo@example", Content: []byte("png")},
			{Filename: "empty.txt"},
		},
		Tags: []providers.Tag{{Name: "campaign", Value: "spring"}, {Name: "plain"}},
	}
	return r
}

// Rows 1, 4, 12, 14, 18, 19 and 20. The service takes the same bytes.
func TestRenderGolden(t *testing.T) {
	t.Parallel()
	p, server := start(t, postmark.Config{}, nil)
	payload, err := p.Render(whole())
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/whole.json")
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

func rendered(t *testing.T, c postmark.Config, edit func(*providers.Message)) map[string]any {
	t.Helper()
	r := providertest.Request(1)
	edit(&r.Message)
	payload, err := newProvider(t, c).Render(r)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(payload, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// Row 13: an empty body is left out.
func TestRow13EmptyBody(t *testing.T) {
	t.Parallel()
	got := rendered(t, postmark.Config{}, func(m *providers.Message) { m.HTML = "" })
	if _, ok := got["HtmlBody"]; ok || got["TextBody"] == "" {
		t.Errorf("rendered %v, want the text only", got)
	}
}

// Postmark has one tag: the others are metadata, and none is lost.
func TestTags(t *testing.T) {
	t.Parallel()
	reference := providertest.Request(1).Key
	for _, tt := range []struct {
		tags     []providers.Tag
		tag      any
		metadata map[string]any
	}{
		{nil, nil, map[string]any{"outboxd_attempt": reference}},
		{[]providers.Tag{{Name: "receipt"}}, "receipt", map[string]any{"outboxd_attempt": reference, "receipt": ""}},
		{
			[]providers.Tag{{Name: "b", Value: "1"}, {Name: "a", Value: "2"}},
			"b:1",
			map[string]any{"outboxd_attempt": reference, "b": "1", "a": "2"},
		},
	} {
		got := rendered(t, postmark.Config{}, func(m *providers.Message) { m.Tags = tt.tags })
		if diff := cmp.Diff(tt.metadata, got["Metadata"]); diff != "" || got["Tag"] != tt.tag {
			t.Errorf("%v: tag %v, metadata %s", tt.tags, got["Tag"], diff)
		}
	}
}

func TestMessageStream(t *testing.T) {
	t.Parallel()
	for stream, want := range map[string]string{"": "outbound", "receipts": "receipts"} {
		got := rendered(t, postmark.Config{MessageStream: stream}, func(*providers.Message) {})
		if got["MessageStream"] != want {
			t.Errorf("stream %v, want %s", got["MessageStream"], want)
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
		{"row 2: CRLF in a name", "control_character", func(r *providers.Request) { r.Message.To[0].Name = "a\r\nb" }},
		{"row 3: CRLF in a header name", "bad_header", header("X\r\nBcc")},
		{"row 5: UTF-8 local part", "utf8_address", func(r *providers.Request) { r.Message.To[0].Email = "jürgen@example.org" }},
		{"row 7: trailing dot", "bad_address", func(r *providers.Request) { r.Message.To[0].Email = "a@example.org." }},
		{"row 10: an address twice (F40)", "repeated_recipient", func(r *providers.Request) {
			r.Message.Cc = []providers.Address{{Email: strings.ToUpper(r.Message.To[0].Email)}}
		}},
		{"row 13: empty bodies", "empty_body", func(r *providers.Request) { r.Message.Text, r.Message.HTML = "", "" }},
		{"row 17: too large", "too_large", file(providers.Attachment{Filename: "a", Content: make([]byte, 8<<20)})},
		{"row 17: large body", "too_large", func(r *providers.Request) { r.Message.HTML = strings.Repeat("x", 5<<20+1) }},
		{"row 22: protected header", "protected_header", header("DKIM-Signature")},
		{"row 22: Postmark's own header", "bad_header", header("x-pm-metadata-outboxd_attempt")},
		{"row 24: invalid UTF-8", "invalid_utf8", func(r *providers.Request) { r.Message.HTML = "\xff" }},
		{"malformed type", "bad_content_type", file(providers.Attachment{Filename: "a", ContentType: "a/b; =", Content: content})},
		{"F23: file without a name", "unnamed_attachment", file(providers.Attachment{Content: content})},
		{"no subject", "empty_subject", func(r *providers.Request) { r.Message.Subject = "" }},
		{"nobody in To", "no_recipient", func(r *providers.Request) { r.Message.Bcc, r.Message.To = r.Message.To, nil }},
		{"51 recipients", "too_many_recipients", func(r *providers.Request) {
			for i := range 50 {
				r.Message.Bcc = append(r.Message.Bcc, providers.Address{Email: strings.Repeat("x", i+1) + "@example.org"})
			}
		}},
		{"10 tags and ours", "too_many_tags", labels(tags(10)...)},
		{"a tag twice", "repeated_tag", labels(providers.Tag{Name: "a", Value: "1"}, providers.Tag{Name: "A", Value: "2"})},
		{"our own tag", "repeated_tag", labels(providers.Tag{Name: "Outboxd_Attempt", Value: "1"})},
		{"tag with a long name", "bad_tag", labels(providers.Tag{Name: strings.Repeat("ü", 21)})},
		{"tag with a long value", "bad_tag", labels(providers.Tag{Name: "a", Value: strings.Repeat("🎉", 41)})},
		{"tag without a name", "bad_tag", labels(providers.Tag{Value: "1"})},
		{"no key", "bad_key", func(r *providers.Request) { r.Key = "" }},
		{"key with another parameter", "bad_key", func(r *providers.Request) { r.Key = "a&tag=b" }},
	}
	p := newProvider(t, postmark.Config{})
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
	r.Message.HTML = strings.Repeat("x", 5<<20)
	r.Message.Tags = append(tags(8), providers.Tag{Name: strings.Repeat("ü", 20), Value: strings.Repeat("🎉", 40)})
	for i := range 49 {
		r.Message.To = append(r.Message.To, providers.Address{Email: strings.Repeat("x", i+1) + "@example.org"})
	}
	r.Message.Attachments = []providers.Attachment{
		{Filename: "large", Content: make([]byte, 3<<20)},
		{Filename: "a.ics", ContentType: "text/calendar; method=REQUEST; charset=utf-8", Content: []byte("x")},
	}
	p, _ := start(t, postmark.Config{}, nil)
	payload, err := p.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(t.Context(), providers.Sending{Request: r, Payload: payload}); err != nil {
		t.Errorf("refused: %v, %s", err, providers.AsError(err).Detail)
	}
}
