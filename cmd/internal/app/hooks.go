package app

import (
	"errors"
	"fmt"
	"strings"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/mailgun"
	"github.com/outboxd/outboxd/providers/postmark"
	"github.com/outboxd/outboxd/providers/resend"
	"github.com/outboxd/outboxd/providers/sendgrid"
	"github.com/outboxd/outboxd/providers/ses"
)

// hookFactory makes the hook of a provider.
type hookFactory struct {
	provider string
	// variables are the secrets. When none is set there is no hook.
	variables string
	isSet     func(*Config) bool
	create    func(*Config) (providers.Hook, error)
}

var hookFactories = []hookFactory{
	{
		mailgun.Name, "MAILGUN_WEBHOOK_SIGNING_KEY",
		func(c *Config) bool { return len(c.Mailgun.WebhookSigningKeys) > 0 },
		func(c *Config) (providers.Hook, error) {
			return mailgun.NewHook(mailgun.HookConfig{SigningKeys: c.Mailgun.WebhookSigningKeys})
		},
	},
	{
		postmark.Name, "POSTMARK_WEBHOOK_USER and POSTMARK_WEBHOOK_PASSWORD",
		func(c *Config) bool { return len(c.Postmark.WebhookUsers) > 0 || len(c.Postmark.WebhookPasswords) > 0 },
		newPostmarkHook,
	},
	{
		resend.Name, "RESEND_WEBHOOK_SECRET",
		func(c *Config) bool { return len(c.Resend.WebhookSecrets) > 0 },
		func(c *Config) (providers.Hook, error) {
			return resend.NewHook(resend.HookConfig{Secrets: c.Resend.WebhookSecrets})
		},
	},
	{
		sendgrid.Name, "SENDGRID_WEBHOOK_PUBLIC_KEY",
		func(c *Config) bool { return len(c.SendGrid.WebhookPublicKeys) > 0 },
		func(c *Config) (providers.Hook, error) {
			return sendgrid.NewHook(sendgrid.HookConfig{PublicKeys: c.SendGrid.WebhookPublicKeys})
		},
	},
	{
		ses.Name, "SES_SNS_TOPIC_ARN or SES_SNS_ENDPOINT_URL",
		func(c *Config) bool { return len(c.SES.TopicARNs) > 0 },
		func(c *Config) (providers.Hook, error) {
			return ses.NewHook(ses.HookConfig{TopicARNs: c.SES.TopicARNs, EndpointURL: c.SES.TopicEndpointURL})
		},
	},
}

// hooks makes the hooks of the providers whose webhook secrets are set, by name.
// They need not be in OUTBOXD_PROVIDERS: a provider that is no longer sent
// through still reports what became of older emails. The error names the
// variables of each secret that cannot be one, and quotes none.
func (c *Config) hooks() (map[string]providers.Hook, error) {
	made := map[string]providers.Hook{}
	var errs []error
	for _, f := range hookFactories {
		if !f.isSet(c) {
			continue
		}
		h, err := f.create(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.variables, err))
			continue
		}
		made[f.provider] = h
	}
	return made, errors.Join(errs...)
}

// newPostmarkHook pairs users and passwords. One user may have several
// passwords, while they are changed.
func newPostmarkHook(c *Config) (providers.Hook, error) {
	users, passwords := c.Postmark.WebhookUsers, c.Postmark.WebhookPasswords
	if len(users) != 1 && len(users) != len(passwords) {
		return nil, errors.New("there have to be as many passwords as users, or one user")
	}
	var list []postmark.Credentials
	for i, password := range passwords {
		list = append(list, postmark.Credentials{
			User: strings.TrimSpace(users[min(i, len(users)-1)]), Password: strings.TrimSpace(password),
		})
	}
	return postmark.NewHook(postmark.HookConfig{Credentials: list})
}
