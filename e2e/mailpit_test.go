package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mailpit is a real SMTP server whose API says what arrived.
type mailpit struct {
	t    *testing.T
	http string
	smtp string
}

func startMailpit(t *testing.T) *mailpit {
	t.Helper()
	path := os.Getenv("OUTBOXD_TEST_MAILPIT")
	if path == "" {
		path = filepath.Join("..", ".cache", "bin", "mailpit")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal("mailpit is not installed: run `make test`, which builds it")
	}
	m := &mailpit{t: t, http: freeAddress(t), smtp: freeAddress(t)}
	start(t, path, []string{
		"--listen", m.http, "--smtp", m.smtp, "--max", "0", "--disable-version-check",
		"--database", filepath.Join(t.TempDir(), "mail.db"),
	}, nil)
	eventually(t, "mailpit starts", func() bool {
		resp, err := http.Get("http://" + m.http + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return m
}

// env makes a worker send through this server.
func (m *mailpit) env() []string {
	return []string{"OUTBOXD_PROVIDERS=smtp", "SMTP_URL=smtp://" + m.smtp + "?tls=none"}
}

type mailpitAddress struct{ Name, Address string }

type mailpitMessage struct {
	ID          string
	Subject     string
	From        mailpitAddress
	To, Cc, Bcc []mailpitAddress
	ReplyTo     []mailpitAddress
	Text, HTML  string
	MessageID   string
	Attachments []mailpitFile
	Inline      []mailpitFile
	// ListUnsubscribe is what Mailpit makes of RFC 2369 and RFC 8058.
	ListUnsubscribe struct{ Header, HeaderPost, Errors string }
}

type mailpitFile struct {
	PartID, FileName, ContentType, ContentID string
	Size                                     int
}

type mailpitSummary struct{ ID, Subject string }

// messages returns how many arrived, and the newest of them.
func (m *mailpit) messages() (total int, newest []mailpitSummary) {
	m.t.Helper()
	var list struct {
		Total    int
		Messages []mailpitSummary
	}
	mustCall(m.t, "GET", "http://"+m.http+"/api/v1/messages?limit=1000", "", "", nil).decode(m.t, &list)
	return list.Total, list.Messages
}

func (m *mailpit) message(id string) (message mailpitMessage) {
	m.t.Helper()
	mustCall(m.t, "GET", "http://"+m.http+"/api/v1/message/"+url.PathEscape(id), "", "", nil).decode(m.t, &message)
	return message
}

func (m *mailpit) part(id, part string) []byte {
	m.t.Helper()
	return mustCall(m.t, "GET", fmt.Sprintf("http://%s/api/v1/message/%s/part/%s", m.http, id, part), "", "", nil).body
}

// The whole way: API, Postgres, worker, a real SMTP server.
func TestDelivery(t *testing.T) {
	t.Parallel()
	in, inbox := install(t), startMailpit(t)
	api := in.start("api", inbox.env()...)
	in.start("worker", inbox.env()...)

	sent := mustCall(t, "POST", api.url("api")+"/emails", in.token, "order-7", map[string]any{
		"from": "Müller, Jürgen <juergen@example.com>", "to": []string{"Zoë <zoe@example.org>"}, "cc": "joe@example.org",
		"bcc": "ann@example.org", "reply_to": "help@example.com", "subject": "Ihre Rechnung für Grüße ✓",
		"text": "Grüß dich,\n.\n..zwei Punkte\n", "html": "<p>Grüß dich ✓</p>",
		"attachments": []map[string]any{{"filename": "Rechnung ä.pdf", "content": []byte("%PDF-1.7\x00\xff"), "content_type": "application/pdf"}},
	})
	if sent.status != http.StatusAccepted {
		t.Fatalf("answer %d: %s", sent.status, sent.body)
	}
	var receipt struct{ ID string }
	sent.decode(t, &receipt)
	var got struct {
		Status   string
		Attempts []struct{ Stage, Provider string }
	}
	eventually(t, "the email is sent", func() bool {
		mustCall(t, "GET", api.url("api")+"/emails/"+receipt.ID, in.token, "", nil).decode(t, &got)
		return got.Status == "sent"
	})
	if len(got.Attempts) != 1 || got.Attempts[0].Stage != "accepted" || got.Attempts[0].Provider != "smtp" {
		t.Errorf("attempts = %+v, want one, accepted by smtp", got.Attempts)
	}

	total, list := inbox.messages()
	if total != 1 {
		t.Fatalf("%d messages arrived, want 1", total)
	}
	m := inbox.message(list[0].ID)
	// Hard input 1: a display name with a comma and an umlaut.
	if want := (mailpitAddress{"Müller, Jürgen", "juergen@example.com"}); m.From != want {
		t.Errorf("from = %+v, want %+v", m.From, want)
	}
	if diff := cmp.Diff([]mailpitAddress{{"Zoë", "zoe@example.org"}}, m.To); diff != "" {
		t.Errorf("to (-want +got):\n%s", diff)
	}
	if len(m.Cc) != 1 || len(m.Bcc) != 1 || len(m.ReplyTo) != 1 {
		t.Errorf("cc %v, bcc %v, reply-to %v; want one of each", m.Cc, m.Bcc, m.ReplyTo)
	}
	if m.Subject != "Ihre Rechnung für Grüße ✓" {
		t.Errorf("subject = %q", m.Subject)
	}
	// F24: a line with a single dot does not end the body.
	if want := "Grüß dich,\r\n.\r\n..zwei Punkte\r\n"; m.Text != want {
		t.Errorf("text = %q, want %q", m.Text, want)
	}
	if m.HTML != "<p>Grüß dich ✓</p>" {
		t.Errorf("html = %q", m.HTML)
	}
	if len(m.Attachments) != 1 || m.Attachments[0].FileName != "Rechnung ä.pdf" || m.Attachments[0].ContentType != "application/pdf" {
		t.Fatalf("attachments = %+v", m.Attachments)
	}
	if content := inbox.part(m.ID, m.Attachments[0].PartID); string(content) != "%PDF-1.7\x00\xff" {
		t.Errorf("attachment = %q", content)
	}
}
