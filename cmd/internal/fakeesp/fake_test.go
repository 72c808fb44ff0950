package fakeesp

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/mailgun"
	"github.com/outboxd/outboxd/providers/postmark"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/resend"
	"github.com/outboxd/outboxd/providers/sendgrid"
	"github.com/outboxd/outboxd/providers/ses"
	"github.com/outboxd/outboxd/providers/smtp"
)

// patience is how long anything may take before a test gives up.
const patience = time.Minute

// log is a log that a test can read while it is written.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// requests returns the lines about requests.
func (l *log) requests(t *testing.T) []Request {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []Request
	for line := range strings.Lines(l.text.String()) {
		var r Request
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v in the log's %q", err, line)
		}
		if r.Outcome != "" {
			list = append(list, r)
		}
	}
	return list
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	o.HTTPAddr, o.SMTPAddr = "127.0.0.1:0", "127.0.0.1:0"
	s, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// variable returns the value of a variable that the fake prints.
func variable(t *testing.T, env []string, name string) string {
	t.Helper()
	for _, line := range env {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			return value
		}
	}
	t.Fatalf("no %s in %q", name, env)
	return ""
}

// adapters make the real adapters from the variables that the fake prints.
var adapters = map[string]func(t *testing.T, env []string) (providers.Provider, error){
	"sendgrid": func(t *testing.T, env []string) (providers.Provider, error) {
		t.Helper()
		return sendgrid.New(sendgrid.Config{
			APIKey: variable(t, env, "SENDGRID_API_KEY"), BaseURL: variable(t, env, "SENDGRID_BASE_URL"),
		})
	},
	"resend": func(t *testing.T, env []string) (providers.Provider, error) {
		t.Helper()
		return resend.New(resend.Config{
			APIKey: variable(t, env, "RESEND_API_KEY"), BaseURL: variable(t, env, "RESEND_BASE_URL"),
		})
	},
	"postmark": func(t *testing.T, env []string) (providers.Provider, error) {
		t.Helper()
		return postmark.New(postmark.Config{
			ServerToken: variable(t, env, "POSTMARK_SERVER_TOKEN"), BaseURL: variable(t, env, "POSTMARK_BASE_URL"),
		})
	},
	"mailgun": func(t *testing.T, env []string) (providers.Provider, error) {
		t.Helper()
		return mailgun.New(mailgun.Config{
			APIKey: variable(t, env, "MAILGUN_API_KEY"), Domain: variable(t, env, "MAILGUN_DOMAIN"),
			BaseURL: variable(t, env, "MAILGUN_BASE_URL"),
		})
	},
	"ses": func(t *testing.T, env []string) (providers.Provider, error) {
		t.Helper()
		return ses.New(ses.Config{
			EndpointURL: variable(t, env, "SES_ENDPOINT_URL"), Region: variable(t, env, "AWS_REGION"),
			Credentials: credentials.NewStaticCredentialsProvider(
				variable(t, env, "AWS_ACCESS_KEY_ID"), variable(t, env, "AWS_SECRET_ACCESS_KEY"), ""),
		})
	},
	"smtp": func(t *testing.T, env []string) (providers.Provider, error) {
		t.Helper()
		c, err := smtp.ParseURL(variable(t, env, "SMTP_URL"))
		if err != nil {
			return nil, err
		}
		return smtp.New(c)
	},
}

// adapter returns the real adapter of a provider, pointed at the fake.
func (s *Server) adapter(t *testing.T, name string) providers.Provider {
	t.Helper()
	p, err := adapters[name](t, s.Environment())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// send sends the n-th message of a series to an address. The outcome is that of
// the adapter, or "accepted".
func send(ctx context.Context, t *testing.T, p providers.Provider, n int, to ...string) (outcome string, e *providers.Error) {
	t.Helper()
	r := providertest.Request(n)
	r.Message.To = nil
	for _, address := range to {
		r.Message.To = append(r.Message.To, providers.Address{Email: address})
	}
	payload, err := p.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = p.Send(ctx, providers.Sending{Request: r, Payload: payload}); err != nil {
		e = providers.AsError(err)
		return e.Outcome.String(), e
	}
	return "accepted", nil
}

// call makes a request to the fake's own API.
func (s *Server) call(t *testing.T, method, path, body string) (status int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(content)
}

// Each fault, asked for by the recipient, over the wire with the real adapter of
// each provider.
func TestFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		fault      string
		http, smtp string // what the adapter makes of it
		accepted   int    // what is true
		logged     string
		status     int // of the answer over HTTP
	}{
		{"none", "accepted", "accepted", 1, Accepted, 0},
		{"timeout", "in_doubt", "in_doubt", 1, Accepted, 0},
		{"lost", "in_doubt", "in_doubt", 1, Accepted, 0},
		{"reset", "in_doubt", "in_doubt", 0, Dropped, 0},
		{"garbage", "accepted", "accepted", 1, Accepted, 200},
		{"nonsense", "in_doubt", "in_doubt", 1, Accepted, 0},
		{"401", "misconfigured", "misconfigured", 0, Refused, 401},
		{"413", "rejected", "rejected", 0, Refused, 413},
		{"429", "deferred", "deferred", 0, Refused, 429},
		{"500", "in_doubt", "deferred", 0, Refused, 500},
		{"500-accepted", "in_doubt", "deferred", 1, Accepted, 500},
		{"599", "in_doubt", "rejected", 0, Refused, 599},
	}
	for _, provider := range Providers() {
		for _, tt := range tests {
			t.Run(provider+"/"+tt.fault, func(t *testing.T) {
				t.Parallel()
				var l log
				s := start(t, Options{Log: &l})
				p := s.adapter(t, provider)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if tt.fault == "timeout" {
					go func() {
						s.waitAccepted(ctx, provider)
						cancel()
					}()
				}
				want, to := tt.http, tt.fault+"@fake.test"
				if provider == relay {
					want = tt.smtp
				}
				got, e := send(ctx, t, p, 1, to)
				if got != want {
					t.Errorf("the adapter says %s, want %s: %v", got, want, e)
				}
				if n := len(s.accepted()); n != tt.accepted {
					t.Errorf("%d accepted, want %d", n, tt.accepted)
				}
				lines := l.requests(t)
				if len(lines) != 1 || lines[0].Outcome != tt.logged || lines[0].Provider != provider || lines[0].Recipients != 1 {
					t.Errorf("log %+v, want one %s line", lines, tt.logged)
				}
				if provider != relay && tt.status != 0 && lines[0].Status != tt.status {
					t.Errorf("log says %d, want %d", lines[0].Status, tt.status)
				}
				if fault := lines[0].Fault; fault != tt.fault && (fault != "" || tt.fault != "none") {
					t.Errorf("log says fault %q", fault)
				}
				if tt.fault == "429" && provider != relay && e.RetryAfter < time.Second {
					t.Errorf("Retry-After was read as %v", e.RetryAfter)
				}
			})
		}
	}
}

