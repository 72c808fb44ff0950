package resend

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// statuses are the refusals that Resend documents on
// https://resend.com/docs/api-reference/errors, for 413: RFC 9110, 15.5.14.
//
// The two kinds of 409 are not here, see conflictWait. Nor are the 5xx: "an
// unexpected error occurred" says nothing about the message, and the same key
// may be sent again.
var statuses = providers.StatusTable{
	http.StatusBadRequest:                 providers.Rejected,      // validation_error, invalid_idempotency_key
	http.StatusUnauthorized:               providers.Misconfigured, // missing_api_key, restricted_api_key, validation_error
	http.StatusForbidden:                  providers.Misconfigured, // invalid_api_key
	http.StatusNotFound:                   providers.Rejected,      // not_found
	http.StatusMethodNotAllowed:           providers.Rejected,      // method_not_allowed
	http.StatusRequestEntityTooLarge:      providers.Rejected,
	http.StatusUnprocessableEntity:        providers.Rejected, // invalid_attachment, missing_required_field, ...
	http.StatusTooManyRequests:            providers.Deferred, // rate_limit_exceeded, ..._quota_exceeded
	http.StatusUnavailableForLegalReasons: providers.Rejected, // security_error: "an issue with the request"
}

// named is a status together with the error's name in the body.
type named struct {
	status int
	name   string
}

// names are the errors of the same page whose name says more than the status.
var names = map[named]providers.Outcome{
	// The domain in From is not verified, or the account may only send to
	// itself. The message is fine and so is the account for other senders: one
	// tenant's domain must not stop everybody's mail.
	// https://resend.com/docs/knowledge-base/403-error-domain-mismatch
	{http.StatusForbidden, "validation_error"}: providers.Deferred,
	// "Change your request URL": the base URL is wrong, not the message.
	{http.StatusNotFound, "not_found"}:                  providers.Misconfigured,
	{http.StatusMethodNotAllowed, "method_not_allowed"}: providers.Misconfigured,
}

// badKeyMessage is all that tells a malformed API key from a malformed message:
// both are a 400 with the name validation_error.
const badKeyMessage = "api key is invalid"

const (
	// conflictWait is when to ask again after a 409
	// concurrent_idempotent_requests: the same key is being processed, and the
	// next reply is the one to that request.
	// https://resend.com/docs/dashboard/emails/idempotency-keys
	//
	// The other 409, invalid_idempotent_request, says that the key was used
	// with other bytes. What became of those is not said, so both leave the
	// message in doubt.
	conflictWait = 3 * time.Second

	// Waits for quotas, which have no header. They end with a day, with a
	// month, or when somebody changes the plan; shorter than that so that the
	// change is noticed, longer than a back-off.
	// https://resend.com/docs/api-reference/rate-limit
	dailyQuotaWait   = 30 * time.Minute
	monthlyQuotaWait = 2 * time.Hour
)

// waits are the least waits that errors ask for.
var waits = map[named]time.Duration{
	{http.StatusConflict, "concurrent_idempotent_requests"}: conflictWait,
	{http.StatusTooManyRequests, "daily_quota_exceeded"}:    dailyQuotaWait,
	{http.StatusTooManyRequests, "monthly_quota_exceeded"}:  monthlyQuotaWait,
}

// judge returns nil when reply says that the message was accepted.
func judge(reply providers.Reply, now time.Time) *providers.Error {
	e := statuses.Judge(reply, now)
	if e == nil {
		return nil
	}
	e.Code, e.Detail = failure(reply.Body)
	is := named{reply.Status, e.Code}
	if outcome, ok := names[is]; ok {
		e.Outcome = outcome
	}
	if (is == named{http.StatusBadRequest, "validation_error"}) &&
		strings.HasPrefix(strings.ToLower(e.Detail), badKeyMessage) {
		e.Outcome = providers.Misconfigured
	}
	e.RetryAfter = max(e.RetryAfter, waits[is])
	if reply.Status == http.StatusTooManyRequests {
		e.RetryAfter = max(e.RetryAfter, rateLimitReset(reply.Header))
	}
	return e
}

// rateLimitReset returns the wait in Ratelimit-Reset, which is in seconds from
// now: https://resend.com/docs/api-reference/rate-limit
func rateLimitReset(h http.Header) time.Duration {
	seconds, err := strconv.ParseInt(h.Get("Ratelimit-Reset"), 10, 32)
	if err != nil {
		return 0
	}
	return providers.BoundedWait(time.Duration(seconds) * time.Second)
}

// errorName is the form of an error's name.
var errorName = regexp.MustCompile(`^[a-z_]{1,64}$`)

// failure returns the name and the message of an error reply, or its beginning
// where it is not in the documented form.
func failure(body []byte) (code, detail string) {
	var reply struct {
		Name    string `json:"name"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(body, &reply); err != nil || reply.Message == "" {
		detail = providers.Excerpt(body)
	} else {
		detail = reply.Message
	}
	if errorName.MatchString(reply.Name) {
		code = reply.Name
	}
	return code, detail
}
