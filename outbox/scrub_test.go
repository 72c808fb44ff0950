package outbox

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers"
)

// What a provider says is kept; what it quotes of the message is not.
func TestScrub(t *testing.T) {
	t.Parallel()
	m := Message{
		From: `"Acme Shop" <shop@example.com>`, To: []string{"Jane Doe <jane@example.org>", "joe@example.org"},
		Subject: "Your invoice", Text: "Your invoice 17 is paid.", HTML: "<p>Paid</p>",
		Headers: map[string]string{"X-Order": "order-17"}, Metadata: map[string]string{"plan": "gold-plan", "n": "17"},
		Attachments: []Attachment{{Filename: "invoice.pdf", Content: []byte("%PDF secret")}},
	}
	for text, want := range map[string]string{
		"domain example.com is not verified, error 1700": "domain example.com is not verified, error 1700",
		"mail to Jane Doe <jane@example.org> refused":    "mail to (content) <(address)> refused",
		"Your invoice 17 is paid. looks like spam":       "(content) looks like spam",
		"subject 'Your invoice' from Acme Shop":          "subject '(content)' from (content)",
		"order-17, gold-plan, invoice.pdf, %PDF secret":  "(content), (content), (content), (content)",
		"<p>Paid</p>\r\nbad":                             "(content)  bad",
		strings.Repeat("x", 2*maxDetail):                 strings.Repeat("x", maxDetail) + "…",
	} {
		if got := m.scrub(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// A scrubbed error says the same about the outcome, with its cause, and an error
// that no adapter made keeps its words.
func TestScrubError(t *testing.T) {
	t.Parallel()
	m := Message{Subject: "Your invoice"}
	if m.scrubError(nil) != nil {
		t.Error("no error became one")
	}
	cause := errors.New("Your invoice to jane@example.org: refused")
	scrubbed := m.scrubError(&providers.Error{Outcome: providers.Rejected, Status: 422, Code: "code", Err: cause})
	e, ok := errors.AsType[*providers.Error](scrubbed)
	if !ok || e.Outcome != providers.Rejected || e.Status != 422 || e.Code != "code" || !errors.Is(e, cause) {
		t.Errorf("scrubbed to %#v", scrubbed)
	}
	if want := "(content) to (address): refused"; e.Detail != want {
		t.Errorf("detail %q, want %q", e.Detail, want)
	}
	if e := providers.AsError(m.scrubError(cause)); e.Outcome != providers.InDoubt || strings.Contains(e.Detail, "jane") {
		t.Errorf("an error of no adapter became %#v", e)
	}
}
