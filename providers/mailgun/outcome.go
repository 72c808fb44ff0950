package mailgun

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// statusLimited is Mailgun's own: an account on probation has sent what it may
// in this hour.
const statusLimited = 420

// statuses are the refusals that Mailgun documents.
//
//   - 400, 403, 404, 429:
//     https://documentation.mailgun.com/docs/mailgun/quickstart-guide/responses
//   - 401: github.com/mailgun/documentation, source/api-sending.rst (Examples)
//   - 413: RFC 9110, 15.5.14; the limit is on
//     https://documentation.mailgun.com/docs/mailgun/user-manual/sending-messages/send-http
//   - 420: https://help.mailgun.com/hc/en-us/articles/115001124753-Account-Sending-Limitation
//
// A 404 names a domain or an endpoint that is not there, which is our
// configuration (the region, above all) and not the message. The 5xx are not
// here: the first page recommends to try again, and users report mails that
// went out in spite of one.
var statuses = providers.StatusTable{
	http.StatusBadRequest:            providers.Rejected,
	http.StatusUnauthorized:          providers.Misconfigured,
	http.StatusForbidden:             providers.Misconfigured,
	http.StatusNotFound:              providers.Misconfigured,
	http.StatusRequestEntityTooLarge: providers.Rejected,
	statusLimited:                    providers.Deferred,
	http.StatusTooManyRequests:       providers.Deferred,
}

// limitedWait is the least wait after a 420. The limit is one per hour and has
// no header; shorter than the hour, so that the end of the probation is
// noticed.
const limitedWait = 10 * time.Minute

// CodeNoEndpoint says that a success came from no endpoint: the base URL is
// wrong.
const CodeNoEndpoint = "no_endpoint"

// welcome is what Mailgun answers, with a 200, where there is no endpoint
// (anymail/django-anymail, anymail/backends/mailgun.py). Nobody took anything.
var welcome = []byte("Mailgun Magnificent API")

// answer is the body of a reply:
// https://documentation.mailgun.com/docs/mailgun/api-reference/openapi-final/tag/Messages/
type answer struct {
	ID      string `json:"id"`
	Message string `json:"message"`
}

// parse returns what can be understood of a reply.
func parse(body []byte) (a answer) {
	_ = json.Unmarshal(body, &a)
	return a
}

// judge returns nil when reply says that the message was accepted.
func judge(reply providers.Reply, a answer, now time.Time) *providers.Error {
	e := statuses.Judge(reply, now)
	switch {
	case e == nil && (a.ID != "" || !bytes.Contains(reply.Body, welcome)):
		return nil
	case e == nil:
		e = &providers.Error{Outcome: providers.Misconfigured, Status: reply.Status, Code: CodeNoEndpoint}
	case e.Status == statusLimited:
		e.RetryAfter = max(e.RetryAfter, limitedWait)
	}
	e.Detail = a.Message
	if e.Detail == "" {
		e.Detail = providers.Excerpt(reply.Body)
	}
	return e
}
