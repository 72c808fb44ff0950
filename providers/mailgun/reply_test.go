package mailgun_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/mailgun"
	"github.com/outboxd/outboxd/providers/providertest"
)

// start returns an adapter and the provider it talks to, which answers as
// respond says.
func start(t *testing.T, c mailgun.Config, respond func(providertest.Seen) providertest.Reaction) (*mailgun.Provider, *providertest.HTTP) {
	t.Helper()
	server := providertest.NewHTTP(t, providertest.Mailgun)
	server.Respond(respond)
	c.BaseURL = server.URL()
	return newProvider(t, c), server
}

func always(r providertest.Reaction) func(providertest.Seen) providertest.Reaction {
	return func(providertest.Seen) providertest.Reaction { return r }
}

// sending renders the n-th request.
func sending(t *testing.T, p providers.Provider, n int) providers.Sending {
	t.Helper()
	r := providertest.Request(n)
	payload, err := p.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	return providers.Sending{Request: r, Payload: payload}
}

func recorded(t *testing.T, name string) string {
	t.Helper()
	body, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// The replies in testdata have the shapes of these pages:
//
//   - accepted: https://documentation.mailgun.com/docs/mailgun/api-reference/openapi-final/tag/Messages/
//   - refused-address:
//     https://documentation.mailgun.com/docs/mailgun/user-manual/sending-messages/send-http
//   - refused-key: mailgun/mailgun.js#393
//   - refused-domain, no-endpoint: anymail/django-anymail, anymail/backends/mailgun.py
//   - limited: https://help.mailgun.com/hc/en-us/articles/115001124753-Account-Sending-Limitation
//   - events: https://documentation.mailgun.com/docs/mailgun/api-reference/openapi-final/tag/Events
func TestRecordedReplies(t *testing.T) {
	t.Parallel()
	const accepted = "accepted"
	tests := []struct {
		file   string
		status int
		want   string
		code   string
		wait   time.Duration
	}{
		{"accepted.json", 200, accepted, "", 0},
		{"accepted.json", 202, accepted, "", 0}, // F3
		{"refused-address.json", 400, "rejected", "", 0},
		{"refused-key.txt", 401, "misconfigured", "", 0},
		{"refused-domain.json", 404, "misconfigured", "", 0},
		{"limited.json", 420, "deferred", "", 10 * time.Minute},
		// F2: a success that nobody has taken anything with.
		{"no-endpoint.txt", 200, "misconfigured", "no_endpoint", 0},
		// A 5xx says nothing, whatever its text.
		{"refused-address.json", 500, "in_doubt", "", 0},
		{"no-endpoint.txt", 503, "in_doubt", "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			t.Parallel()
			p, _ := start(t, mailgun.Config{}, always(providertest.Reply(tt.status, recorded(t, tt.file))))
			receipt, err := p.Send(t.Context(), sending(t, p, 1))
			if tt.want == accepted {
				want := providers.Receipt{Status: tt.status, ProviderMessageID: "0198c0de-0000-7000-8000-000000000001@mg.example.com"}
				if err != nil || receipt != want {
					t.Errorf("%d: got %+v, %v, want %+v", tt.status, receipt, err, want)
				}
				return
			}
			e := providers.AsError(err)
			if err == nil || e.Outcome.String() != tt.want || e.Status != tt.status || e.Code != tt.code ||
				e.RetryAfter != tt.wait || e.Detail == "" {
				t.Errorf("%d: got %+v, want %s %s", tt.status, e, tt.want, tt.code)
			}
		})
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body, detail string
	}{
		{"documented form", `{"message":"from parameter is missing"}`, "from parameter is missing"},
		{"no JSON", "<html>oops\xff</html>", "<html>oops</html>"},
		{"empty", "", ""},
		{"long", strings.Repeat("x", 600), strings.Repeat("x", 500)},
		{"quotes the key", `{"message":"` + apiKey + ` is bad"}`, "[redacted] is bad"},
		{"quotes the credentials", "Basic " + credentials, "Basic [redacted]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, server := start(t, mailgun.Config{}, always(providertest.Reply(400, tt.body)))
			_, err := p.Send(t.Context(), sending(t, p, 1))
			if e := providers.AsError(err); err == nil || e.Outcome != providers.Rejected || e.Detail != tt.detail {
				t.Errorf("got %+v, want rejected %q", e, tt.detail)
			}
			if len(server.Accepted()) != 0 {
				t.Error("accepted")
			}
		})
	}
}

