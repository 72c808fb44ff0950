package api

import (
	"net/http"

	"github.com/outboxd/outboxd/outbox"
)

// DecodeEmail decodes the body of POST /emails.
func DecodeEmail(body []byte) (outbox.Message, error) { return decodeEmail(body) }

// IdempotencyKey reads the header of a request.
func IdempotencyKey(r *http.Request) (string, error) { return idempotencyKey(r) }

// ErrorOf returns the answer to an error.
func ErrorOf(err error) *Error { return errorOf(err) }
