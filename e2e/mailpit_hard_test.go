package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// hardMail is a submission that breaks senders, and what a reader has of it.
type hardMail struct {
	name string
	body map[string]any // over the ordinary mail
	want func(*mailpitMessage)
	// files are the contents of the files, by name.
	files map[string]string
}

func hardMails() []hardMail {
	const logo = "\x89PNG\r\n\x1a\n"
	long := strings.Repeat("Grüße 🎉 ", 40) + "Ende"
	dots := ".\r\n..\r\n.a\r\n\r\n.\r\nQUIT\r\n."
	return []hardMail{
		{name: "row 1: names", body: map[string]any{
			"from": `"Doe, Jürgen \"Jay\"" <from@example.com>`, "to": []string{`"Müller, Zoë" <to@example.org>`, "山田太郎 <yamada@example.org>"},
			"reply_to": []string{`"Ünal (Büro)" <reply@example.com>`},
		}, want: func(m *mailpitMessage) {
			m.From = mailpitAddress{`Doe, Jürgen "Jay"`, "from@example.com"}
			m.To = []mailpitAddress{{"Müller, Zoë", "to@example.org"}, {"山田太郎", "yamada@example.org"}}
			m.ReplyTo = []mailpitAddress{{"Ünal (Büro)", "reply@example.com"}}
		}},
		{name: "row 4: IDN", body: map[string]any{
			"from": "from@bücher.example", "to": "to@BÜCHER.example", "cc": "cc@faß.example", "bcc": "bcc@例え.example",
		}, want: func(m *mailpitMessage) {
			m.From = mailpitAddress{Address: "from@xn--bcher-kva.example"}
			m.To = []mailpitAddress{{Address: "to@xn--bcher-kva.example"}}
			m.Cc = []mailpitAddress{{Address: "cc@xn--fa-hia.example"}}
			m.Bcc = []mailpitAddress{{Address: "bcc@xn--r8jz45g.example"}}
		}},
		{name: "row 10: addresses twice (F40)", body: map[string]any{
			"to": "to@example.org", "cc": []string{"TO@example.org", "cc@example.org"}, "bcc": []string{"Cc@example.org", "bcc@example.org"},
		}, want: func(m *mailpitMessage) {
			m.Cc, m.Bcc = []mailpitAddress{{Address: "cc@example.org"}}, []mailpitAddress{{Address: "bcc@example.org"}}
		}},
		{name: "row 12: subject", body: map[string]any{"subject": long}, want: func(m *mailpitMessage) { m.Subject = long }},
		{name: "row 13: no text", body: map[string]any{"text": nil, "html": "<p>ü</p>"}, want: func(m *mailpitMessage) {
			m.Text, m.HTML = "", "<p>ü</p>\r\n"
		}},
		{name: "row 14: an empty file", body: map[string]any{
			"attachments": []map[string]any{{"filename": "leer – ä.txt", "content": "", "content_type": "text/plain"}},
		}, want: func(m *mailpitMessage) {
			m.Attachments = []mailpitFile{{FileName: "leer – ä.txt", ContentType: "text/plain"}}
		}, files: map[string]string{"leer – ä.txt": ""}},
		{name: "row 19: a file in the HTML (F23)", body: map[string]any{
			"html": `<img src="cid:logo@example">`, "attachments": []map[string]any{
				{"filename": "logo.png", "content": []byte(logo), "content_type": "image/png", "content_id": "logo@example"},
				{"filename": "terms.pdf", "content": []byte("%PDF\x00\xff"), "content_type": "application/pdf"},
			},
		}, want: func(m *mailpitMessage) {
			m.HTML = `<img src="cid:logo@example">`
			m.Inline = []mailpitFile{{FileName: "logo.png", ContentType: "image/png", ContentID: "logo@example", Size: len(logo)}}
			m.Attachments = []mailpitFile{{FileName: "terms.pdf", ContentType: "application/pdf", Size: 6}}
		}, files: map[string]string{"logo.png": logo, "terms.pdf": "%PDF\x00\xff"}},
		{name: "row 20: one-click", body: map[string]any{"headers": map[string]string{
			"List-Unsubscribe":      "<mailto:u@example.com>, <https://example.com/u?a=1>",
			"List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
		}}, want: func(m *mailpitMessage) {
			m.ListUnsubscribe.Header = "<mailto:u@example.com>, <https://example.com/u?a=1>"
			m.ListUnsubscribe.HeaderPost = "List-Unsubscribe=One-Click"
		}},
		{name: "F24: dots", body: map[string]any{"text": dots}, want: func(m *mailpitMessage) { m.Text = dots + "\r\n" }},
	}
}

