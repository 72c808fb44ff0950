package postmark

import (
	"net/http"
	"strconv"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// statuses are the refusals that Postmark documents on
// https://postmarkapp.com/developer/api/overview (HTTP response codes).
//
// 500 is not here: the page says that the message is lost in most cases, hence
// not in all. Nor is 503, which is a refusal only together with the code for
// maintenance, see maintenance.
var statuses = providers.StatusTable{
	http.StatusUnauthorized:          providers.Misconfigured, // the token
	http.StatusNotFound:              providers.Misconfigured, // "ensure the endpoint is correct": the base URL
	http.StatusRequestEntityTooLarge: providers.Rejected,
	http.StatusUnsupportedMediaType:  providers.Rejected,
	http.StatusUnprocessableEntity:   providers.Rejected,
	http.StatusTooManyRequests:       providers.Deferred,
}

// codes are the refusals by ErrorCode, from the same page (API error codes).
// They come with a 422. A success with one of them is a refusal too: 0 is the
// code for success, and batches have it like that.
var codes = map[int]providers.Outcome{
	10:  providers.Misconfigured, // bad or missing API token
	300: providers.Rejected,      // invalid email request
	// The sender is not known or not confirmed. The message is fine and so is
	// the server for other senders: one tenant's address must not stop
	// everybody's mail.
	400: providers.Deferred,
	401: providers.Deferred,
	402: providers.Rejected,      // invalid JSON
	403: providers.Rejected,      // incompatible JSON
	405: providers.Misconfigured, // not allowed to send: out of credits
	406: providers.Rejected,      // inactive recipient, each of them
	409: providers.Rejected,      // JSON required
	411: providers.Rejected,      // forbidden attachment type
	412: providers.Misconfigured, // the account is pending
	413: providers.Misconfigured, // the account may not send
	429: providers.Deferred,      // rate limit exceeded
}

// maintenance is the code that makes a definite refusal of a 503.
const maintenance = 100

// judge returns nil when reply says that the message was accepted.
func judge(reply providers.Reply, a answer, now time.Time) *providers.Error {
	e := statuses.Judge(reply, now)
	outcome, known := codes[a.ErrorCode]
	switch {
	case e == nil && a.ErrorCode == 0:
		return nil
	case e == nil:
		// In doubt, if the code is in no table.
		e = &providers.Error{Outcome: outcome, Status: reply.Status}
	case reply.Status == http.StatusUnprocessableEntity && known:
		e.Outcome = outcome
	case reply.Status == http.StatusServiceUnavailable && a.ErrorCode == maintenance:
		e.Outcome = providers.Deferred
	}
	e.Detail = a.Message
	if e.Detail == "" {
		e.Detail = providers.Excerpt(reply.Body)
	}
	if a.ErrorCode != 0 {
		e.Code = strconv.Itoa(a.ErrorCode)
	}
	return e
}
