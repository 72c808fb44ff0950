// Package mailpace is an adapter for MailPace (https://mailpace.com) as a third
// party would write it: it follows the six steps of outboxd's README, imports
// nothing of outboxd but the contract, and its test runs the conformance suite.
//
// MailPace honours idempotency keys: for 24 hours the same key gets the first
// reply again, and no second message goes out
// (https://docs.mailpace.com/guide/idempotency). The body is not compared, so
// rendering the same bytes every time is up to the adapter.
package mailpace

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
const Name = "mailpace"

const (
	// DefaultBaseURL is the API's address; there is one for all regions.
	DefaultBaseURL = "https://app.mailpace.com/api/v1"

	// keyWindow is how long a key is remembered:
	// https://docs.mailpace.com/guide/idempotency
	keyWindow = 24 * time.Hour

	// Limits of https://docs.mailpace.com/reference/send. The page counts the
	// recipients in To and says nothing of the others, so all are counted.
	maxBytes      = 30 << 20
	maxRecipients = 50
)

// Config describes a domain, which is what MailPace's tokens are for.
type Config struct {
	// Token is the domain's API token.
	Token string
	// BaseURL is [DefaultBaseURL] when empty.
	BaseURL string
	// HTTPClient is from [providers.NewHTTPClient] when nil.
	HTTPClient *http.Client
}

// Provider hands messages over to MailPace for one domain.
type Provider struct {
	url    string
	token  string
	client *http.Client
}

var _ providers.Provider = (*Provider)(nil)

// New returns a provider for the domain that c describes.
func New(c Config) (*Provider, error) {
	if err := providers.CheckSecret("API token", c.Token); err != nil {
		return nil, fmt.Errorf("mailpace: %w", err)
	}
	base, err := providers.BaseURL(c.BaseURL, DefaultBaseURL)
	if err != nil {
		return nil, fmt.Errorf("mailpace: %w", err)
	}
	if c.HTTPClient == nil {
		c.HTTPClient = providers.NewHTTPClient()
	}
	return &Provider{url: base.JoinPath("send").String(), token: c.Token, client: c.HTTPClient}, nil
}

// Name implements [providers.Provider].
func (p *Provider) Name() string { return Name }

// Capabilities implements [providers.Provider].
func (p *Provider) Capabilities() providers.Capabilities {
	return providers.Capabilities{KeyWindow: keyWindow, MaxBytes: maxBytes, MaxRecipients: maxRecipients}
}

// Send implements [providers.Provider].
func (p *Provider) Send(ctx context.Context, s providers.Sending) (providers.Receipt, error) {
	call := providers.Call{Client: p.client, URL: p.url, Header: http.Header{
		"Mailpace-Server-Token": {p.token},
		"Content-Type":          {"application/json"},
		"Accept":                {"application/json"},
		// The page has the first name in its text and the second in its
		// samples. One is the right one, and the other does no harm.
		"Idempotency-Key": {s.Key},
		"Idempotent-Key":  {s.Key},
	}}
	reply, err := call.Post(ctx, s)
	if err != nil {
		return providers.Receipt{}, err
	}
	if e := judge(reply, time.Now()); e != nil {
		e.Detail = providers.Redact(e.Detail, p.token)
		return providers.Receipt{}, e
	}
	return providers.Receipt{ProviderMessageID: messageID(reply.Body), Status: reply.Status}, nil
}

// statuses are the refusals of https://docs.mailpace.com/reference/responses. A
// 500 says that their application is down, and not that nothing was accepted.
var statuses = providers.StatusTable{
	http.StatusBadRequest:            providers.Rejected,
	http.StatusUnauthorized:          providers.Misconfigured,
	http.StatusForbidden:             providers.Misconfigured, // domain not verified, no plan, disabled
	http.StatusNotAcceptable:         providers.Rejected,      // "invalid request format or content type"
	http.StatusRequestEntityTooLarge: providers.Rejected,      // RFC 9110, 15.5.14
	http.StatusTooManyRequests:       providers.Deferred,
}

// messages are errors of the same page that say more than their status, by the
// beginning of their text: there is no code.
var messages = map[string]providers.Outcome{
	"invalid api token": providers.Misconfigured, // with a 400
	// A token is good for one domain. The message may go out elsewhere.
	"verified domain does not match": providers.Deferred, // with a 403
}

// judge returns nil when reply says that the message was accepted.
func judge(reply providers.Reply, now time.Time) *providers.Error {
	e := statuses.Judge(reply, now)
	if e == nil {
		return nil
	}
	e.Detail = providers.Excerpt(reply.Body)
	var body struct{ Error string }
	if json.Unmarshal(reply.Body, &body) != nil || e.Outcome == providers.InDoubt {
		return e
	}
	for beginning, outcome := range messages {
		if strings.HasPrefix(strings.ToLower(body.Error), beginning) {
			e.Outcome = outcome
		}
	}
	return e
}

// messageID returns the number in the reply to an accepted message, or nothing.
func messageID(body []byte) string {
	var reply struct{ ID int64 }
	if json.Unmarshal(body, &reply) != nil || reply.ID == 0 {
		return ""
	}
	return strconv.FormatInt(reply.ID, 10)
}
