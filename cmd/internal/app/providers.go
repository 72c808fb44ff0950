package app

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/resend"
	"github.com/outboxd/outboxd/providers/sendgrid"
	"github.com/outboxd/outboxd/providers/ses"
	"github.com/outboxd/outboxd/providers/smtp"
)

// factories make the providers that OUTBOXD_PROVIDERS can name.
var factories = map[string]func(*Config) (providers.Provider, error){
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
	return sendgrid.New(sendgrid.Config{APIKey: c.SendGrid.APIKey, BaseURL: c.SendGrid.BaseURL})
}

func newResend(c *Config) (providers.Provider, error) {
	if c.Resend.APIKey == "" {
		return nil, errors.New("RESEND_API_KEY is not set")
	}
	return resend.New(resend.Config{APIKey: c.Resend.APIKey, BaseURL: c.Resend.BaseURL})
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
