package inbox

import (
	"io"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

const (
	// maxMessageBytes is what the largest providers accept.
	maxMessageBytes = 40 << 20
	idleTimeout     = 5 * time.Minute
)

// newServer is the SMTP side: every sender and every password will do.
func newServer(store *store) *smtp.Server {
	s := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) {
		return &session{store: store}, nil
	}))
	s.Domain = "inbox.localhost"
	s.MaxMessageBytes = maxMessageBytes
	s.AllowInsecureAuth = true // there is no TLS, and no secret to protect
	s.EnableSMTPUTF8 = true
	s.EnableBINARYMIME = true
	s.ReadTimeout = idleTimeout
	s.WriteTimeout = idleTimeout
	return s
}

// session is one SMTP connection.
type session struct {
	store    *store
	envelope envelope
}

// AuthMechanisms offers the mechanism that every client has.
func (s *session) AuthMechanisms() []string { return []string{sasl.Plain} }

// Auth accepts any name and password.
func (s *session) Auth(mech string) (sasl.Server, error) {
	if mech != sasl.Plain {
		return nil, smtp.ErrAuthUnknownMechanism
	}
	return sasl.NewPlainServer(func(_, _, _ string) error { return nil }), nil
}

// Mail begins a message.
func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	s.envelope = envelope{From: from}
	return nil
}

// Rcpt adds a recipient.
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.envelope.To = append(s.envelope.To, to)
	return nil
}

// Data stores the message; its return is the reply to the sender.
func (s *session) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := s.store.add(s.envelope, raw); err != nil {
		return &smtp.SMTPError{
			Code:         451,
			EnhancedCode: smtp.EnhancedCode{4, 3, 0},
			Message:      "The message could not be stored, try again",
		}
	}
	return nil
}

// Reset forgets a message that was begun.
func (s *session) Reset() { s.envelope = envelope{} }

// Logout has nothing to end.
func (s *session) Logout() error { return nil }
