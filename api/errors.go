package api

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/outboxd/outboxd/internal/redact"
	"github.com/outboxd/outboxd/outbox"
)

// Error is the one shape of every error answer: the members that Resend's SDKs
// read, and those of RFC 9457.
type Error struct {
	StatusCode int    `json:"statusCode"`
	Name       string `json:"name"`
	Message    string `json:"message"`

	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	Errors    []outbox.FieldError `json:"errors,omitempty"`
	RequestID string              `json:"request_id"`

	retryAfter int // seconds; zero: no Retry-After
	cause      error
}

// Error is the text for the log.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Name + ": " + e.cause.Error()
	}
	return e.Name + ": " + e.Message
}

// Unwrap returns what led to the answer; clients do not see it.
func (e *Error) Unwrap() error { return e.cause }

// quotaRetryAfter is when it is worth to look whether emails have left, in seconds.
const quotaRetryAfter = 5

const (
	internalMessage    = "Something went wrong on our side. The request can be repeated with the same idempotency key."
	unavailableMessage = "The service cannot take the request right now. Retry with the same idempotency key."
)

var (
	errNotFound             = problem(http.StatusNotFound, "not_found", "Email not found.")
	errWebhookNotFound      = problem(http.StatusNotFound, "not_found", "Webhook not found.")
	errWebhookEventNotFound = problem(http.StatusNotFound, "not_found", "Webhook event not found.")
)

func problem(status int, name, message string) *Error {
	return &Error{
		StatusCode: status, Name: name, Message: message,
		Type: "urn:outboxd:error:" + name, Title: http.StatusText(status), Status: status, Detail: message,
	}
}

func unavailable(cause error) *Error {
	e := problem(http.StatusServiceUnavailable, "service_unavailable", unavailableMessage)
	e.retryAfter, e.cause = 1, cause
	return e
}

func invalid(fields ...outbox.FieldError) *Error {
	e := problem(http.StatusUnprocessableEntity, "validation_error",
		(&outbox.ValidationError{Fields: fields}).Error())
	e.Errors = fields
	return e
}

// errorOf is the table from errors to answers.
func errorOf(err error) *Error {
	answer, isAnswer := errors.AsType[*Error](err)
	validation, isInvalid := errors.AsType[*outbox.ValidationError](err)
	tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case isAnswer:
		copied := *answer
		return &copied
	case isInvalid:
		return invalid(validation.Fields...)
	case isTooLarge:
		return problem(http.StatusRequestEntityTooLarge, "payload_too_large",
			"The request body is larger than "+strconv.FormatInt(tooLarge.Limit, 10)+" bytes.")
	case errors.Is(err, outbox.ErrNotFound):
		return problem(errNotFound.StatusCode, errNotFound.Name, errNotFound.Message)
	case errors.Is(err, outbox.ErrNotSuppressed):
		return problem(http.StatusNotFound, "not_found", "This address is not suppressed.")
	case errors.Is(err, outbox.ErrWebhookNotFound):
		return problem(errWebhookNotFound.StatusCode, errWebhookNotFound.Name, errWebhookNotFound.Message)
	case errors.Is(err, outbox.ErrWebhookMessageNotFound):
		return problem(errWebhookEventNotFound.StatusCode, errWebhookEventNotFound.Name, errWebhookEventNotFound.Message)
	case errors.Is(err, outbox.ErrWebhookDisabled):
		return problem(http.StatusConflict, "webhook_disabled", "This webhook is disabled. Enable it first.")
	case errors.Is(err, outbox.ErrIdempotencyKeyReused):
		return problem(http.StatusUnprocessableEntity, "invalid_idempotent_request",
			"This idempotency key was used for another request. Use a new key, or repeat the first request unchanged.")
	case errors.Is(err, outbox.ErrSubmissionInProgress):
		e := problem(http.StatusConflict, "concurrent_idempotent_requests",
			"A request with this idempotency key is in progress. Retry with the same key.")
		e.retryAfter = 1
		return e
	case errors.Is(err, outbox.ErrQueueQuota):
		e := problem(http.StatusTooManyRequests, "queue_quota_exceeded",
			"As many emails of this org are waiting as may. Retry later, with the same idempotency key.")
		e.retryAfter = quotaRetryAfter
		return e
	case errors.Is(err, outbox.ErrOrgPaused):
		return problem(http.StatusForbidden, "org_paused",
			"This org is paused: its emails wait and nothing new is accepted. Reading and canceling work.")
	case errors.Is(err, outbox.ErrNotCancelable):
		return problem(http.StatusConflict, "not_cancelable", "An attempt to send this email has begun, or it has ended.")
	case errors.Is(err, outbox.ErrNotScheduled):
		return problem(http.StatusConflict, "not_scheduled", "This email is no longer scheduled.")
	case errors.Is(err, outbox.ErrNotFailed):
		return problem(http.StatusConflict, "not_failed", "This email has not failed.")
	case errors.Is(err, outbox.ErrContentPurged):
		return problem(http.StatusConflict, "content_purged",
			"The content of this email was removed at the end of its retention: there is nothing left to send.")
	case errors.Is(err, outbox.ErrNotUnknown):
		return problem(http.StatusConflict, "not_in_doubt", "This email is not in doubt, or its worker may still be sending it.")
	case outbox.IsUnavailable(err):
		return unavailable(err)
	}
	return problem(http.StatusInternalServerError, "internal_server_error", internalMessage)
}

// writeError answers with an error. The cause goes to the log and never to the
// client.
func (s *server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	e := errorOf(err)
	l := lineOf(r)
	e.RequestID, l.name = l.requestID, e.Name
	if e.StatusCode >= http.StatusInternalServerError {
		l.detail = redact.Error(err)
	}
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	if e.StatusCode == http.StatusRequestEntityTooLarge {
		// The rest of the body is not read, so the connection is of no use.
		w.Header().Set("Connection", "close")
	}
	// Three official SDKs lose the message of any other media type, so the
	// standard one is only for those who ask.
	contentType := "application/json"
	if strings.Contains(r.Header.Get("Accept"), "application/problem+json") {
		contentType = "application/problem+json"
	}
	s.write(w, r, contentType, e.StatusCode, e)
}
