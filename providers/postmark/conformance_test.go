package postmark_test

import (
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/postmark"
	"github.com/outboxd/outboxd/providers/providertest"
)

const token = "a-secret-token-that-must-not-be-seen"

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, providertest.Suite{
		Start: func(t testing.TB) providertest.Server {
			return providertest.NewHTTP(t, providertest.Postmark)
		},
		New: func(t testing.TB, url string) providers.Provider {
			return newProvider(t, postmark.Config{BaseURL: url})
		},
		Secrets: []string{token},
		// https://postmarkapp.com/developer/api/overview
		Definite: map[int]providers.Outcome{
			401: providers.Misconfigured,
			404: providers.Misconfigured,
			413: providers.Rejected,
			415: providers.Rejected,
			422: providers.Rejected,
			429: providers.Deferred,
		},
	})
}

func newProvider(t testing.TB, c postmark.Config) *postmark.Provider {
	t.Helper()
	c.ServerToken = token
	p, err := postmark.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
