package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/emersion/go-sasl"
	gosmtp "github.com/emersion/go-smtp"

	"github.com/outboxd/outboxd/providers"
)

// Time-outs of RFC 5321, 4.5.3.2; that of DATA's first reply is shorter.
const (
	dialTimeout    = 30 * time.Second
	commandTimeout = 5 * time.Minute
	dataTimeout    = 2 * time.Minute
)

// session is an authenticated connection to the relay that is ready for a
// message. A session carries one message today; nothing in it would keep it
// from carrying more.
type session struct {
	wire   *wire
	client *gosmtp.Client
}

// open dials, greets, encrypts and authenticates. The connection is bound to
// ctx; release ends that.
func open(ctx context.Context, c Config) (s *session, release func() bool, err error) {
	conn, err := c.Dial(ctx, "tcp", net.JoinHostPort(c.Host, c.Port))
	if err != nil {
		return nil, nil, failed(ctx, stageConnect, err)
	}
	s = &session{wire: &wire{Conn: conn}}
	release = s.wire.bind(ctx)
	if err := s.hello(ctx, c); err != nil {
		s.wire.abort()
		return nil, nil, err
	}
	if err := s.authenticate(ctx, c); err != nil {
		s.wire.abort()
		return nil, nil, err
	}
	return s, release, nil
}

// hello goes up to the reply to EHLO, over TLS if c says so.
func (s *session) hello(ctx context.Context, c Config) error {
	switch c.TLS {
	case TLSImplicit:
		secure := tls.Client(s.wire, c.tlsConfig())
		handshake, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		if err := secure.HandshakeContext(handshake); err != nil {
			return failed(ctx, stageTLS, err)
		}
		s.client = gosmtp.NewClient(secure)
	case TLSNone:
		s.client = gosmtp.NewClient(s.wire)
	default:
		client, err := gosmtp.NewClientStartTLS(s.wire, c.tlsConfig())
		if err != nil {
			return failed(ctx, stageTLS, err)
		}
		s.client = client
	}
	s.client.CommandTimeout = commandTimeout
	s.client.SubmissionTimeout = c.FinalTimeout
	// After STARTTLS this is the first exchange, which makes the handshake.
	if err := s.client.Hello(c.LocalName); err != nil {
		return failed(ctx, stageHello, err)
	}
	return nil
}

// errNoAuth says that the relay offers no mechanism that we speak.
var errNoAuth = errors.New("the relay offers neither AUTH PLAIN nor AUTH LOGIN")

func (s *session) authenticate(ctx context.Context, c Config) error {
	if c.Username == "" {
		return nil
	}
	var mechanism sasl.Client
	switch {
	case s.client.SupportsAuth(sasl.Plain):
		mechanism = sasl.NewPlainClient("", c.Username, c.Password)
	case s.client.SupportsAuth(sasl.Login):
		mechanism = sasl.NewLoginClient(c.Username, c.Password)
	default:
		return &providers.Error{Outcome: providers.Misconfigured, Code: "auth_not_offered", Err: errNoAuth}
	}
	if err := s.client.Auth(mechanism); err != nil {
		return failed(ctx, stageAuth, err)
	}
	return nil
}

// envelope goes from MAIL up to the 354 to DATA. All of it comes before the
// first byte of content: a late refusal of one recipient must not find a
// message that is half sent.
func (s *session) envelope(ctx context.Context, e envelope) (*gosmtp.DataCommand, error) {
	if err := s.check(e); err != nil {
		return nil, err
	}
	opts := &gosmtp.MailOptions{Size: int64(e.size), UTF8: e.utf8}
	if err := s.client.Mail(e.from, opts); err != nil {
		return nil, failed(ctx, stageMail, err)
	}
	for i, to := range e.to {
		if err := s.client.Rcpt(to, nil); err != nil {
			return nil, failed(ctx, stageRecipient(i, len(e.to)), err)
		}
	}
	s.client.CommandTimeout = dataTimeout
	data, err := s.client.Data()
	if err != nil {
		return nil, failed(ctx, stageData, err)
	}
	return data, nil
}

// check compares the message with what the relay announced.
func (s *session) check(e envelope) error {
	// RFC 1870, 5: a fixed maximum of zero means none.
	if limit, ok := s.client.MaxMessageSize(); ok && limit > 0 && e.size > limit {
		return providers.Refuse("too_large", "the message is larger than the relay takes")
	}
	if ok, _ := s.client.Extension("SMTPUTF8"); e.utf8 && !ok {
		return providers.Refuse("utf8_address", "an address is beyond ASCII and the relay does not offer SMTPUTF8")
	}
	// RFC 6152, 3: without the extension content has 7 bits. What is rendered
	// here has more only in an address's field.
	if ok, _ := s.client.Extension("8BITMIME"); e.eightBit && !ok {
		return providers.Refuse("eight_bit_content", "the message is beyond ASCII and the relay does not offer 8BITMIME")
	}
	return nil
}

// quit says goodbye without waiting for the answer: the message is accepted,
// and while the caller does not know it yet, a crash would make a doubt of it.
func (s *session) quit() {
	s.wire.deaf.Store(true)
	s.client.CommandTimeout = time.Second // for the write
	_ = s.client.Quit()
	_ = s.client.Close()
}