// waitAccepted waits until the provider has accepted a message.
func (s *Server) waitAccepted(ctx context.Context, provider string) {
	if provider == relay {
		_ = s.smtp.WaitAccepted(ctx, 1)
		return
	}
	_ = s.http.WaitAccepted(ctx, 1)
}

// A slow answer is an answer.
func TestSlow(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Script: []Rule{{Fault: "slow", Delay: Duration(time.Millisecond)}}})
	for i, provider := range Providers() {
		if got, e := send(t.Context(), t, s.adapter(t, provider), i, "a@example.org"); got != "accepted" {
			t.Errorf("%s: %s, %v", provider, got, e)
		}
	}
}

// F15's shape for a user's own test: two tries fail, the third is accepted.
func TestRecipientTries(t *testing.T) {
	t.Parallel()
	var l log
	s := start(t, Options{Log: &l})
	p, other := s.adapter(t, "sendgrid"), s.adapter(t, relay)
	to := "jane+429+2@shop.fake.test"
	for n, want := range []string{"deferred", "deferred", "accepted"} {
		if got, e := send(t.Context(), t, p, n, to); got != want {
			t.Errorf("try %d: %s, want %s: %v", n+1, got, want, e)
		}
	}
	// The count is the address', whichever provider it is tried with.
	if got, e := send(t.Context(), t, other, 9, to); got != "accepted" {
		t.Errorf("another provider: %s, %v", got, e)
	}
	if status, _ := s.call(t, "POST", "/fake/reset", ""); status != http.StatusNoContent {
		t.Errorf("reset: %d", status)
	}
	if got, _ := send(t.Context(), t, p, 10, "ok@example.org", to); got != "deferred" {
		t.Errorf("after a reset: %s, want deferred", got)
	}
	if n := len(s.accepted()); n != 0 {
		t.Errorf("%d accepted after a reset", n)
	}
}

// What is not at the domain asks for nothing.
func TestRecipientWords(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"timeout@fake.test":          "timeout",
		"Timeout@FAKE.test":          "timeout",
		"jane+lost@a.b.fake.test":    "lost",
		"503@fake.test":              "503",
		"503-accepted@fake.test":     "503-accepted",
		"timeout@example.org":        "",
		"timeout@notfake.test":       "",
		"200@fake.test":              "",
		"6000@fake.test":             "",
		"jane@fake.test":             "",
		"jane+reset+0@fake.test":     "",
		"jane+reset+soon@fake.test":  "reset",
		"jane.timeout@fake.test":     "",
		"+400@fake.test":             "400",
		"timeout@fake.test.evil.org": "",
	} {
		r := &recipients{domain: DefaultDomain, tries: map[string]int{}}
		if f, ok := r.fault([]string{address}); f.name != want || ok != (want != "") {
			t.Errorf("%s: %q, want %q", address, f.name, want)
		}
	}
}

// Who asks the services what became of a message gets an answer here too.
func TestSearch(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	for i, provider := range Providers() {
		p := s.adapter(t, provider)
		finder, ok := p.(providers.Finder)
		if !ok {
			continue
		}
		since := time.Now()
		if got, _ := send(t.Context(), t, p, i, "lost@fake.test"); got != "in_doubt" {
			t.Errorf("%s: %s, want in doubt", provider, got)
		}
		if receipt, found, err := finder.Find(t.Context(), providertest.Request(i).Key, since); found != providers.FoundAccepted {
			t.Errorf("%s: %+v, %d, %v, want the message", provider, receipt, found, err)
		}
	}
}

// Another key or address, and the real replay of a provider with keys: the log
// says what is true.
func TestReplayIsLogged(t *testing.T) {
	t.Parallel()
	var l log
	s := start(t, Options{Log: &l})
	p := s.adapter(t, "resend")
	to := "lost+1@fake.test"
	if got, _ := send(t.Context(), t, p, 1, to); got != "in_doubt" {
		t.Errorf("first: %s", got)
	}
	if got, e := send(t.Context(), t, p, 1, to); got != "accepted" {
		t.Errorf("replay: %s, %v", got, e)
	}
	lines := l.requests(t)
	if len(lines) != 2 || lines[0].Outcome != Accepted || lines[1].Outcome != Replayed || lines[0].ID != lines[1].ID {
		t.Errorf("log %+v", lines)
	}
	if lines[0].Reference != providertest.Request(1).Key {
		t.Errorf("reference %q", lines[0].Reference)
	}
}