func TestLimited(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reply providertest.Reaction
		want  time.Duration
	}{
		"429":                     {providertest.Reply(429, "").With("Retry-After", "90"), 90 * time.Second},
		"420 with a longer wait":  {providertest.Reply(420, "").With("Retry-After", "1800"), 30 * time.Minute},
		"420 with a shorter wait": {providertest.Reply(420, "").With("Retry-After", "1"), 10 * time.Minute},
	} {
		p, _ := start(t, mailgun.Config{}, always(tt.reply))
		_, err := p.Send(t.Context(), sending(t, p, 1))
		if e := providers.AsError(err); err == nil || e.Outcome != providers.Deferred || e.RetryAfter != tt.want {
			t.Errorf("%s: got %+v, want deferred for %v", name, e, tt.want)
		}
	}
}

func TestSend(t *testing.T) {
	t.Parallel()
	p, server := start(t, mailgun.Config{Domain: "MG.example.com"}, nil)
	s := sending(t, p, 1)
	got, err := p.Send(t.Context(), s)
	want := providers.Receipt{Status: 200, ProviderMessageID: s.Key + "@" + domain}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	seen := server.Seen()[0]
	for name, value := range map[string]string{"Authorization": "Basic " + credentials, "Idempotency-Key": ""} {
		if got := seen.Header.Get(name); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
	if seen.Path != "/v3/mg.example.com/messages" || seen.Reference != s.Key {
		t.Errorf("path %s, reference %q", seen.Path, seen.Reference)
	}
}

// F6: an accepted message stays accepted when its id cannot be read, or could
// not be stored.
func TestReceiptWithoutID(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"empty": "", "no JSON": "<html>", "array": "[1]", "no id": "{}", "id is a number": `{"id":7}`,
		"NUL": `{"id":"<a\u0000b>"}`, "not ASCII": `{"id":"<ü>"}`, "brackets": `{"id":"<>"}`,
		"long": `{"id":"<` + strings.Repeat("a", 257) + `>"}`,
	} {
		p, _ := start(t, mailgun.Config{}, always(providertest.Accept().Then(providertest.Reply(200, body))))
		got, err := p.Send(t.Context(), sending(t, p, 1))
		if want := (providers.Receipt{Status: 200}); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]mailgun.Config{
		"no key":                {Domain: domain},
		"key with a line end":   {Domain: domain, APIKey: "key-x\n"},
		"no domain":             {APIKey: apiKey},
		"domain with a slash":   {APIKey: apiKey, Domain: "mg.example.com/x"},
		"escaped slash":         {APIKey: apiKey, Domain: "mg.example.com%2fx"},
		"domain with a space":   {APIKey: apiKey, Domain: "mg.example.com "},
		"host and not a domain": {APIKey: apiKey, Domain: "mg"},
		"no URL":                {APIKey: apiKey, Domain: domain, BaseURL: "api.mailgun.net"},
	} {
		_, err := mailgun.New(c)
		if err == nil || !strings.HasPrefix(err.Error(), "mailgun: ") || strings.Contains(err.Error(), "key-") {
			t.Errorf("%s: %v, want an error", name, err)
		}
	}
}

// The version that others want in the base URL is not there twice.
func TestBaseURLWithTheVersion(t *testing.T) {
	t.Parallel()
	server := providertest.NewHTTP(t, providertest.Mailgun)
	for _, suffix := range []string{"", "/", "/v3", "/v3/"} {
		p := newProvider(t, mailgun.Config{BaseURL: server.URL() + suffix})
		if _, err := p.Send(t.Context(), sending(t, p, 1)); err != nil {
			t.Errorf("%q: %v", suffix, err)
		}
	}
}
