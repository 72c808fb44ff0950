package providers

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// StatusTable lists the HTTP statuses that a vendor documents as "not
// accepted", with what follows from each. Every line of a table has the
// vendor's page beside it. A 2xx is always accepted, also one that the vendor
// does not mention; everything that is neither 2xx nor in the table is in
// doubt, including redirects.
type StatusTable map[int]Outcome

// Judge returns nil when r says that the message was accepted and otherwise an
// error with the outcome and the time to wait. The adapter adds Code and
// Detail from the body, where its dialect has them.
func (t StatusTable) Judge(r Reply, now time.Time) *Error {
	if r.Status >= 200 && r.Status <= 299 {
		return nil
	}
	return &Error{
		Outcome:    t[r.Status], // missing: InDoubt, the zero value
		Status:     r.Status,
		RetryAfter: RetryAfter(r.Header, now),
	}
}

// maxRetryAfter keeps an absurd header from stopping a provider for ever.
const maxRetryAfter = 24 * time.Hour

// RetryAfter returns the wait that the Retry-After header asks for, as seconds
// or as a date (RFC 9110, 10.2.3): zero when there is none or it has passed,
// at most a day.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if seconds, err := strconv.ParseInt(v, 10, 64); err == nil {
		if seconds > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter
		}
		return BoundedWait(time.Duration(seconds) * time.Second)
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	return BoundedWait(at.Sub(now))
}

// BoundedWait brings a wait that a provider asked for into the range from zero
// to a day.
func BoundedWait(d time.Duration) time.Duration {
	return min(max(d, 0), maxRetryAfter)
}

// Redact replaces the secrets in a provider's text, for [Error].Detail: some
// services quote the request's credentials when they refuse it.
func Redact(text string, secrets ...string) string {
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "[redacted]")
		}
	}
	return text
}
