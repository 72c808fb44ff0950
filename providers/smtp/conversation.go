package smtp

import (
	"context"
	"errors"
	"fmt"

	gosmtp "github.com/emersion/go-smtp"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/imf"
)

// conversation is a session after the 354: only the content is missing.
type conversation struct {
	session *session
	data    *gosmtp.DataCommand
	sending providers.Sending
	config  Config
}

// Close implements [providers.Conversation].
func (c *conversation) Close() error {
	c.session.wire.abort()
	return nil
}

// Send implements [providers.Conversation].
func (c *conversation) Send(ctx context.Context) (providers.Receipt, error) {
	// Any way out of here that is not an orderly end resets the connection.
	defer c.session.wire.abort()
	release := c.session.wire.bind(ctx)
	defer release()

	if err := c.content(ctx); err != nil {
		return providers.Receipt{}, err
	}
	status, err := c.dot(ctx)
	if err != nil {
		return providers.Receipt{}, c.config.redact(err)
	}
	// Accepted. That the goodbye fails changes nothing: wneessen/go-mail#463.
	c.session.quit()
	return providers.Receipt{ProviderMessageID: imf.MessageID(c.sending.Request), Status: status}, nil
}

// content writes the message and then asks whether to go on. The client's
// buffer keeps the last part of it back, at most 4 KiB, which leaves together
// with the final dot.
func (c *conversation) content(ctx context.Context) error {
	c.session.wire.content.Store(true)
	if _, err := c.data.Write(c.sending.Payload); err != nil {
		return failed(ctx, stageContent, err)
	}
	if err := c.sending.Confirmed(); err != nil {
		return &providers.Error{Outcome: providers.Deferred, Code: providers.CodeNotConfirmed, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return failed(ctx, stageContent, err)
	}
	return nil
}

// dot ends the content and waits for the reply, whose code it returns.
func (c *conversation) dot(ctx context.Context) (int, error) {
	_, err := c.data.CloseWithResponse()
	reply, replied := errors.AsType[*gosmtp.SMTPError](err)
	switch {
	case err == nil:
		return 250, nil
	case replied && reply.Code >= 200 && reply.Code <= 299:
		// The client expects 250 exactly; any 2yz is a positive completion
		// reply (RFC 5321, 4.2.1).
		return reply.Code, nil
	case replied:
		return 0, refused(stageDot, reply)
	case c.session.wire.writeFailed.Load():
		// The dot is the end of the last write, so it is not on its way.
		return 0, failed(ctx, stageContent, err)
	}
	e := &providers.Error{Code: providers.CodeNoReply, Err: fmt.Errorf("%s: %w", stageDot.name, ioError(err))}
	if isTimeout(err) || ctx.Err() != nil {
		e.Code = providers.CodeTimeout
	}
	return 0, e
}

// isTimeout reports whether err says that a deadline has passed.
func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}
