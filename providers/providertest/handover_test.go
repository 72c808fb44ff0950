package providertest_test

import (
	"io"
	"net/http"
	"net/smtp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outboxd/outboxd/providers/providertest"
)

// handovers collects what a provider reports.
type handovers struct {
	mu   sync.Mutex
	list []providertest.Handover
}

func (h *handovers) add(one providertest.Handover) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, one)
}

func (h *handovers) check(t *testing.T, want ...providertest.Handover) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if diff := cmp.Diff(want, h.list, cmpopts.IgnoreFields(providertest.Handover{}, "At")); diff != "" {
		t.Error(diff)
	}
}

// One listener speaks several dialects, each with its own rules and keys.
func TestHTTPSpeaksSeveralDialects(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.SendGrid, providertest.Resend)
	var ends handovers
	p.OnEnd(ends.add)
	p.Handle("GET /page", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a page") }))

	if resp, _, err := postMail(t, p.URL()+"/v3/mail/send", goodMail); err != nil || resp.StatusCode != http.StatusAccepted {
		t.Errorf("sendgrid: %v, %v", resp, err)
	}
	for range 2 {
		if status, text := postKeyed(t, p, "k", resendMail); status != http.StatusOK || text != `{"id":"resend-2"}` {
			t.Errorf("resend: %d %s", status, text)
		}
	}
	if resp, _, err := postMail(t, p.URL()+"/v3/other", goodMail); err != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("no dialect: %v, %v", resp, err)
	}
	accepted := p.Accepted()
	if len(accepted) != 2 || accepted[0].Provider != "sendgrid" || accepted[1].Provider != "resend" {
		t.Fatalf("accepted %+v", accepted)
	}
	for _, a := range accepted {
		if a.From != "s@example.com" || !slices.Equal(a.To, []string{"a@example.org"}) || a.Subject != "s" {
			t.Errorf("accepted from %q to %q, %q", a.From, a.To, a.Subject)
		}
	}
	to := []string{"a@example.org"}
	ends.check(t,
		providertest.Handover{Number: 1, Provider: "sendgrid", Reference: "key-1", To: to, Accepted: true, ID: "sendgrid-1", Status: 202},
		providertest.Handover{Number: 2, Provider: "resend", Reference: "key-1", To: to, Accepted: true, ID: "resend-2", Status: 200},
		providertest.Handover{Number: 3, Provider: "resend", Reference: "key-1", To: to, Replayed: true, ID: "resend-2", Status: 200},
		providertest.Handover{Number: 4, Status: 404},
	)
	resp, err := http.Get(p.URL() + "/page")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); string(text) != "a page" || err != nil || p.Requests() != 4 {
		t.Errorf("page %q, %v; %d requests, want it not counted", text, err, p.Requests())
	}
}

// After Forget a provider has no memory, and its numbers go on.
func TestHTTPForgets(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.Resend)
	postKeyed(t, p, "k", resendMail)
	postKeyed(t, p, "k", resendMail)
	p.Forget()
	if len(p.Accepted()) != 0 || len(p.Seen()) != 0 || len(p.Replays()) != 0 {
		t.Error("something is remembered")
	}
	if status, text := postKeyed(t, p, "k", resendMail); status != http.StatusOK || text != `{"id":"resend-2"}` {
		t.Errorf("%d %s, want a new message", status, text)
	}
	if seen := p.Seen(); len(seen) != 1 || seen[0].Number != 3 {
		t.Errorf("seen %+v, want request 3", seen)
	}
}

// The services' own form of an answer that a script asks for by its status.
func TestRefuse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		dialect      providertest.Dialect
		status       int
		path, inBody string
	}{
		{providertest.SendGrid, 429, "/v3/mail/send", `{"errors":[{"message":"Too Many Requests"`},
		{providertest.Resend, 429, "/emails", `"name":"rate_limit_exceeded"`},
		{providertest.Resend, 503, "/emails", `"name":"application_error"`},
	} {
		p := providertest.NewHTTP(t, tt.dialect)
		p.Respond(func(providertest.Seen) providertest.Reaction { return tt.dialect.Refuse(tt.status) })
		resp, text, err := postMail(t, p.URL()+tt.path, "x")
		if err != nil || resp.StatusCode != tt.status || !strings.Contains(text, tt.inBody) {
			t.Errorf("%s %d: %v %s", tt.dialect.Name, tt.status, err, text)
		}
	}
}

func TestSMTPReportsHandovers(t *testing.T) {
	t.Parallel()
	p := providertest.NewSMTP(t, providertest.SMTPOptions{})
	var ends handovers
	p.OnEnd(ends.add)
	send := func(to string) error {
		return smtp.SendMail(p.Addr(), nil, "s@example.com", []string{to},
			[]byte("Message-ID: <key-1@example.com>\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n\r\nx\r\n"))
	}
	p.Respond(func(e providertest.SMTPEvent) providertest.Reaction {
		if e.Stage == providertest.AtRCPT && e.To[0] == "nobody@example.org" {
			return providertest.Reply(550, "5.1.1 no such user")
		}
		return providertest.Reaction{}
	})
	if err := send("nobody@example.org"); err == nil {
		t.Error("taken, want 550")
	}
	if err := send("a@example.org"); err != nil {
		t.Error(err)
	}
	if a := p.Accepted()[0]; a.Provider != "smtp" || a.Subject != "Grüße" {
		t.Errorf("accepted by %q: %q", a.Provider, a.Subject)
	}
	ends.check(t,
		providertest.Handover{Number: 1, Provider: "smtp", To: []string{"nobody@example.org"}, Status: 550, Stage: providertest.AtRCPT},
		providertest.Handover{Number: 2, Provider: "smtp", Reference: "key-1", To: []string{"a@example.org"}, Accepted: true, ID: "smtp-1", Status: 250, Stage: providertest.AtDot},
	)
	p.Forget()
	if len(p.Accepted()) != 0 {
		t.Error("something is remembered")
	}
}
