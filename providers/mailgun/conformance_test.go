package mailgun_test

import (
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/mailgun"
	"github.com/outboxd/outboxd/providers/providertest"
)

const (
	apiKey = "key-a-secret-that-must-not-be-seen"
	// credentials are the user "api" and the key as they go over the wire.
	credentials = "YXBpOmtleS1hLXNlY3JldC10aGF0LW11c3Qtbm90LWJlLXNlZW4="
	domain      = "mg.example.com"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, providertest.Suite{
		Start: func(t testing.TB) providertest.Server {
			return providertest.NewHTTP(t, providertest.Mailgun)
		},
		New: func(t testing.TB, url string) providers.Provider {
			return newProvider(t, mailgun.Config{BaseURL: url})
		},
		Secrets: []string{apiKey, credentials},
		// https://documentation.mailgun.com/docs/mailgun/quickstart-guide/responses
		// https://help.mailgun.com/hc/en-us/articles/115001124753-Account-Sending-Limitation
		Definite: map[int]providers.Outcome{
			400: providers.Rejected,
			401: providers.Misconfigured,
			403: providers.Misconfigured,
			404: providers.Misconfigured,
			413: providers.Rejected,
			420: providers.Deferred,
			429: providers.Deferred,
		},
	})
}

func newProvider(t testing.TB, c mailgun.Config) *mailgun.Provider {
	t.Helper()
	c.APIKey = apiKey
	if c.Domain == "" {
		c.Domain = domain
	}
	p, err := mailgun.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