// The hard inputs, from the API to a real SMTP server, as its API shows them.
func TestMailpitHardInputs(t *testing.T) {
	t.Parallel()
	in, inbox := install(t), startMailpit(t)
	api := in.start("api", inbox.env()...)
	in.start("worker", inbox.env()...)

	mails := hardMails()
	ids := map[string]int{} // index of a mail by the id that outboxd gave it
	for i, mail := range mails {
		body := map[string]any{"from": "from@example.com", "to": "to@example.org", "subject": "Hello", "text": "text\r\n"}
		for field, value := range mail.body {
			body[field] = value
			if value == nil {
				delete(body, field)
			}
		}
		sent := mustCall(t, "POST", api.url("api")+"/emails", in.token, fmt.Sprint("hard-", i), body)
		if sent.status != http.StatusAccepted {
			t.Fatalf("%s: answer %d: %s", mail.name, sent.status, sent.body)
		}
		var receipt struct{ ID string }
		sent.decode(t, &receipt)
		ids[receipt.ID] = i
	}
	eventually(t, "all arrive", func() bool {
		total, _ := inbox.messages()
		return total >= len(mails)
	})
	total, list := inbox.messages()
	if total != len(mails) {
		t.Errorf("%d messages arrived, want %d", total, len(mails))
	}
	arrived := map[string]mailpitMessage{}
	for _, summary := range list {
		m := inbox.message(summary.ID)
		arrived[m.MessageID] = m
	}
	for id, i := range ids {
		var got struct {
			Attempts []struct {
				ProviderMessageID string `json:"provider_message_id"`
			}
		}
		eventually(t, "the receipt is stored", func() bool {
			mustCall(t, "GET", api.url("api")+"/emails/"+id, in.token, "", nil).decode(t, &got)
			return len(got.Attempts) == 1 && got.Attempts[0].ProviderMessageID != ""
		})
		m, ok := arrived[strings.Trim(got.Attempts[0].ProviderMessageID, "<>")]
		if !ok {
			t.Errorf("%s did not arrive", mails[i].name)
			continue
		}
		inbox.check(m, mails[i])
	}
}

// check compares a message with what a reader is to have of it.
func (m *mailpit) check(got mailpitMessage, mail hardMail) {
	m.t.Helper()
	want := mailpitMessage{
		From: mailpitAddress{Address: "from@example.com"}, To: []mailpitAddress{{Address: "to@example.org"}},
		Subject: "Hello", Text: "text\r\n",
	}
	mail.want(&want)
	ignored := []cmp.Option{
		cmpopts.EquateEmpty(), cmpopts.IgnoreFields(mailpitMessage{}, "ID", "MessageID"), cmpopts.IgnoreFields(mailpitFile{}, "PartID"),
	}
	if want.Text == "" {
		ignored = append(ignored, cmpopts.IgnoreFields(mailpitMessage{}, "Text")) // Mailpit makes one of the HTML
	}
	if diff := cmp.Diff(want, got, ignored...); diff != "" {
		m.t.Errorf("%s (-want +got):\n%s", mail.name, diff)
	}
	for _, file := range append(got.Attachments, got.Inline...) {
		content, ok := mail.files[file.FileName]
		if !ok {
			m.t.Errorf("%s: a file %q that was not given", mail.name, file.FileName)
			continue
		}
		if arrived := m.part(got.ID, file.PartID); string(arrived) != content {
			m.t.Errorf("%s: %s has %q, want %q", mail.name, file.FileName, arrived, content)
		}
	}
}
