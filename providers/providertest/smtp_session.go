package providertest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/mail"
	"slices"
	"strings"
	"time"
)

// errEnd ends a conversation.
var errEnd = errors.New("conversation ended")

// smtpSession is one conversation.
type smtpSession struct {
	relay  *SMTP
	raw    net.Conn
	conn   net.Conn
	r      *bufio.Reader
	number int
	secure bool
	authed bool

	handover int // the number of the one that MAIL began
	from     string
	to       []string
	open     bool // between MAIL and the end of the content
}

func newSMTPSession(p *SMTP, conn net.Conn, number int) *smtpSession {
	return &smtpSession{relay: p, raw: conn, conn: conn, r: bufio.NewReader(conn), number: number}
}

func (s *smtpSession) run() {
	if s.relay.options.Implicit && !s.encrypt() {
		return
	}
	err := s.step(AtGreeting, "", func() error { return s.reply(220, "relay.test ESMTP") })
	for err == nil {
		var line string
		if line, err = s.readLine(); err == nil {
			err = s.command(line)
		}
	}
}

func (s *smtpSession) encrypt() bool {
	conn := tls.Server(s.raw, s.relay.options.TLS)
	if conn.Handshake() != nil {
		return false
	}
	s.conn, s.r, s.secure = conn, bufio.NewReader(conn), true
	return true
}

