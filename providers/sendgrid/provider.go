// Package sendgrid hands messages over to Twilio SendGrid's v3 Mail Send API.
//
// SendGrid honours no idempotency key: the request's only parameter is a
// content encoding (github.com/twilio/sendgrid-oai, tsg_mail_v3). The
// attempt's key travels as a custom argument and comes back in every event.
//
// Nor can SendGrid be asked for a message by its key, so the provider is no
// [providers.Finder]:
//
//   - The Email Logs (https://www.twilio.com/docs/sendgrid/api-reference/email-logs)
//     name the custom arguments of a message whose id is known and do not search
//     by them. They search by recipient, subject, category and time. A category
//     for each message is not what categories are for, and ten is the limit.
//   - The Activity Feed (https://www.twilio.com/docs/sendgrid/api-reference/email-activity)
//     searches by unique_args, which belong to an older API: that it finds
//     custom arguments by them is said nowhere. It is an add-on to be bought, has
//     no data of the EU region, and takes 6 requests a minute.
//
// A doubt is settled by SendGrid's events.
//
// Only the types of sendgrid-go's helpers/mail are used. Its client shares the
// request body between goroutines, which loses mails and sends others twice
// (sendgrid/sendgrid-go#474), and returns no error for a refusal (#423).
package sendgrid

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// Name is the provider's name.
const Name = "sendgrid"

const (
	// DefaultBaseURL is the API's host; EU accounts have one of their own.
	DefaultBaseURL = "https://api.sendgrid.com"

	// ReferenceArg is the custom argument with the attempt's key.
	ReferenceArg = "outboxd_attempt"

	sendPath = "/v3/mail/send"
)

// Limits of https://www.twilio.com/docs/sendgrid/api-reference/mail-send/limitations
const (
	maxBytes       = 30 << 20
	maxRecipients  = 1000
	maxCategories  = 10
	maxCategoryLen = 255
	maxCustomArgs  = 10_000
)

// statuses are the refusals that Twilio documents.
//
//   - 400, 401, 403, 429:
//     https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/responses
//   - 404, 405, 413, 415:
//     https://www.twilio.com/docs/sendgrid/api-reference/mail-send/mail-send
//     and https://github.com/twilio/sendgrid-oai (tsg_mail_v3)
//
// A 403 is an unverified sender or a temporary block after many bad requests:
// in both cases the account and not the message. The 5xx are not here, 503
// included: the page calls them errors of the server and does not say that
// nothing was accepted.
var statuses = providers.StatusTable{
	http.StatusBadRequest:            providers.Rejected,
	http.StatusUnauthorized:          providers.Misconfigured,
	http.StatusForbidden:             providers.Misconfigured,
	http.StatusNotFound:              providers.Rejected,
	http.StatusMethodNotAllowed:      providers.Rejected,
	http.StatusRequestEntityTooLarge: providers.Rejected,
	http.StatusUnsupportedMediaType:  providers.Rejected,
	http.StatusTooManyRequests:       providers.Deferred,
}

// Config describes an account.
type Config struct {
	// APIKey needs the "Mail Send" permission.
	APIKey string
	// BaseURL is [DefaultBaseURL] when empty.
	BaseURL string
	// HTTPClient is from [providers.NewHTTPClient] when nil.
	HTTPClient *http.Client
	// Sandbox has SendGrid check the message and deliver nothing.
	Sandbox bool
}

// Provider hands messages over to one SendGrid account.
type Provider struct {
	url     string
	key     string
	client  *http.Client
	sandbox bool
	now     func() time.Time
}

var _ providers.Provider = (*Provider)(nil)

// New returns a provider for the account that c describes.
func New(c Config) (*Provider, error) {
	if err := providers.CheckSecret("API key", c.APIKey); err != nil {
		return nil, fmt.Errorf("sendgrid: %w", err)
	}
	base, err := providers.BaseURL(c.BaseURL, DefaultBaseURL)
	if err != nil {
		return nil, fmt.Errorf("sendgrid: %w", err)
	}
	if c.HTTPClient == nil {
		c.HTTPClient = providers.NewHTTPClient()
	}
	return &Provider{
		url: base.JoinPath(sendPath).String(), key: c.APIKey,
		client: c.HTTPClient, sandbox: c.Sandbox, now: time.Now,
	}, nil
}

// Name implements [providers.Provider].
func (p *Provider) Name() string { return Name }

// Capabilities implements [providers.Provider].
func (p *Provider) Capabilities() providers.Capabilities {
	return providers.Capabilities{MaxBytes: maxBytes, MaxRecipients: maxRecipients}
}

// Send implements [providers.Provider].
func (p *Provider) Send(ctx context.Context, s providers.Sending) (providers.Receipt, error) {
	call := providers.Call{Client: p.client, URL: p.url, Header: http.Header{
		"Authorization": {"Bearer " + p.key},
		"Content-Type":  {"application/json"},
		"Accept":        {"application/json"},
		"User-Agent":    {"outboxd"},
	}}
	reply, err := call.Post(ctx, s)
	if err != nil {
		return providers.Receipt{}, err
	}
	if e := statuses.Judge(reply, p.now()); e != nil {
		e.Detail = providers.Redact(detail(reply.Body), p.key)
		if e.Status == http.StatusTooManyRequests {
			e.RetryAfter = max(e.RetryAfter, rateLimitReset(reply.Header, p.now()))
		}
		return providers.Receipt{}, e
	}
	// The id is a prefix of the sg_message_id in the events.
	return providers.Receipt{
		ProviderMessageID: providers.MessageID(reply.Header.Get("X-Message-Id")),
		Status:            reply.Status,
	}, nil
}

// rateLimitReset returns the wait until the time in X-RateLimit-Reset, which is
// in seconds since 1970:
// https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/rate-limits
func rateLimitReset(h http.Header, now time.Time) time.Duration {
	epoch, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64)
	if err != nil {
		return 0
	}
	return providers.BoundedWait(time.Unix(epoch, 0).Sub(now))
}

// detail returns the messages of an error reply, or its beginning where it is
// not in the documented form:
// https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/errors
func detail(body []byte) string {
	var reply struct {
		Errors []struct {
			Message string `json:"message"`
			Field   string `json:"field"`
		} `json:"errors"`
	}
	if err := json.Unmarshal(body, &reply); err != nil || len(reply.Errors) == 0 {
		return providers.Excerpt(body)
	}
	var lines []string
	for _, e := range reply.Errors {
		if e.Field != "" {
			e.Message = e.Field + ": " + e.Message
		}
		lines = append(lines, e.Message)
	}
	return strings.Join(lines, "; ")
}
