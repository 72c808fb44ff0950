package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	gosmtp "github.com/emersion/go-smtp"

	"github.com/outboxd/outboxd/providers"
)

// stage is a step of the conversation before the content, for errors.
type stage struct {
	name string
	// ours is set where a permanent refusal is about us and not about the
	// message: the relay refuses the connection or the account.
	ours bool
	// crowded is set where 552 means "too many recipients".
	crowded bool
	// code is for failures without a reply.
	code string
}

var (
	stageConnect = stage{name: "dial", ours: true, code: providers.CodeNotConnected}
	stageTLS     = stage{name: "STARTTLS", ours: true, code: providers.CodeNotConnected}
	stageHello   = stage{name: "EHLO", ours: true, code: providers.CodeNotConnected}
	stageAuth    = stage{name: "AUTH", ours: true, code: providers.CodeNotWritten}
	stageMail    = stage{name: "MAIL", code: providers.CodeNotWritten}
	stageData    = stage{name: "DATA", code: providers.CodeNotWritten}
	stageContent = stage{name: "content", code: providers.CodeNotWritten}
	stageDot     = stage{name: "final dot"}
)

func stageRecipient(i, of int) stage {
	return stage{
		name: fmt.Sprintf("RCPT %d of %d", i+1, of), crowded: true,
		code: providers.CodeNotWritten,
	}
}

// failed classifies an error from before the final dot. Nothing can have been
// accepted, whatever it is.
func failed(ctx context.Context, at stage, err error) *providers.Error {
	if reply, ok := errors.AsType[*gosmtp.SMTPError](err); ok {
		return refused(at, reply)
	}
	e := &providers.Error{
		Outcome: providers.Deferred, Code: at.code,
		Err: fmt.Errorf("%s: %w", at.name, ioError(err)),
	}
	if gone := ctx.Err(); gone != nil {
		e.Err = fmt.Errorf("%s: %w", at.name, gone)
	}
	return e
}

// refused classifies a negative reply. Its text goes to Detail only, because
// servers quote addresses in it.
func refused(at stage, reply *gosmtp.SMTPError) *providers.Error {
	return &providers.Error{
		Outcome: replyOutcome(at, reply.Code),
		Status:  reply.Code,
		Code:    enhanced(reply),
		Detail:  reply.Message,
		Err:     fmt.Errorf("%s refused", at.name),
	}
}

func replyOutcome(at stage, code int) providers.Outcome {
	switch {
	case code == 530, code == 535:
		// RFC 4954, 6: authentication required; credentials invalid.
		return providers.Misconfigured
	case code == 552 && at.crowded:
		// RFC 5321, 4.5.3.1.10: at RCPT it means "too many recipients" and is
		// to be read as 452.
		return providers.Deferred
	case code >= 500 && code <= 599 && at.ours:
		// A refused connection (554 in the greeting: RFC 5321, 3.1) or account
		// says nothing about the message. One blocked address must not fail
		// the whole queue.
		return providers.Misconfigured
	case code >= 500 && code <= 599:
		return providers.Rejected
	case at == stageDot && (code < 400 || code > 499):
		return providers.InDoubt // no known kind of reply
	}
	return providers.Deferred
}

// enhanced returns the enhanced status code of RFC 3463, if there is one.
func enhanced(reply *gosmtp.SMTPError) string {
	if reply.EnhancedCode[0] <= 0 {
		return ""
	}
	c := reply.EnhancedCode
	return fmt.Sprintf("%d.%d.%d", c[0], c[1], c[2])
}

// ioError keeps of err what is safe to log. Errors about the protocol quote
// lines of the server, which may quote addresses or credentials.
func ioError(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op
	}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return cert
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return io.ErrUnexpectedEOF
	}
	return errors.New("connection broken, TLS not to be had or reply unreadable")
}

// redact takes the credentials out of e's text: a server that does not know
// AUTH may quote the line it did not understand.
func (c Config) redact(err error) error {
	e, ok := errors.AsType[*providers.Error](err)
	if !ok || c.Password == "" {
		return err
	}
	e.Detail = providers.Redact(e.Detail, c.secrets()...)
	return err
}

// secrets returns the password in the forms in which it goes over the wire.
func (c Config) secrets() []string {
	plain := strings.Join([]string{"", c.Username, c.Password}, "\x00")
	return []string{c.Password, encode(c.Password), encode(plain)}
}
