package fakeesp

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

// Options say what the fake does.
type Options struct {
	// HTTPAddr and SMTPAddr are what it listens on.
	HTTPAddr string
	SMTPAddr string
	// URL is how others reach HTTPAddr, by default http:// and the address.
	URL string
	// Domain is where addresses say what happens to mail for them, by default
	// fake.test.
	Domain string
	// Script is in force from the start.
	Script []Rule
	// Log gets one line of JSON per request; nil means none.
	Log io.Writer

	// WebhookURL is the base URL that webhooks go to, each to
	// /hooks/<provider> below it. Without it there are none.
	WebhookURL string
	// WebhookCopies is how often each event is reported, by default once.
	WebhookCopies int
	// WebhookShuffle mixes the order of events.
	WebhookShuffle bool

	// now is the clock of the script, postWait the wait before a webhook is
	// posted again.
	now      func() time.Time
	postWait time.Duration
}

// DefaultDomain is the default of [Options].Domain.
const DefaultDomain = "fake.test"

// Server is a running fake.
type Server struct {
	options    Options
	http       *providertest.HTTP
	smtp       *providertest.SMTP
	recipients *recipients
	script     *script
	journal    *journal
	poster     *poster
	hooks      map[string]providertest.Webhooks
	hooksEnv   []string
}

// Start starts a fake. It runs until [Server.Close].
func Start(o Options) (*Server, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		options:    o,
		recipients: &recipients{domain: o.Domain, tries: map[string]int{}},
		script:     &script{now: o.now},
		journal:    newJournal(o.Log),
	}
	s.script.set(o.Script)
	var err error
	if s.http, err = providertest.StartHTTP(o.HTTPAddr, dialects()...); err != nil {
		return nil, fmt.Errorf("HTTP: %w", err)
	}
	if s.smtp, err = providertest.StartSMTP(o.SMTPAddr, providertest.SMTPOptions{}); err != nil {
		s.http.Close()
		return nil, fmt.Errorf("SMTP: %w", err)
	}
	if err := s.connect(); err != nil {
		s.http.Close()
		s.smtp.Close()
		return nil, err
	}
	return s, nil
}

func (o *Options) complete() error {
	if o.Domain == "" {
		o.Domain = DefaultDomain
	}
	o.Domain = strings.ToLower(o.Domain)
	o.URL = strings.TrimRight(o.URL, "/")
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.now == nil {
		o.now = time.Now
	}
	if o.postWait == 0 {
		o.postWait = postWait
	}
	o.WebhookCopies = max(o.WebhookCopies, 1)
	if o.WebhookURL == "" {
		return nil
	}
	return checkBase(o.WebhookURL)
}

// connect puts the parts together.
func (s *Server) connect() (err error) {
	if s.options.WebhookURL != "" {
		if s.hooks, s.hooksEnv, err = hooks(s.URL()); err != nil {
			return err
		}
		s.poster = &poster{
			base: s.options.WebhookURL, copies: s.options.WebhookCopies, shuffle: s.options.WebhookShuffle,
			hooks: s.hooks, recipients: s.recipients, journal: s.journal, confirmURL: s.URL() + confirmPath,
			wait: s.options.postWait,
		}
		s.poster.start()
		s.http.OnAccept(s.poster.accepted)
	}
	s.http.OnEnd(s.journal.request)
	s.smtp.OnEnd(s.journal.request)
	s.http.Respond(s.respond)
	s.smtp.Respond(s.respondSMTP)
	s.http.Handle("/{$}", s.pages())
	s.http.Handle("/fake/", s.pages())
	s.http.Handle(certificatePath, s.pages()) // where the hook of SES looks for one
	return nil
}

// Close stops the fake and breaks its connections.
func (s *Server) Close() {
	s.http.Close()
	s.smtp.Close()
	if s.poster != nil {
		s.poster.close()
	}
}

// URL is where the page is, and the base URL of every service.
func (s *Server) URL() string {
	if s.options.URL != "" {
		return s.options.URL
	}
	return s.http.URL()
}

// SMTPURL is what SMTP_URL is set to.
func (s *Server) SMTPURL() string {
	host, port, err := net.SplitHostPort(s.smtp.Addr())
	if err != nil {
		return s.smtp.URL()
	}
	if public, err := url.Parse(s.options.URL); err == nil && public.Hostname() != "" {
		host = public.Hostname()
	}
	return "smtp://" + net.JoinHostPort(host, port) + "?tls=none"
}

// Environment returns the variables that point outboxd at the fake, one
// NAME=value each.
func (s *Server) Environment() []string { return environment(s.URL(), s.SMTPURL()) }

// WebhookEnvironment returns the variables that verify the fake's webhooks, one
// NAME=value each. They are new in every run, and there are none without
// [Options].WebhookURL.
func (s *Server) WebhookEnvironment() []string { return s.hooksEnv }

// fault decides what goes wrong with a hand-over.
func (s *Server) fault(provider string, to []string) (fault, bool) {
	scripted, ok := s.script.fault(provider) // counts in any case
	if f, asked := s.recipients.fault(to); asked {
		return f, true
	}
	return scripted, ok
}

func (s *Server) respond(r providertest.Seen) providertest.Reaction {
	if r.Provider == "" {
		return providertest.Accept() // which is a 404
	}
	if f, ok := s.fault(r.Provider, r.To); ok {
		return f.http(dialectOf(r.Provider).Refuse)
	}
	return providertest.Accept()
}

func (s *Server) respondSMTP(e providertest.SMTPEvent) providertest.Reaction {
	if e.Stage != providertest.AtDot {
		return providertest.Reaction{}
	}
	if f, ok := s.fault(relay, e.To); ok {
		return f.smtp()
	}
	return providertest.Accept()
}

// reset makes the fake forget what it has seen. The script stays; its clock and
// its counts begin anew.
func (s *Server) reset() {
	s.http.Forget()
	s.smtp.Forget()
	s.recipients.forget()
	s.journal.forget()
	s.script.set(s.script.current())
}
