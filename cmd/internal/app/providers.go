package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/mailgun"
	"github.com/outboxd/outboxd/providers/postmark"
	"github.com/outboxd/outboxd/providers/resend"
	"github.com/outboxd/outboxd/providers/sendgrid"
	"github.com/outboxd/outboxd/providers/ses"
	"github.com/outboxd/outboxd/providers/smtp"
)

// factories make the providers that OUTBOXD_PROVIDERS can name.
var factories = map[string]func(*Config) (providers.Provider, error){
	mailgun.Name:  newMailgun,
	postmark.Name: newPostmark,
	resend.Name:   newResend,
	sendgrid.Name: newSendGrid,
	ses.Name:      newSES,
	smtp.Name:     newSMTP,
}

func knownProviders() []string { return slices.Sorted(maps.Keys(factories)) }

// newProviders makes the configured providers in order of preference.
func (c *Config) newProviders() ([]providers.Provider, error) {
	var made []providers.Provider
	var errs []error
	for _, name := range c.Providers {
		create, known := factories[name]
		if !known {
			continue // LoadConfig has said so
		}
		p, err := create(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %s: %w", name, err))
			continue
		}
		made = append(made, p)
	}
	return made, errors.Join(errs...)
}

// rates are the configured bounds, in emails per second; zero: none.
func (c *Config) rates() map[string]float64 {
	return map[string]float64{
		mailgun.Name:  float64(c.Rates.Mailgun),
		postmark.Name: float64(c.Rates.Postmark),
		resend.Name:   float64(c.Rates.Resend),
		sendgrid.Name: float64(c.Rates.SendGrid),
		ses.Name:      float64(c.Rates.SES),
		smtp.Name:     float64(c.Rates.SMTP),
	}
}

// judges are the configured providers for a process that sends nothing: it only
// asks what they can carry. It need not have their credentials; then a provider
// is no more than a name that emails can be pinned to.
func (c *Config) judges(ctx context.Context, log *slog.Logger) []providers.Provider {
	list := make([]providers.Provider, len(c.Providers))
	for i, name := range c.Providers {
		p, err := factories[name](c)
		if err != nil {
			log.InfoContext(ctx, "what this provider cannot carry is found out by the workers, not at submission",
				"provider", name, "because", err)
			p = nameOnly(name)
		}
		list[i] = p
	}
	return list
}

// nameOnly is a provider that is not configured in this process.
type nameOnly string

// Name implements [providers.Provider].
func (n nameOnly) Name() string { return string(n) }

// Capabilities implements [providers.Provider]: no limit is known.
func (nameOnly) Capabilities() providers.Capabilities { return providers.Capabilities{} }

// Render implements [providers.Provider]: nothing is refused.
func (nameOnly) Render(providers.Request) ([]byte, error) { return nil, nil }

// Send implements [providers.Provider].
func (n nameOnly) Send(context.Context, providers.Sending) (providers.Receipt, error) {
	return providers.Receipt{}, &providers.Error{Outcome: providers.Misconfigured, Code: "not_configured"}
}

func newSendGrid(c *Config) (providers.Provider, error) {
	if c.SendGrid.APIKey == "" {
		return nil, errors.New("SENDGRID_API_KEY is not set")
	}
	return sendgrid.New(sendgrid.Config{
		APIKey: c.SendGrid.APIKey, BaseURL: c.SendGrid.BaseURL, Sandbox: c.SendGrid.Sandbox,
	})
}

func newResend(c *Config) (providers.Provider, error) {
	if c.Resend.APIKey == "" {
		return nil, errors.New("RESEND_API_KEY is not set")
	}
	return resend.New(resend.Config{APIKey: c.Resend.APIKey, BaseURL: c.Resend.BaseURL})
}

func newPostmark(c *Config) (providers.Provider, error) {
	if c.Postmark.ServerToken == "" && !c.Postmark.Sandbox {
		return nil, errors.New("POSTMARK_SERVER_TOKEN is not set")
	}
	return postmark.New(postmark.Config{
		ServerToken: c.Postmark.ServerToken, BaseURL: c.Postmark.BaseURL,
		MessageStream: c.Postmark.MessageStream, Sandbox: c.Postmark.Sandbox,
	})
}

func newMailgun(c *Config) (providers.Provider, error) {
	if c.Mailgun.APIKey == "" || c.Mailgun.Domain == "" {
		return nil, errors.New("MAILGUN_API_KEY or MAILGUN_DOMAIN is not set")
	}
	return mailgun.New(mailgun.Config{
		APIKey: c.Mailgun.APIKey, Domain: c.Mailgun.Domain, BaseURL: c.Mailgun.BaseURL,
		Sandbox: c.Mailgun.Sandbox,
	})
}

func newSES(c *Config) (providers.Provider, error) {
	return ses.New(ses.Config{
		Region: c.SES.Region, EndpointURL: c.SES.EndpointURL, ConfigurationSet: c.SES.ConfigurationSet,
	})
}

func newSMTP(c *Config) (providers.Provider, error) {
	if c.SMTP.URL == "" {
		return nil, errors.New("SMTP_URL is not set; it looks like smtp://user:password@host:587?tls=required")
	}
	cfg, err := smtp.ParseURL(c.SMTP.URL)
	if err != nil {
		return nil, fmt.Errorf("SMTP_URL: %w", err)
	}
	cfg.FinalTimeout = c.SMTP.FinalTimeout.D()
	return smtp.New(cfg)
}
