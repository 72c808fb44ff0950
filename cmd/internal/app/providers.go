package app

import (
	"errors"
	"fmt"
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
		p, err := factories[name](c)
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %s: %w", name, err))
			continue
		}
		made = append(made, p)
	}
	return made, errors.Join(errs...)
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
