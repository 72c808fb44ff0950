package smtp_test

import (
	"crypto/tls"
	"slices"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/smtp"
)

// secured returns a provider for relay that trusts client's authorities.
func secured(t *testing.T, relay *providertest.SMTP, client *tls.Config, edit func(*smtp.Config)) *smtp.Provider {
	t.Helper()
	config, err := smtp.ParseURL(relay.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.TLSConfig = client
	if edit != nil {
		edit(&config)
	}
	p, err := smtp.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTLS(t *testing.T) {
	t.Parallel()
	for name, implicit := range map[string]bool{"STARTTLS": false, "implicit": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client := providertest.Certificate(t)
			relay := providertest.NewSMTP(t, providertest.SMTPOptions{
				Username: "user", Password: secret, TLS: server, Implicit: implicit,
			})
			inClear := make(chan providertest.Stage, 100)
			relay.Respond(func(e providertest.SMTPEvent) providertest.Reaction {
				if !e.Encrypted {
					inClear <- e.Stage
				}
				return providertest.Reaction{}
			})
			p := secured(t, relay, client, nil)
			s := sending(t, p)
			if _, err := p.Send(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			relay.Close()
			close(inClear)
			for stage := range inClear {
				if !slices.Contains([]providertest.Stage{providertest.AtGreeting, providertest.AtEHLO, providertest.AtSTARTTLS}, stage) {
					t.Errorf("%s in the clear", stage)
				}
			}
			if a := relay.Accepted(); len(a) != 1 || string(a[0].Body) != string(s.Payload) {
				t.Errorf("%d accepted, want the payload once", len(a))
			}
		})
	}
}

func mode(m smtp.TLSMode) func(*smtp.Config) {
	return func(c *smtp.Config) { c.TLS = m }
}

func TestTLSProblemsAreDeferred(t *testing.T) {
	t.Parallel()
	server, client := providertest.Certificate(t)
	tests := []struct {
		name    string
		options providertest.SMTPOptions
		config  *tls.Config
		edit    func(*smtp.Config)
	}{
		{"unknown authority", providertest.SMTPOptions{TLS: server}, nil, nil},
		{"unknown authority, implicit", providertest.SMTPOptions{TLS: server, Implicit: true}, nil, nil},
		{"other host", providertest.SMTPOptions{TLS: server}, &tls.Config{RootCAs: client.RootCAs, ServerName: "other.test"}, nil},
		{"STARTTLS not offered", providertest.SMTPOptions{}, client, mode(smtp.TLSRequired)},
		{"no TLS where it is expected", providertest.SMTPOptions{}, client, mode(smtp.TLSImplicit)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.options.Username, tt.options.Password = "user", secret
			relay := providertest.NewSMTP(t, tt.options)
			p := secured(t, relay, tt.config, tt.edit)
			e := failure(t, p, sending(t, p))
			if e.Outcome != providers.Deferred || e.Code != providers.CodeNotConnected {
				t.Errorf("got %v, want deferred %s", e, providers.CodeNotConnected)
			}
			relay.Close()
			if slices.Contains(relay.Lines(), "AUTH") {
				t.Error("the password was sent")
			}
		})
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	wrong := func(c *smtp.Config) { c.Password = "wrong" }
	none := func(c *smtp.Config) { c.Username, c.Password = "", "" }
	relayWith := func(password, mechanisms string) providertest.SMTPOptions {
		return providertest.SMTPOptions{Username: "user", Password: password, Mechanisms: mechanisms}
	}
	tests := []struct {
		name    string
		options providertest.SMTPOptions
		edit    func(*smtp.Config)
		want    string
	}{
		{"PLAIN", relayWith(secret, "LOGIN PLAIN"), nil, ""},
		{"LOGIN", relayWith(secret, "LOGIN"), nil, ""},
		{"long password", relayWith(strings.Repeat("x", 600), ""), nil, ""},
		{"wrong password", relayWith(secret, ""), wrong, "misconfigured 535 5.7.8: AUTH refused"},
		{"no credentials", relayWith(secret, ""), none, "misconfigured 530 5.7.0: MAIL refused"},
		{"mechanism unknown", relayWith(secret, "GSSAPI"), nil, "misconfigured auth_not_offered: " +
			"the relay offers neither AUTH PLAIN nor AUTH LOGIN"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			relay := providertest.NewSMTP(t, tt.options)
			p := secured(t, relay, nil, tt.edit)
			_, err := p.Send(t.Context(), sending(t, p))
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
