package ses

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/aws/smithy-go"

	"github.com/outboxd/outboxd/providers"
)

// statuses are the refusals that AWS documents, for errors whose code is not in
// codes: a 4xx says that the request was refused.
//
//   - errors of SendEmail:
//     https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_SendEmail.html#API_SendEmail_Errors
//   - errors of every AWS API:
//     https://docs.aws.amazon.com/ses/latest/APIReference-V2/CommonErrors.html
//
// A 400 may be about the message, the account or the rate. Of a code that is
// not known here only the refusal is known, so the email waits or goes
// elsewhere. The 5xx are not here, 503 included: nothing says that the message
// was not accepted.
var statuses = providers.StatusTable{
	http.StatusBadRequest:            providers.Deferred,
	http.StatusUnauthorized:          providers.Misconfigured, // NotAuthorized
	http.StatusForbidden:             providers.Misconfigured, // ExpiredToken, UnrecognizedClient, AccessDenied, ...
	http.StatusNotFound:              providers.Misconfigured, // NotFound (configuration set), UnknownOperation (endpoint)
	http.StatusRequestTimeout:        providers.Deferred,      // RequestTimeout: the request could not be read
	http.StatusRequestEntityTooLarge: providers.Rejected,      // RequestEntityTooLarge
	http.StatusTooManyRequests:       providers.Deferred,      // TooManyRequests, Throttling
}

// coded is a status together with the error's code, without "Exception".
type coded struct {
	status int
	code   string
}

// codes are the errors of the same pages whose code says more than the status.
// Editions of the second page differ on the status of some: 400 or 403, 400 or
// 429.
var codes = map[coded]providers.Outcome{
	{http.StatusBadRequest, "MessageRejected"}:      providers.Rejected, // "contains invalid content"
	{http.StatusBadRequest, "BadRequest"}:           providers.Rejected,
	{http.StatusBadRequest, "ValidationError"}:      providers.Rejected,
	{http.StatusBadRequest, "MalformedHttpRequest"}: providers.Rejected,
	{http.StatusBadRequest, "AccountSuspended"}:     providers.Misconfigured, // "permanently restricted"
	{http.StatusBadRequest, "SendingPaused"}:        providers.Misconfigured, // of the account or the configuration set
	{http.StatusBadRequest, "AccessDenied"}:         providers.Misconfigured,
	{http.StatusBadRequest, "IncompleteSignature"}:  providers.Misconfigured,
	{http.StatusBadRequest, "RequestExpired"}:       providers.Misconfigured, // the clock is wrong
	{http.StatusBadRequest, "ExpiredToken"}:         providers.Misconfigured,
	{http.StatusBadRequest, "UnrecognizedClient"}:   providers.Misconfigured,
	// The domain in From is not verified. The message is fine and so is the
	// account for other senders: one tenant's domain must not stop everybody's
	// mail, and verifying it takes minutes.
	{http.StatusBadRequest, "MailFromDomainNotVerified"}: providers.Deferred,
	{http.StatusBadRequest, "LimitExceeded"}:             providers.Deferred,
	{http.StatusBadRequest, "Throttling"}:                providers.Deferred,
	// "The request was aborted before a reply was sent": what was done by then
	// is not said.
	{http.StatusBadRequest, "RequestAborted"}: providers.InDoubt,
}

// notVerified begins the message of a MessageRejected that is not about the
// content but, like MailFromDomainNotVerified, about an identity. Nothing else
// tells the two apart:
// https://docs.aws.amazon.com/ses/latest/dg/troubleshoot-error-messages.html
const notVerified = "email address is not verified"

// Waits. SES sends no header for them, and asks to wait up to ten minutes:
// https://docs.aws.amazon.com/ses/latest/dg/manage-sending-quotas-errors.html
const (
	// rateWait is for the sending rate, which is per second.
	rateWait = 2 * time.Second
	// quotaWait is for the sending quota, of which some comes back all the
	// time: it is of the last 24 hours.
	quotaWait = 10 * time.Minute
)

// dailyQuota is in the message of a throttling error for the quota, which has
// the same code as one for the rate (same page).
const dailyQuota = "daily message quota exceeded"

// judge returns nil when reply says that the message was accepted. What the SDK
// read in an error reply is in err.
func judge(reply providers.Reply, err error, now time.Time) *providers.Error {
	e := statuses.Judge(reply, now)
	if e == nil {
		return nil
	}
	e.Code, e.Detail = failure(reply.Body, err)
	is := coded{reply.Status, e.Code}
	if outcome, ok := codes[is]; ok {
		e.Outcome = outcome
	}
	detail := strings.ToLower(e.Detail)
	if (is == coded{http.StatusBadRequest, "MessageRejected"}) && strings.HasPrefix(detail, notVerified) {
		e.Outcome = providers.Deferred
	}
	e.RetryAfter = max(e.RetryAfter, wait(is, detail))
	return e
}

// wait returns the least wait that an error asks for.
func wait(is coded, detail string) time.Duration {
	limited := is.status == http.StatusTooManyRequests ||
		is == coded{http.StatusBadRequest, "Throttling"} || is == coded{http.StatusBadRequest, "LimitExceeded"}
	switch {
	case !limited:
		return 0
	case is.code == "LimitExceeded", strings.Contains(detail, dailyQuota):
		return quotaWait
	}
	return rateWait
}

// errorCode is the form of an error's code.
var errorCode = regexp.MustCompile(`^[A-Za-z]{1,64}$`)

// failure returns the code and the message of an error reply, or its beginning
// where it is not in the documented form. The codes are written with and
// without "Exception" in AWS's pages; here they are without.
func failure(body []byte, err error) (code, detail string) {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok || api.ErrorMessage() == "" {
		detail = providers.Excerpt(body)
	} else {
		detail = api.ErrorMessage()
	}
	// UnknownError is the SDK's word for a reply without a code.
	if ok && api.ErrorCode() != "UnknownError" && errorCode.MatchString(api.ErrorCode()) {
		code = strings.TrimSuffix(api.ErrorCode(), "Exception")
	}
	return code, detail
}
