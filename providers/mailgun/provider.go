// Package mailgun hands messages over to Mailgun's messages API.
//
// Mailgun documents no idempotency key. The attempt's key travels in two
// places: as a variable, which comes back in every event, and in the Message-ID,
// which can be searched for, see [Provider.Find].
//
// mailgun-go is not used: a request has to be rendered to the same bytes each
// time, and its writer chooses a boundary at random.
package mailgun

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// Name is the provider's name.
const Name = "mailgun"

const (
	// DefaultBaseURL is the API's host for domains in the US region.
	DefaultBaseURL = "https://api.mailgun.net"

	// EUBaseURL is the API's host for domains in the EU region:
	// https://documentation.mailgun.com/docs/mailgun/user-manual/sending-messages/send-http
	EUBaseURL = "https://api.eu.mailgun.net"

	// ReferenceVariable is the variable with the attempt's key.
	ReferenceVariable = "outboxd_attempt"

	// apiVersion is the first part of every path.
	apiVersion = "v3"
)

// Config describes a domain of an account.
type Config struct {
	// APIKey is one of the account, or a sending key of the domain. Mailgun
	// lets a sending key do nothing but send, so with one of those no message
	// is ever found.
	APIKey string
	// Domain is the sending domain as it is known to Mailgun, for example
	// mg.example.com. Senders may be of other domains.
	Domain string
	// BaseURL is [DefaultBaseURL] when empty; [EUBaseURL] is the other region.
	BaseURL string
	// HTTPClient is from [providers.NewHTTPClient] when nil.
	HTTPClient *http.Client
	// Sandbox has Mailgun accept messages and deliver none, which it calls
	// test mode.
	Sandbox bool
}

// Provider hands messages over to one domain at Mailgun.
type Provider struct {
	sendURL   string
	searchURL string
	key       string
	domain    string
	sandbox   bool
	client    *http.Client
	now       func() time.Time
}

var (
	_ providers.Provider = (*Provider)(nil)
	_ providers.Finder   = (*Provider)(nil)
)

// hostName is what a domain is made of. With a slash in it, Mailgun would
// answer 200 and take nothing, see judge.
var hostName = regexp.MustCompile(`^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$`)

// New returns a provider for the domain that c describes.
func New(c Config) (*Provider, error) {
	if err := providers.CheckSecret("API key", c.APIKey); err != nil {
		return nil, fmt.Errorf("mailgun: %w", err)
	}
	if !hostName.MatchString(c.Domain) {
		return nil, errors.New("mailgun: the domain is missing or not the name of a host, such as mg.example.com")
	}
	base, err := providers.BaseURL(c.BaseURL, DefaultBaseURL)
	if err != nil {
		return nil, fmt.Errorf("mailgun: %w", err)
	}
	// Others want the version in the base URL; twice it would be no endpoint.
	base.Path = strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/"+apiVersion)
	if c.HTTPClient == nil {
		c.HTTPClient = providers.NewHTTPClient()
	}
	domain := strings.ToLower(c.Domain)
	return &Provider{
		sendURL:   base.JoinPath(apiVersion, domain, "messages").String(),
		searchURL: base.JoinPath(apiVersion, domain, "events").String(),
		key:       c.APIKey, domain: domain, sandbox: c.Sandbox,
		client: c.HTTPClient, now: time.Now,
	}, nil
}

// Name implements [providers.Provider].
func (p *Provider) Name() string { return Name }

// Capabilities implements [providers.Provider].
func (p *Provider) Capabilities() providers.Capabilities {
	return providers.Capabilities{MaxBytes: maxBytes, MaxRecipients: maxRecipients}
}

// credentials returns the value of the header Authorization without its
// scheme. The user is always "api":
// https://documentation.mailgun.com/docs/mailgun/user-manual/sending-messages/send-http
func (p *Provider) credentials() string {
	return base64.StdEncoding.EncodeToString([]byte("api:" + p.key))
}

// header returns what every request has in its header.
func (p *Provider) header() http.Header {
	return http.Header{
		"Authorization": {"Basic " + p.credentials()},
		"Accept":        {"application/json"},
		"User-Agent":    {"outboxd"},
	}
}

// messageID returns the Message-ID of an attempt without its angle brackets. It
// follows from the key alone, so that it can be searched for when nothing else
// is known.
func (p *Provider) messageID(key string) string { return key + "@" + p.domain }

// Send implements [providers.Provider].
func (p *Provider) Send(ctx context.Context, s providers.Sending) (providers.Receipt, error) {
	call := providers.Call{Client: p.client, URL: p.sendURL, Header: p.header()}
	call.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary(s.Key))
	reply, err := call.Post(ctx, s)
	if err != nil {
		return providers.Receipt{}, err
	}
	answer := parse(reply.Body)
	if e := judge(reply, answer, p.now()); e != nil {
		e.Detail = providers.Redact(e.Detail, p.key, p.credentials())
		return providers.Receipt{}, e
	}
	return providers.Receipt{ProviderMessageID: bare(answer.ID), Status: reply.Status}, nil
}

// bare returns a message id as events have it, without angle brackets.
func bare(id string) string {
	return providers.MessageID(strings.TrimSuffix(strings.TrimPrefix(id, "<"), ">"))
}
