// Package postmark hands messages over to Postmark's email API.
//
// Postmark honours no idempotency key
// (https://postmarkapp.com/support/article/what-is-an-idempotency-key). The
// attempt's key travels in the message's metadata: it comes back in every event
// and can be searched for, see [Provider.Find].
//
// No module of others is used: the one that can be had is unofficial, and the
// API is one object.
package postmark

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// Name is the provider's name.
const Name = "postmark"

const (
	// DefaultBaseURL is the API's host. There is one for all regions.
	DefaultBaseURL = "https://api.postmarkapp.com"

	// DefaultMessageStream is the stream that every server has for
	// transactional messages.
	DefaultMessageStream = "outbound"

	// ReferenceField is the field of the metadata with the attempt's key.
	ReferenceField = "outboxd_attempt"

	// sandboxToken has Postmark check a message and deliver nothing:
	// https://postmarkapp.com/developer/api/overview (Authentication)
	sandboxToken = "POSTMARK_API_TEST"

	tokenHeader = "X-Postmark-Server-Token"
	sendPath    = "/email"
	searchPath  = "/messages/outbound"
)

// Config describes a server, which is Postmark's name for a set of credentials
// with its messages.
type Config struct {
	// ServerToken is the token of the server and not of the account. It is
	// not used with Sandbox.
	ServerToken string
	// BaseURL is [DefaultBaseURL] when empty.
	BaseURL string
	// MessageStream is [DefaultMessageStream] when empty.
	MessageStream string
	// HTTPClient is from [providers.NewHTTPClient] when nil.
	HTTPClient *http.Client
	// Sandbox has Postmark check the message and deliver nothing. It keeps
	// nothing of it either, so nothing is ever found.
	Sandbox bool
}

// Provider hands messages over to one Postmark server.
type Provider struct {
	sendURL   string
	searchURL string
	token     string
	stream    string
	sandbox   bool
	client    *http.Client
	now       func() time.Time
}

var (
	_ providers.Provider = (*Provider)(nil)
	_ providers.Finder   = (*Provider)(nil)
)

// New returns a provider for the server that c describes.
func New(c Config) (*Provider, error) {
	if c.Sandbox {
		c.ServerToken = sandboxToken
	}
	if err := providers.CheckSecret("server token", c.ServerToken); err != nil {
		return nil, fmt.Errorf("postmark: %w", err)
	}
	base, err := providers.BaseURL(c.BaseURL, DefaultBaseURL)
	if err != nil {
		return nil, fmt.Errorf("postmark: %w", err)
	}
	if c.MessageStream == "" {
		c.MessageStream = DefaultMessageStream
	}
	if c.HTTPClient == nil {
		c.HTTPClient = providers.NewHTTPClient()
	}
	return &Provider{
		sendURL: base.JoinPath(sendPath).String(), searchURL: base.JoinPath(searchPath).String(),
		token: c.ServerToken, stream: c.MessageStream, sandbox: c.Sandbox,
		client: c.HTTPClient, now: time.Now,
	}, nil
}

// Name implements [providers.Provider].
func (p *Provider) Name() string { return Name }

// Capabilities implements [providers.Provider].
func (p *Provider) Capabilities() providers.Capabilities {
	return providers.Capabilities{MaxBytes: maxBytes, MaxRecipients: maxRecipients}
}

// header returns what every request has in its header.
func (p *Provider) header() http.Header {
	return http.Header{
		tokenHeader:  {p.token},
		"Accept":     {"application/json"},
		"User-Agent": {"outboxd"},
	}
}

// Send implements [providers.Provider].
func (p *Provider) Send(ctx context.Context, s providers.Sending) (providers.Receipt, error) {
	call := providers.Call{Client: p.client, URL: p.sendURL, Header: p.header()}
	call.Header.Set("Content-Type", "application/json")
	reply, err := call.Post(ctx, s)
	if err != nil {
		return providers.Receipt{}, err
	}
	answer := parse(reply.Body)
	if e := judge(reply, answer, p.now()); e != nil {
		e.Detail = providers.Redact(e.Detail, p.token)
		return providers.Receipt{}, e
	}
	return providers.Receipt{
		ProviderMessageID: providers.MessageID(answer.MessageID),
		Status:            reply.Status,
	}, nil
}

// answer is the body of a reply:
// https://postmarkapp.com/developer/api/email-api#send-a-single-email
//
// ErrorCode is missing when delivery is delayed (anymail/django-anymail#392),
// which is an acceptance like any other.
type answer struct {
	ErrorCode int
	Message   string
	MessageID string
}

// parse returns what can be understood of a reply.
func parse(body []byte) (a answer) {
	_ = json.Unmarshal(body, &a)
	return a
}
