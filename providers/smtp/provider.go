// Package smtp hands messages over to an SMTP relay (RFC 5321, RFC 6409).
//
// SMTP knows no keys and has no search, so the time between the final dot and
// the knowledge of the reply is where doubt comes from. The adapter keeps it
// as short as it can be: everything up to the 354 happens in
// [Provider.Prepare], and after the reply nothing is waited for.
//
// The context of a send bounds all of it, the wait for the reply to the final
// dot too. A caller adds Capabilities().FinalTimeout to the time it allows.
package smtp

import (
	"bytes"
	"context"
	"encoding/base64"
	"unicode"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/imf"
)

// Name is the provider's name.
const Name = "smtp"

// Provider hands messages over to one relay, over a connection of its own for
// each message.
type Provider struct {
	config Config
}

var (
	_ providers.Provider = (*Provider)(nil)
	_ providers.Preparer = (*Provider)(nil)
)

// New returns a provider for the relay that c describes.
func New(c Config) (*Provider, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Provider{config: c}, nil
}

// Name implements [providers.Provider].
func (p *Provider) Name() string { return Name }

// Capabilities implements [providers.Provider]. Size and addresses beyond
// ASCII depend on the relay's announcement and are checked against it in
// Prepare.
func (p *Provider) Capabilities() providers.Capabilities {
	return providers.Capabilities{
		FinalTimeout:  p.config.FinalTimeout,
		UTF8LocalPart: true,
	}
}

// Render implements [providers.Provider]: a message in Internet Message
// Format, whose Message-ID has the attempt's key.
func (p *Provider) Render(r providers.Request) ([]byte, error) {
	return imf.Render(r)
}

// Prepare implements [providers.Preparer].
func (p *Provider) Prepare(ctx context.Context, s providers.Sending) (providers.Conversation, error) {
	conversation, err := p.prepare(ctx, s)
	if err != nil {
		return nil, p.config.redact(err)
	}
	return conversation, nil
}

// Send implements [providers.Provider].
func (p *Provider) Send(ctx context.Context, s providers.Sending) (providers.Receipt, error) {
	conversation, err := p.Prepare(ctx, s)
	if err != nil {
		return providers.Receipt{}, err
	}
	return conversation.Send(ctx)
}

// envelope is what the relay is told before the content.
type envelope struct {
	from string
	to   []string
	size int
	utf8 bool
	// eightBit says that the content has bytes beyond ASCII.
	eightBit bool
}

func newEnvelope(s providers.Sending) envelope {
	e := envelope{
		from: s.Message.From.Email,
		size: len(s.Payload),
		utf8: imf.NeedsUTF8(s.Message),

		eightBit: !isASCII(s.Payload),
	}
	for _, a := range s.Message.Recipients() {
		e.to = append(e.to, a.Email)
	}
	return e
}

func (p *Provider) prepare(ctx context.Context, s providers.Sending) (*conversation, error) {
	// The envelope goes on command lines; Render's check does not cover a
	// payload that was rendered elsewhere.
	if err := providers.Check(s.Message); err != nil {
		return nil, err
	}
	session, release, err := open(ctx, p.config)
	if err != nil {
		return nil, err
	}
	data, err := session.envelope(ctx, newEnvelope(s))
	if err != nil {
		session.wire.abort()
		return nil, err
	}
	if !release() {
		session.wire.abort()
		return nil, failed(ctx, stageData, ctx.Err())
	}
	return &conversation{session: session, data: data, sending: s, config: p.config}, nil
}

func isASCII(b []byte) bool {
	return bytes.IndexFunc(b, func(r rune) bool { return r > unicode.MaxASCII }) < 0
}

func encode(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
