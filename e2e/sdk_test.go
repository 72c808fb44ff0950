// The official Resend SDKs, unchanged but for the base URL, against a real API
// process: what they send is stored and arrives as it was given, and what they
// return is what an application of theirs expects.

package e2e_test

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// everyByte is a file that any mistake of encoding changes.
func everyByte() []byte {
	file := make([]byte, 256)
	for i := range file {
		file[i] = byte(i)
	}
	return file
}

// key makes another API key of the org, as an operator does.
func (in *installation) key(scopes string) string {
	in.t.Helper()
	printed := strings.Fields(outboxctl(in.t, in.databaseURL, "key", "create", "--org", "acme", "--scopes", scopes))
	return printed[len(printed)-1]
}

// wireEmail is what GET /emails/{id} says of the email that each SDK sends.
type wireEmail struct {
	Object  string              `json:"object"`
	ID      string              `json:"id"`
	From    string              `json:"from"`
	To      []string            `json:"to"`
	Cc      []string            `json:"cc"`
	Bcc     []string            `json:"bcc"`
	ReplyTo []string            `json:"reply_to"`
	Subject string              `json:"subject"`
	HTML    string              `json:"html"`
	Text    string              `json:"text"`
	Tags    []map[string]string `json:"tags"`
	Status  string              `json:"last_event"`
}

func wantEmail(id, subject string) wireEmail {
	return wireEmail{
		Object: "email", ID: id, From: "Shop <shop@example.com>", To: []string{"jane@example.org"},
		Cc: []string{"joe@example.org"}, Bcc: []string{"ann@example.org"}, ReplyTo: []string{"help@example.com"},
		Subject: subject, HTML: "<p>Thank you ✓</p>", Text: "Thank you ✓",
		Tags: []map[string]string{{"name": "kind", "value": "receipt"}}, Status: "queued",
	}
}

func checkStored(t *testing.T, emailURL, token string, want wireEmail) {
	t.Helper()
	var got wireEmail
	mustCall(t, http.MethodGet, emailURL, token, "", nil).decode(t, &got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stored email (-want +got):\n%s", diff)
	}
}

// checkArrived waits for the email and compares what arrived with what the SDK
// was given. Every attachment is [everyByte].
func (m *mailpit) checkArrived(subject string, files ...string) {
	m.t.Helper()
	got := m.message(m.await(subject))
	want := mailpitMessage{
		ID: got.ID, MessageID: got.MessageID, Subject: subject, From: mailpitAddress{"Shop", "shop@example.com"},
		To: []mailpitAddress{{"", "jane@example.org"}}, Cc: []mailpitAddress{{"", "joe@example.org"}},
		Bcc: []mailpitAddress{{"", "ann@example.org"}}, ReplyTo: []mailpitAddress{{"", "help@example.com"}},
		Text: "Thank you ✓", HTML: "<p>Thank you ✓</p>", Attachments: got.Attachments,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		m.t.Errorf("%s (-want +got):\n%s", subject, diff)
	}
	var headers http.Header
	mustCall(m.t, http.MethodGet, "http://"+m.http+"/api/v1/message/"+got.ID+"/headers", "", "", nil).decode(m.t, &headers)
	if order := headers["X-Order"]; !slices.Equal(order, []string{"7"}) {
		m.t.Errorf("%s: header X-Order = %q, want 7", subject, order)
	}
	var names []string
	for _, a := range got.Attachments {
		names = append(names, a.FileName)
		if content := m.part(got.ID, a.PartID); !bytes.Equal(content, everyByte()) {
			m.t.Errorf("%s: %s arrived as %x", subject, a.FileName, content)
		}
	}
	if diff := cmp.Diff(files, names); diff != "" {
		m.t.Errorf("%s: attachments (-want +got):\n%s", subject, diff)
	}
}

// await returns the id of the message with the subject.
func (m *mailpit) await(subject string) (id string) {
	m.t.Helper()
	eventually(m.t, subject+" arrives", func() bool {
		_, messages := m.messages()
		i := slices.IndexFunc(messages, func(s mailpitSummary) bool { return s.Subject == subject })
		if i < 0 {
			return false
		}
		id = messages[i].ID
		return true
	})
	return id
}
