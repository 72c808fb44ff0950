package providers

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Hook is implemented by providers that report what became of messages later,
// by requests of their own to an address of ours.
type Hook interface {
	// ParseEvents verifies a request and returns what it reports, in the order
	// of the request; there may be nothing in it that concerns a message. An
	// error is [ErrUnverified] or [ErrHookUnavailable], or says that the request
	// is from the provider and cannot be understood; then nothing of it counts.
	// No error quotes a secret or the request.
	//
	// body is the raw body, which is what is signed. Requests that are signed
	// for a time more than five minutes from now are refused. ctx bounds what
	// has to be fetched to verify, such as a certificate.
	ParseEvents(ctx context.Context, h http.Header, body []byte, now time.Time) ([]Event, error)
}

// ErrUnverified means that a request is not proven to be from the provider: a
// signature is missing or wrong, or too old.
var ErrUnverified = errors.New("the request is not proven to be from the provider")

// ErrHookUnavailable means that nothing is known about a request yet, because
// what verifies or answers it cannot be fetched. The provider should post it
// again, which it does after a 5xx and as a rule not after a 4xx.
var ErrHookUnavailable = errors.New("what verifies or answers the request cannot be fetched now")

// HookWindow is how far the time that a request is signed for may be from now.
const HookWindow = 5 * time.Minute

// Event is what a provider reports about one message, and as a rule about one
// of its recipients.
type Event struct {
	Type EventType

	// Reference is the attempt's key, where the event carries it.
	Reference string
	// ProviderMessageID is the provider's own name for the message, as in the
	// [Receipt], where the event carries it.
	ProviderMessageID string

	// Recipient is the address that the event is about. When it is empty, the
	// event is about the message as a whole, or about one of several recipients
	// and the provider does not say which.
	Recipient string
	// WholeMessage says that the event is about the message and not about one of
	// its recipients, of whom there may be more than Recipient.
	WholeMessage bool
	// OccurredAt is when it happened by the provider's clock.
	OccurredAt time.Time
	// Permanent says of a bounce that the address will never take mail.
	Permanent bool
	// Detail is the provider's text: a reply of the recipient's server, a
	// category, the link of a click. It may quote addresses.
	Detail string
}

// EventType is a kind of event, the same for all providers.
type EventType string

// The types. Providers say more; what fits none of these is left out.
const (
	// EventAccepted: the provider has the message. It is evidence for an
	// attempt in doubt, as all that follow are.
	EventAccepted EventType = "accepted"
	// EventDelayed: the recipient's server does not take it yet.
	EventDelayed EventType = "delivery_delayed"
	// EventDelivered: the recipient's server took it.
	EventDelivered EventType = "delivered"
	// EventBounced: the recipient's server refused it for good, or the provider
	// gave up, or did not try because of its own suppression list.
	EventBounced EventType = "bounced"
	// EventComplained: the recipient called it spam.
	EventComplained EventType = "complained"
	// EventUnsubscribed: the recipient wants no more.
	EventUnsubscribed EventType = "unsubscribed"
	// EventOpened and EventClicked: the recipient, or a program, did.
	EventOpened  EventType = "opened"
	EventClicked EventType = "clicked"
)
