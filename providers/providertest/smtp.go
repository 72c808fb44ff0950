package providertest

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Stage is a point of an SMTP conversation where the provider can react.
type Stage string

// The stages, in the order of a conversation.
const (
	AtGreeting Stage = "greeting"
	AtEHLO     Stage = "EHLO"
	AtSTARTTLS Stage = "STARTTLS"
	AtAUTH     Stage = "AUTH"
	AtMAIL     Stage = "MAIL"
	AtRCPT     Stage = "RCPT"
	AtDATA     Stage = "DATA"
	// AtBody is after the 354, in the middle of the content.
	AtBody Stage = "body"
	// AtDot is after the whole message: accepting is up to the reaction.
	AtDot  Stage = "dot"
	AtQUIT Stage = "QUIT"
)

// SMTPEvent is what the provider is about to react to.
type SMTPEvent struct {
	Stage Stage
	// Session counts connections from 1.
	Session int
	// Line is the command as it came.
	Line string
	// Recipient is the index of the recipient at RCPT.
	Recipient int
	// To are the recipients so far, that of the command itself included.
	To []string
	// Encrypted says that the conversation is over TLS.
	Encrypted bool
	// Reference is the key in the Message-ID, at AtDot.
	Reference string
}

// SMTPOptions describes a relay.
type SMTPOptions struct {
	// Extensions are announced after EHLO; nil means 8BITMIME, SMTPUTF8,
	// and SIZE with 100 MB. AUTH and STARTTLS are added by themselves.
	Extensions []string
	// Username and Password are what AUTH asks for; without Username there is
	// no AUTH.
	Username, Password string
	// Mechanisms are the mechanisms of AUTH, by default PLAIN and LOGIN.
	Mechanisms string
	// TLS offers STARTTLS, or expects TLS at once with Implicit.
	TLS      *tls.Config
	Implicit bool
}

// SMTP is a programmable relay. It is written on the bare protocol, so that it
// shares no code, and no mistake, with the client under test.
type SMTP struct {
	*record
	options  SMTPOptions
	listener net.Listener
	life     *life

	mu       sync.Mutex
	sessions int
	lines    []string
	respond  func(SMTPEvent) Reaction
}

// NewSMTP starts a relay on a free port and closes it when the test ends.
func NewSMTP(t testing.TB, o SMTPOptions) *SMTP {
	t.Helper()
	p, err := StartSMTP("127.0.0.1:0", o)
	if err != nil {
		t.Fatalf("start relay: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}

// StartSMTP starts a relay that listens on addr.
func StartSMTP(addr string, o SMTPOptions) (*SMTP, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	if o.Extensions == nil {
		o.Extensions = []string{"8BITMIME", "SMTPUTF8", "SIZE 104857600"}
	}
	if o.Mechanisms == "" {
		o.Mechanisms = "PLAIN LOGIN"
	}
	p := &SMTP{record: newRecord(), options: o, listener: smallBuffers{l}, life: newLife()}
	p.life.run(p.serve)
	return p, nil
}

// Close stops the relay and breaks its connections.
func (p *SMTP) Close() {
	p.life.end(func() { _ = p.listener.Close() })
}

// Addr returns the host and port that the relay listens on.
func (p *SMTP) Addr() string { return p.listener.Addr().String() }

// URL returns the relay as an smtp:// URL with its credentials.
func (p *SMTP) URL() string {
	u := url.URL{Scheme: "smtp", Host: p.Addr(), RawQuery: "tls=none"}
	if p.options.TLS != nil {
		u.RawQuery = "tls=required"
	}
	if p.options.Implicit {
		u.RawQuery = "tls=implicit"
	}
	if p.options.Username != "" {
		u.User = url.UserPassword(p.options.Username, p.options.Password)
	}
	return u.String()
}

// Respond sets what happens at each stage. The zero [Reaction] is the ordinary
// course. It is called on one goroutine per connection. A reply ends the
// command: Reply(421, "...").Then(Reset()) also ends the connection. At AtBody,
// Reset breaks the connection in the middle of the content and Hang stops
// reading it.
func (p *SMTP) Respond(f func(SMTPEvent) Reaction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.respond = f
}

// Lines returns the commands of all conversations, without content and
// without what follows AUTH.
func (p *SMTP) Lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.lines...)
}

// ask returns the reaction to e.
func (p *SMTP) ask(e SMTPEvent) Reaction {
	p.mu.Lock()
	respond := p.respond
	p.mu.Unlock()
	if respond == nil {
		return Reaction{}
	}
	return respond(e)
}

func (p *SMTP) noteLine(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, line)
}

func (p *SMTP) serve() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.mu.Lock()
		p.sessions++
		number := p.sessions
		p.mu.Unlock()
		p.life.run(func() {
			defer p.life.closeWith(conn)()
			defer conn.Close()
			newSMTPSession(p, conn, number).run()
		})
	}
}

// relayName is the provider's name in what a relay records.
const relayName = "smtp"

func (p *SMTP) take(s *smtpSession, content []byte) Accepted {
	header := headerOf(content)
	return p.accept(Accepted{
		Provider: relayName, Reference: header.key, From: s.from, To: s.to, Subject: header.subject, Body: content,
	}, func(n int) string { return fmt.Sprintf("%s-%d", relayName, n) })
}

// Forget drops what was accepted. Numbers and ids go on.
func (p *SMTP) Forget() { p.forget() }
