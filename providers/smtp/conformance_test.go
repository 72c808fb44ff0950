package smtp_test

import (
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/smtp"
)

// secret has characters that need escaping in a URL.
const secret = "p:ss/w@rd#1?"

func TestConformance(t *testing.T) {
	t.Parallel()
	definite := map[int]providers.Outcome{}
	for code := 400; code <= 499; code++ {
		definite[code] = providers.Deferred
	}
	for code := 500; code <= 599; code++ {
		definite[code] = providers.Rejected
	}
	definite[530] = providers.Misconfigured
	definite[535] = providers.Misconfigured
	providertest.Run(t, providertest.Suite{
		Start: func(t testing.TB) providertest.Server {
			return providertest.NewSMTP(t, providertest.SMTPOptions{Username: "user", Password: secret})
		},
		New:      newProvider,
		Secrets:  []string{secret, "cDpzcy93QHJkIzE/", "AHVzZXIAcDpzcy93QHJkIzE/"},
		Definite: definite,
	})
}

func newProvider(t testing.TB, url string) providers.Provider {
	t.Helper()
	config, err := smtp.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	p, err := smtp.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
