package resend_test

import (
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/resend"
)

const apiKey = "re_a_secret_that_must_not_be_seen"

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, providertest.Suite{
		Start: func(t testing.TB) providertest.Server {
			return providertest.NewHTTP(t, providertest.Resend)
		},
		New: func(t testing.TB, url string) providers.Provider {
			return newProvider(t, url)
		},
		Secrets: []string{apiKey},
		// https://resend.com/docs/api-reference/errors
		Definite: map[int]providers.Outcome{
			400: providers.Rejected,
			401: providers.Misconfigured,
			403: providers.Misconfigured,
			404: providers.Rejected,
			405: providers.Rejected,
			413: providers.Rejected,
			422: providers.Rejected,
			429: providers.Deferred,
			451: providers.Rejected,
		},
	})
}

func newProvider(t testing.TB, url string) *resend.Provider {
	t.Helper()
	p, err := resend.New(resend.Config{APIKey: apiKey, BaseURL: url})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
