package sendgrid_test

import (
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/sendgrid"
)

const apiKey = "SG.a-secret.that-must-not-be-seen"

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, providertest.Suite{
		Start: func(t testing.TB) providertest.Server {
			return providertest.NewHTTP(t, providertest.SendGrid)
		},
		New: func(t testing.TB, url string) providers.Provider {
			return newProvider(t, sendgrid.Config{BaseURL: url})
		},
		Secrets: []string{apiKey},
		// https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/responses
		Definite: map[int]providers.Outcome{
			400: providers.Rejected,
			401: providers.Misconfigured,
			403: providers.Misconfigured,
			404: providers.Rejected,
			405: providers.Rejected,
			413: providers.Rejected,
			415: providers.Rejected,
			429: providers.Deferred,
		},
	})
}

func newProvider(t testing.TB, c sendgrid.Config) *sendgrid.Provider {
	t.Helper()
	c.APIKey = apiKey
	p, err := sendgrid.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