func (s *smtpSession) readLine() (string, error) {
	line, err := s.r.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

func (s *smtpSession) reply(code int, text string) error {
	_, err := fmt.Fprintf(s.conn, "%d %s\r\n", code, text)
	return err
}

// command dispatches one line.
func (s *smtpSession) command(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	verb = strings.ToUpper(verb)
	if verb == "AUTH" {
		s.relay.noteLine("AUTH")
	} else {
		s.relay.noteLine(line)
	}
	handlers := map[string]func() error{
		"EHLO":     func() error { return s.step(AtEHLO, line, s.ehlo) },
		"STARTTLS": func() error { return s.step(AtSTARTTLS, line, s.startTLS) },
		"AUTH":     func() error { return s.step(AtAUTH, line, func() error { return s.auth(rest) }) },
		"MAIL": func() error {
			s.handover = s.relay.began()
			return s.step(AtMAIL, line, func() error { return s.mail(rest) })
		},
		"RCPT": func() error { return s.step(AtRCPT, line, func() error { return s.rcpt(rest) }) },
		"DATA": func() error { return s.step(AtDATA, line, s.data) },
		"QUIT": func() error {
			return s.step(AtQUIT, line, func() error { _ = s.reply(221, "bye"); return errEnd })
		},
	}
	handle, ok := handlers[verb]
	if !ok {
		return s.reply(500, "command not known: "+line)
	}
	return handle()
}

// step carries out the reaction at a stage, or the ordinary course.
func (s *smtpSession) step(at Stage, line string, ordinary func() error) error {
	event := s.event(at, line)
	do := s.relay.ask(event)
	do.pause(s.relay.life.over())
	if !do.answer && do.end == keep {
		return ordinary()
	}
	s.ends(event.handover(), do)
	return s.carryOut(do)
}

func (s *smtpSession) event(at Stage, line string) SMTPEvent {
	e := SMTPEvent{Stage: at, Session: s.number, Line: line, Recipient: len(s.to), To: s.to, Encrypted: s.secure}
	switch at {
	case AtMAIL:
		e.To = nil // those of the message before
	case AtRCPT:
		e.To = append(slices.Clone(s.to), between(line))
	}
	return e
}

// handover begins the report on the conversation that e is an event of.
func (e SMTPEvent) handover() Handover {
	return Handover{At: time.Now(), Provider: relayName, Reference: e.Reference, To: e.To, Stage: e.Stage}
}

// ends reports the end of the hand-over that do brings. Before MAIL there is
// none.
func (s *smtpSession) ends(h Handover, do Reaction) {
	if s.handover == 0 {
		return
	}
	h.Number = s.handover
	s.relay.ends(h.because(do))
}

// carryOut answers and ends as do says.
func (s *smtpSession) carryOut(do Reaction) error {
	if do.answer {
		if err := s.say(do); err != nil {
			return err
		}
	}
	switch do.end {
	case reset:
		if !do.answer {
			hardClose(s.raw)
		}
		return errEnd // the answer is delivered, then the connection closed
	case hang:
		// Reads on without an answer until the client gives up.
		_, _ = io.Copy(io.Discard, s.r)
		return errEnd
	}
	return nil
}

func (s *smtpSession) say(do Reaction) error {
	if do.raw {
		_, err := io.WriteString(s.conn, do.body)
		return err
	}
	return s.reply(do.status, do.body)
}

func (s *smtpSession) ehlo() error {
	o := s.relay.options
	lines := append([]string{"relay.test"}, o.Extensions...)
	if o.TLS != nil && !s.secure {
		lines = append(lines, "STARTTLS")
	}
	if o.Username != "" {
		lines = append(lines, "AUTH "+o.Mechanisms)
	}
	var b strings.Builder
	for i, line := range lines {
		separator := "-"
		if i == len(lines)-1 {
			separator = " "
		}
		b.WriteString("250" + separator + line + "\r\n")
	}
	_, err := io.WriteString(s.conn, b.String())
	return err
}

func (s *smtpSession) startTLS() error {
	if s.relay.options.TLS == nil || s.secure {
		return s.reply(502, "5.5.1 not offered")
	}
	if err := s.reply(220, "go ahead"); err != nil {
		return err
	}
	if !s.encrypt() {
		return errEnd
	}
	return nil
}

// auth takes PLAIN (RFC 4616) and LOGIN.
func (s *smtpSession) auth(args string) error {
	mechanism, initial, _ := strings.Cut(args, " ")
	var user, password string
	switch strings.ToUpper(mechanism) {
	case "PLAIN":
		if initial == "" {
			initial = s.challenge("")
		}
		plain, _ := base64.StdEncoding.DecodeString(initial)
		parts := strings.Split(string(plain), "\x00")
		if len(parts) == 3 {
			user, password = parts[1], parts[2]
		}
	case "LOGIN":
		if initial == "" {
			initial = s.challenge("Username:")
		}
		user, password = decode(initial), decode(s.challenge("Password:"))
	default:
		return s.reply(504, "5.5.4 mechanism not known")
	}
	if user != s.relay.options.Username || password != s.relay.options.Password {
		return s.reply(535, "5.7.8 authentication credentials invalid")
	}
	s.authed = true
	return s.reply(235, "2.7.0 accepted")
}

func (s *smtpSession) challenge(prompt string) string {
	_ = s.reply(334, base64.StdEncoding.EncodeToString([]byte(prompt)))
	answer, _ := s.readLine()
	return answer
}

func decode(s string) string {
	b, _ := base64.StdEncoding.DecodeString(s)
	return string(b)
}

func (s *smtpSession) mail(args string) error {
	if s.relay.options.Username != "" && !s.authed {
		return s.reply(530, "5.7.0 authentication required")
	}
	if s.open {
		return s.reply(503, "5.5.1 nested MAIL command") // letsencrypt/boulder#4649
	}
	s.from, s.to, s.open = between(args), nil, true
	return s.reply(250, "2.1.0 ok")
}

func (s *smtpSession) rcpt(args string) error {
	s.to = append(s.to, between(args))
	return s.reply(250, "2.1.5 ok")
}

func between(args string) string {
	_, rest, _ := strings.Cut(args, "<")
	address, _, _ := strings.Cut(rest, ">")
	return address
}

// data reads the content. A reaction at AtBody takes effect after the first
// bytes of it.
func (s *smtpSession) data() error {
	if err := s.reply(354, "go ahead"); err != nil {
		return err
	}
	event := s.event(AtBody, "")
	if do := s.relay.ask(event); !do.ordinary() {
		_, _ = io.CopyN(io.Discard, s.r, 512)
		s.ends(event.handover(), do)
		if do.end == hang {
			<-s.relay.life.over() // without reading: the client's writes block
			return errEnd
		}
		do.pause(s.relay.life.over())
		return s.carryOut(do)
	}
	content, err := readContent(s.r)
	if err != nil {
		return err
	}
	return s.dot(content)
}

// dot reacts to a complete message.
func (s *smtpSession) dot(content []byte) error {
	s.open = false
	event := s.event(AtDot, "")
	event.Reference = headerOf(content).key
	do, h := s.relay.ask(event), event.handover()
	if do.accept || (!do.answer && do.end == keep) {
		h.Accepted, h.ID = true, s.relay.take(s, content).ID
		if !do.answer && do.end == keep {
			do = do.Then(Reply(250, "2.0.0 queued as "+h.ID))
		}
	}
	s.ends(h, do)
	do.pause(s.relay.life.over())
	return s.carryOut(do)
}

// readContent reads up to the final dot and takes the stuffed dots out:
// RFC 5321, 4.5.2. Line ends stay as they are; only CRLF ends a line.
func readContent(r *bufio.Reader) ([]byte, error) {
	var content []byte
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		atLineStart := len(content) == 0 || bytes.HasSuffix(content, []byte("\r\n"))
		if atLineStart && bytes.Equal(line, []byte(".\r\n")) {
			return content, nil
		}
		if atLineStart && line[0] == '.' {
			line = line[1:]
		}
		content = append(content, line...)
	}
}

// contentHeader is what is recorded of a message's header.
type contentHeader struct {
	// key stands before the @ of the Message-ID.
	key string
	// from is the address in From, without its name.
	from    string
	subject string
}

// headerOf reads the header of a message; what is not there is empty.
func headerOf(content []byte) contentHeader {
	m, err := mail.ReadMessage(bytes.NewReader(content))
	if err != nil {
		return contentHeader{}
	}
	h := contentHeader{subject: m.Header.Get("Subject"), from: bareAddress(m.Header.Get("From"))}
	h.key, _, _ = strings.Cut(strings.Trim(m.Header.Get("Message-Id"), "<> "), "@")
	if decoded, err := new(mime.WordDecoder).DecodeHeader(h.subject); err == nil {
		h.subject = decoded
	}
	return h
}
