package providers

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// Outcome says what is known about a call that did not return a receipt.
type Outcome int

const (
	// InDoubt means that the provider may have accepted the message and that
	// nobody knows. It is the zero value: whatever is not proven definite is
	// in doubt.
	InDoubt Outcome = iota
	// Rejected means definitely not accepted, and the same message will not
	// be accepted later.
	Rejected
	// Deferred means definitely not accepted, and worth another attempt later
	// or elsewhere.
	Deferred
	// Misconfigured means definitely not accepted because of our account or
	// key: the message is fine, the provider is out of order until an
	// operator mends it.
	Misconfigured
)

// String returns the outcome's name as it appears in logs and metrics.
func (o Outcome) String() string {
	switch o {
	case InDoubt:
		return "in_doubt"
	case Rejected:
		return "rejected"
	case Deferred:
		return "deferred"
	case Misconfigured:
		return "misconfigured"
	}
	return "outcome(" + strconv.Itoa(int(o)) + ")"
}

// Error is a hand-over that was not acknowledged.
type Error struct {
	Outcome Outcome
	// Status is the HTTP status or SMTP reply code; zero when there was none.
	Status int
	// Code is the provider's own name for the failure, or one of ours for
	// failures below the protocol, such as "not_connected".
	Code string
	// Detail is the provider's text. It may quote addresses: the outbox
	// bounds and scrubs it before it is stored or logged.
	Detail string
	// RetryAfter is how long the provider asked to be left alone; it holds
	// for the whole provider, not only for this message.
	RetryAfter time.Duration
	// Err is the cause, if any.
	Err error
}

// Error joins what is known, without the credentials or addresses that only
// Detail may quote.
func (e *Error) Error() string {
	parts := []string{e.Outcome.String()}
	if e.Status != 0 {
		parts = append(parts, strconv.Itoa(e.Status))
	}
	if e.Code != "" {
		parts = append(parts, e.Code)
	}
	s := strings.Join(parts, " ")
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// AsError returns err as an *Error. An error of any other type says nothing
// about what the provider did, so it becomes one that is in doubt.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Err: err}
}
