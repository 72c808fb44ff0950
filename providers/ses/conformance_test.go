package ses_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/ses"
)

const (
	accessKey    = "AKIAACCESSKEYNOTSEEN"
	secretKey    = "a/secret+that/must/not/be/seen"
	sessionToken = "a-session-token-that-must-not-be-seen=="
)

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, providertest.Suite{
		Start: func(t testing.TB) providertest.Server {
			return providertest.NewHTTP(t, providertest.SES)
		},
		New: func(t testing.TB, url string) providers.Provider {
			return newProvider(t, url)
		},
		Secrets: []string{accessKey, secretKey, sessionToken, "AWS4-HMAC-SHA256"},
		// https://docs.aws.amazon.com/ses/latest/APIReference-V2/CommonErrors.html
		Definite: map[int]providers.Outcome{
			400: providers.Deferred,
			401: providers.Misconfigured,
			403: providers.Misconfigured,
			404: providers.Misconfigured,
			408: providers.Deferred,
			413: providers.Rejected,
			429: providers.Deferred,
		},
	})
}

func newProvider(t testing.TB, url string, edit ...func(*ses.Config)) *ses.Provider {
	t.Helper()
	c := ses.Config{
		Region: "eu-west-1", EndpointURL: url,
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, sessionToken),
	}
	for _, f := range edit {
		f(&c)
	}
	p, err := ses.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
