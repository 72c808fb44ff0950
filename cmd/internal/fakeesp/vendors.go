package fakeesp

import (
	"crypto/rand"
	"slices"
	"strings"

	"github.com/outboxd/outboxd/providers/providertest"
)

// relay is the provider's name for mail over SMTP.
const relay = "smtp"

// vendor is a service that the fake stands in for. A new one is a line in
// vendors.
type vendor struct {
	dialect providertest.Dialect
	// env is what points outboxd at the fake, with its address as {url}.
	env []string
	// hooks makes the service's webhooks, and the variables that verify them.
	hooks func(url string) (providertest.Webhooks, []string, error)
}

var vendors = []vendor{
	{providertest.SendGrid, []string{"SENDGRID_BASE_URL={url}", "SENDGRID_API_KEY=fake"}, sendGridHooks},
	{providertest.Resend, []string{"RESEND_BASE_URL={url}", "RESEND_API_KEY=fake"}, resendHooks},
	{providertest.Postmark, []string{"POSTMARK_BASE_URL={url}", "POSTMARK_SERVER_TOKEN=fake"}, postmarkHooks},
	{providertest.Mailgun, []string{"MAILGUN_BASE_URL={url}", "MAILGUN_API_KEY=fake", "MAILGUN_DOMAIN=fake.test"}, mailgunHooks},
	{providertest.SES, []string{
		"SES_ENDPOINT_URL={url}", "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=fake", "AWS_SECRET_ACCESS_KEY=fake",
	}, sesHooks},
}

// Providers returns the names of all providers that the fake stands in for.
func Providers() []string {
	var names []string
	for _, v := range vendors {
		names = append(names, v.dialect.Name)
	}
	return append(names, relay)
}

func dialects() []providertest.Dialect {
	var list []providertest.Dialect
	for _, v := range vendors {
		list = append(list, v.dialect)
	}
	return list
}

// dialectOf returns the dialect of a provider behind HTTP.
func dialectOf(name string) providertest.Dialect {
	i := slices.IndexFunc(vendors, func(v vendor) bool { return v.dialect.Name == name })
	return vendors[i].dialect
}

// environment returns the variables that point outboxd at the fake.
func environment(url, smtpURL string) []string {
	lines := []string{"OUTBOXD_PROVIDERS=" + strings.Join(Providers(), ",")}
	for _, v := range vendors {
		for _, line := range v.env {
			lines = append(lines, strings.ReplaceAll(line, "{url}", url))
		}
	}
	return append(lines, "SMTP_URL="+smtpURL)
}

// hooks makes the webhooks of all services, by provider, and the variables that
// verify them.
func hooks(url string) (map[string]providertest.Webhooks, []string, error) {
	all := map[string]providertest.Webhooks{}
	var env []string
	for _, v := range vendors {
		made, lines, err := v.hooks(url)
		if err != nil {
			return nil, nil, err
		}
		all[v.dialect.Name] = made
		env = append(env, lines...)
	}
	return all, env, nil
}

func sendGridHooks(string) (providertest.Webhooks, []string, error) {
	s, err := providertest.NewSendGridWebhooks()
	if err != nil {
		return nil, nil, err
	}
	key, err := s.PublicKey()
	return s, []string{"SENDGRID_WEBHOOK_PUBLIC_KEY=" + key}, err
}

func resendHooks(string) (providertest.Webhooks, []string, error) {
	r := providertest.NewResendWebhooks()
	return r, []string{"RESEND_WEBHOOK_SECRET=" + r.Secret}, nil
}

func postmarkHooks(string) (providertest.Webhooks, []string, error) {
	p := providertest.PostmarkWebhooks{Username: "postmark", Password: rand.Text()}
	return p, []string{"POSTMARK_WEBHOOK_USER=" + p.Username, "POSTMARK_WEBHOOK_PASSWORD=" + p.Password}, nil
}

func mailgunHooks(string) (providertest.Webhooks, []string, error) {
	m := providertest.MailgunWebhooks{SigningKey: rand.Text()}
	return m, []string{"MAILGUN_WEBHOOK_SIGNING_KEY=" + m.SigningKey}, nil
}

func sesHooks(url string) (providertest.Webhooks, []string, error) {
	s, err := providertest.NewSESWebhooks(url + certificatePath)
	return s, []string{"SES_SNS_TOPIC_ARN=" + s.TopicARN, "SES_SNS_ENDPOINT_URL=" + url}, err
}
