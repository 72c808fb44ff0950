package sendgrid_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/sendgrid"
)

func TestRenderWholeMessage(t *testing.T) {
	t.Parallel()
	r := providertest.Request(1)
	r.Message = providers.Message{
		From:    providers.Address{Name: "Müller, Jürgen", Email: "sender@xn--bcher-kva.example"},
		To:      []providers.Address{{Name: "A", Email: "a@example.org"}, {Email: "b@example.org"}},
		Cc:      []providers.Address{{Email: "c@example.org"}},
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
		},
		Tags: []providers.Tag{{Name: "campaign", Value: "spring"}, {Name: "email", Value: "not-the-recipient"}},
	}
	payload, err := newProvider(t, sendgrid.Config{Sandbox: true}).Render(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{
		"from": {"name": "Müller, Jürgen", "email": "sender@xn--bcher-kva.example"},
		"subject": "` + r.Message.Subject + `",
		"personalizations": [{
			"to": [{"name": "A", "email": "a@example.org"}, {"email": "b@example.org"}],
			"cc": [{"email": "c@example.org"}],
			"bcc": [{"email": "d@example.org"}]
		}],
		"content": [
			{"type": "text/plain", "value": ".\r\n"},
			{"type": "text/html", "value": "<a href=\"https://example.com/?a=1&b=2\">x</a>"}
		],
		"attachments": [
			{"content": "cGRm", "type": "application/pdf", "filename": "Übersicht.pdf", "disposition": "attachment"},
			{"content": "cG5n", "type": "image/png", "filename": "logo@example", "disposition": "inline", "content_id": "logo@example"}
		],
		"headers": {"X-Zebra": "z", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"},
		"categories": ["campaign:spring", "email:not-the-recipient"],
		"custom_args": {
			"outboxd_attempt": "0198c0de-0000-7000-8000-000000000001",
			"tag_campaign": "spring", "tag_email": "not-the-recipient"
		},
		"mail_settings": {"sandbox_mode": {"enable": true}},
		"reply_to_list": [{"email": "reply@example.com"}]
	}`
	if diff := cmp.Diff(decode(t, []byte(want)), decode(t, payload)); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
	if bytes.Contains(payload, []byte(`\u003c`)) {
		t.Error("HTML is escaped and takes six times the space")
	}
}

func decode(t *testing.T, b []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, b)
	}
	return v
}

func tags(n int) []providers.Tag {
	var out []providers.Tag
	for i := range n {
		out = append(out, providers.Tag{Name: strings.Repeat("t", i+1), Value: "v"})
	}
	return out
}

func TestCategoriesAreBounded(t *testing.T) {
	t.Parallel()
	r := providertest.Request(1)
	r.Message.Tags = append([]providers.Tag{{Name: "long", Value: strings.Repeat("v", 256)}}, tags(12)...)
	payload, err := newProvider(t, sendgrid.Config{}).Render(r)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Categories []string          `json:"categories"`
		CustomArgs map[string]string `json:"custom_args"`
	}
	if err := json.Unmarshal(payload, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Categories) != 10 {
		t.Errorf("%d categories, SendGrid takes 10", len(got.Categories))
	}
	if len(got.CustomArgs) != 14 {
		t.Errorf("%d custom arguments, want the key and all 13 tags", len(got.CustomArgs))
	}
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	file := func(a providers.Attachment) func(*providers.Message) {
		return func(m *providers.Message) { m.Attachments = []providers.Attachment{a} }
	}
	content := []byte("x")
	tests := []struct {
		name string
		code string
		edit func(*providers.Message)
	}{
		{"row 2: CRLF in the subject", "control_character", func(m *providers.Message) { m.Subject = "a\r\nb" }},
		{"row 3: CRLF in a header name", "bad_header", func(m *providers.Message) {
			m.Headers = []providers.Header{{Name: "X\r\nBcc", Value: "b@example.org"}}
		}},
		{"row 5: UTF-8 local part", "utf8_address", func(m *providers.Message) { m.To[0].Email = "jürgen@example.org" }},
		{"row 10: an address twice (F40)", "repeated_recipient", func(m *providers.Message) {
			m.Cc = []providers.Address{{Email: strings.ToUpper(m.To[0].Email)}}
		}},
		{"row 13: empty bodies", "empty_body", func(m *providers.Message) { m.Text, m.HTML = "", "" }},
		{"row 14: empty file", "empty_attachment", file(providers.Attachment{Filename: "a.txt"})},
		{"row 17: too large", "too_large", file(providers.Attachment{Filename: "a", Content: make([]byte, 23<<20)})},
		{"F2: type with parameters", "content_type_parameters", file(providers.Attachment{
			Filename: "a.ics", ContentType: "text/calendar; method=REQUEST", Content: content,
		})},
		{"charset that is not UTF-8", "content_type_parameters", file(providers.Attachment{
			Filename: "a.txt", ContentType: "text/plain; charset=iso-8859-1", Content: content,
		})},
		{"malformed type", "bad_content_type", file(providers.Attachment{Filename: "a", ContentType: "a/b; =", Content: content})},
		{"file without a name", "unnamed_attachment", file(providers.Attachment{Content: content})},
		{"row 22: SendGrid's own header", "bad_header", func(m *providers.Message) {
			m.Headers = []providers.Header{{Name: "x-sg-eid", Value: "1"}}
		}},
		{"a header twice", "bad_header", func(m *providers.Message) {
			m.Headers = []providers.Header{{Name: "X-A", Value: "1"}, {Name: "x-a", Value: "2"}}
		}},
		{"no subject", "empty_subject", func(m *providers.Message) { m.Subject = "" }},
		{"nobody in To", "no_recipient", func(m *providers.Message) { m.Bcc, m.To = m.To, nil }},
		{"1001 recipients", "too_many_recipients", func(m *providers.Message) {
			for i := range 1000 {
				m.Bcc = append(m.Bcc, providers.Address{Email: strings.Repeat("x", i+1) + "@example.org"})
			}
		}},
		{"a tag twice", "repeated_tag", func(m *providers.Message) { m.Tags = []providers.Tag{{Name: "a", Value: "1"}, {Name: "a", Value: "2"}} }},
		{"10 kB of tags", "tags_too_large", func(m *providers.Message) { m.Tags = tags(150) }},
	}
	p := newProvider(t, sendgrid.Config{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := providertest.Request(1)
			tt.edit(&r.Message)
			_, err := p.Render(r)
			if e := providers.AsError(err); err == nil || e.Outcome != providers.Rejected || e.Code != tt.code {
				t.Errorf("got %v, want rejected %s", err, tt.code)
			}
		})
	}
}

func TestTypeParametersThatSayNothing(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"", "text/plain", "text/plain; charset=UTF-8", "text/plain; name=\"a.txt\"; charset=us-ascii"} {
		r := providertest.Request(1)
		r.Message.Attachments = []providers.Attachment{{Filename: "a.txt", ContentType: contentType, Content: []byte("x")}}
		payload, err := newProvider(t, sendgrid.Config{}).Render(r)
		if err != nil {
			t.Errorf("%q: %v", contentType, err)
		}
		if bytes.Contains(payload, []byte("charset")) {
			t.Errorf("%q: the parameter is in %s", contentType, payload)
		}
	}
}
