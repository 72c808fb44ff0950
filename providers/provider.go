package providers

import (
	"context"
	"time"
)

// Provider hands messages over to one email service or relay. Implementations
// are safe for concurrent use.
type Provider interface {
	// Name is the provider's name in configuration, attempts and metrics:
	// lower case, constant.
	Name() string

	// Capabilities says what the provider can do and where its limits are.
	Capabilities() Capabilities

	// Render returns the exact bytes that Send hands over: a JSON body, or a
	// message in Internet Message Format. It is pure and deterministic. An
	// error means that this provider cannot carry the message, now or later;
	// it is an *[Error] with outcome [Rejected].
	Render(r Request) ([]byte, error)

	// Send hands the rendered bytes over, once: no retry, no redirect. A nil
	// error means that the provider accepted the message, also when its reply
	// could not be read beyond the status (the Receipt is then empty). Errors
	// are *[Error]; the outcome of any other error is [InDoubt].
	Send(ctx context.Context, s Sending) (Receipt, error)
}

// Preparer is implemented by providers whose protocol has a long preamble
// (dial, TLS, authentication, envelope). All of it happens in Prepare, before
// the attempt is recorded, so that a crash during the preamble is not a doubt.
type Preparer interface {
	// Prepare talks up to the point where only the content is missing. Its
	// errors are definite: nothing can have been accepted.
	Prepare(ctx context.Context, s Sending) (Conversation, error)
}

// Conversation is a prepared hand-over. Exactly one of Send or Close ends it;
// Close after Send is allowed and does nothing.
type Conversation interface {
	// Send hands the content over and waits for the reply, like
	// [Provider].Send.
	Send(ctx context.Context) (Receipt, error)
	// Close drops the connection without handing anything over.
	Close() error
}

// Finder is implemented by providers that can be asked what became of a
// message, by the key that it carried.
type Finder interface {
	// Find looks for the message of an attempt that was handed over at the
	// given time at the earliest, by a process that is gone. It answers
	// [FoundNotAccepted] only when the provider's search is known to be complete:
	// for most, a message that was just accepted cannot be found yet.
	Find(ctx context.Context, key string, since time.Time) (Receipt, Found, error)
}

// Found is what a search says.
type Found int

const (
	// FoundNothing proves nothing. It is the zero value.
	FoundNothing Found = iota
	// FoundAccepted means that the provider has the message.
	FoundAccepted
	// FoundNotAccepted means that the provider does not have the message, and
	// that it would be found if it had.
	FoundNotAccepted
)

// Capabilities describes a provider as data.
type Capabilities struct {
	// KeyWindow is how long the provider recognises a key that it has seen
	// and replays its first reply instead of accepting a second message. Zero
	// means that the provider honours no keys.
	KeyWindow time.Duration

	// FinalTimeout is how long the reply may take after the last byte, on top
	// of the caller's time-out for everything before it. Zero means that the
	// caller's time-out covers the reply too. SMTP needs 10 minutes here
	// (RFC 5321, 4.5.3.2.6).
	FinalTimeout time.Duration

	// MaxBytes bounds the rendered message; zero means no known bound.
	MaxBytes int

	// MaxRecipients bounds To, Cc and Bcc together; zero means no known bound.
	MaxRecipients int

	// UTF8LocalPart says that addresses such as jürgen@example.com are carried.
	UTF8LocalPart bool
}

// Request is one message on its way to one provider. Everything that Render
// may use is in it.
type Request struct {
	// Key identifies the attempt: a UUID in its 36 character form, the same
	// for every send of the attempt. Adapters pass it as the provider's
	// idempotency key where there is one, and as the reference that comes
	// back in the provider's events and searches.
	Key string

	// Date is when the attempt began, for the Date header.
	Date time.Time

	Message Message
}

// Sending is a rendered request with what Send needs at run time.
type Sending struct {
	Request

	// Payload is what Render returned for Request.
	Payload []byte

	// Confirm is called right before the last byte that could make the
	// provider accept. An error means that the caller no longer owns the
	// attempt or that its time is up: the adapter must then break the
	// connection so that nothing is accepted, and return an *[Error] with
	// outcome [Deferred] that wraps it. Confirm does not block. Nil means
	// that there is nothing to confirm.
	Confirm func() error
}

// Confirmed calls s.Confirm if there is one.
func (s Sending) Confirmed() error {
	if s.Confirm == nil {
		return nil
	}
	return s.Confirm()
}

// Receipt is what the provider said when it accepted.
type Receipt struct {
	// ProviderMessageID is the provider's own name for the message; empty
	// when the reply was unreadable or has none.
	ProviderMessageID string
	// Status is the HTTP status or SMTP reply code.
	Status int
}
