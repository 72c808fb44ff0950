// Package resend hands messages over to Resend's API.
//
// Resend honours idempotency keys: for 24 hours the same key with the same
// bytes gets the first reply again, and no second message goes out
// (https://resend.com/docs/dashboard/emails/idempotency-keys). The attempt's
// key is that key, and also travels as a tag that comes back in every event.
//
// resend-go is not used: its errors drop the status and the error's name, so
// that a conflict of keys, a quota and a broken server look the same.
package resend

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// Name is the provider's name.
const Name = "resend"

const (
	// DefaultBaseURL is the API's host.
	DefaultBaseURL = "https://api.resend.com"

	// ReferenceTag is the tag with the attempt's key.
	ReferenceTag = "outboxd_attempt"

	sendPath = "/emails"

	// keyWindow is how long a key is remembered:
	// https://resend.com/docs/dashboard/emails/idempotency-keys
	keyWindow = 24 * time.Hour
)

// Limits of https://resend.com/docs/api-reference/emails/send-email (size;
// recipients in To, and no word about Cc and Bcc, so all are counted),
// https://resend.com/docs/dashboard/emails/tags (tags) and
// https://resend.com/docs/dashboard/emails/embed-inline-images (content ids).
const (
	maxBytes      = 40 << 20
	maxRecipients = 50
	maxTags       = 75
	maxContentID  = 127
)

// Config describes an account.
type Config struct {
	// APIKey needs the permission "Sending access".
	APIKey string
	// BaseURL is [DefaultBaseURL] when empty.
	BaseURL string
	// HTTPClient is from [providers.NewHTTPClient] when nil.
	HTTPClient *http.Client
}

// Provider hands messages over to one Resend account.
type Provider struct {
	url    string
	key    string
	client *http.Client
	now    func() time.Time
}

var _ providers.Provider = (*Provider)(nil)

// New returns a provider for the account that c describes.
func New(c Config) (*Provider, error) {
	if err := providers.CheckSecret("API key", c.APIKey); err != nil {
		return nil, fmt.Errorf("resend: %w", err)
	}
	base, err := providers.BaseURL(c.BaseURL, DefaultBaseURL)
	if err != nil {
		return nil, fmt.Errorf("resend: %w", err)
	}
	if c.HTTPClient == nil {
		c.HTTPClient = providers.NewHTTPClient()
	}
	return &Provider{
		url: base.JoinPath(sendPath).String(), key: c.APIKey,
		client: c.HTTPClient, now: time.Now,
	}, nil
}

// Name implements [providers.Provider].
func (p *Provider) Name() string { return Name }

// Capabilities implements [providers.Provider].
func (p *Provider) Capabilities() providers.Capabilities {
	return providers.Capabilities{KeyWindow: keyWindow, MaxBytes: maxBytes, MaxRecipients: maxRecipients}
}

// Send implements [providers.Provider]. The header Idempotency-Key makes
// net/http repeat a POST by itself; [providers.Call] keeps it from that.
func (p *Provider) Send(ctx context.Context, s providers.Sending) (providers.Receipt, error) {
	call := providers.Call{Client: p.client, URL: p.url, Header: http.Header{
		"Authorization":   {"Bearer " + p.key},
		"Content-Type":    {"application/json"},
		"Accept":          {"application/json"},
		"Idempotency-Key": {s.Key},
		// Without one there is a 403: https://resend.com/docs/knowledge-base/403-error-1010
		"User-Agent": {"outboxd"},
	}}
	reply, err := call.Post(ctx, s)
	if err != nil {
		return providers.Receipt{}, err
	}
	if e := judge(reply, p.now()); e != nil {
		// Code is Resend's name for the error: lower case and underscores, as
		// API keys are too.
		e.Code = providers.Redact(e.Code, p.key)
		e.Detail = providers.Redact(e.Detail, p.key)
		return providers.Receipt{}, e
	}
	return providers.Receipt{ProviderMessageID: messageID(reply.Body), Status: reply.Status}, nil
}

// messageID returns the id in the reply to an accepted message, and nothing
// when there is none.
func messageID(body []byte) string {
	var reply struct {
		ID string `json:"id"`
	}
	// Unmarshal leaves what it has understood.
	_ = json.Unmarshal(body, &reply)
	return providers.MessageID(reply.ID)
}
