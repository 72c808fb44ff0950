package sendgrid_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/sendgrid"
)

// start returns an adapter and the provider it talks to, which answers as
// respond says.
func start(t *testing.T, c sendgrid.Config, respond func(providertest.Seen) providertest.Reaction) (*sendgrid.Provider, *providertest.HTTP) {
	t.Helper()
	server := providertest.NewHTTP(t, providertest.SendGrid)
	server.Respond(respond)
	c.BaseURL = server.URL()
	return newProvider(t, c), server
}

func sending(t *testing.T, p providers.Provider) providers.Sending {
	t.Helper()
	r := providertest.Request(1)
	payload, err := p.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	return providers.Sending{Request: r, Payload: payload}
}

func TestSendReceipt(t *testing.T) {
	t.Parallel()
	// F3: 202 is the usual success and 200 that of the sandbox.
	for sandbox, want := range map[bool]providers.Receipt{
		false: {Status: 202, ProviderMessageID: "sendgrid-1"},
		true:  {Status: 200, ProviderMessageID: "sendgrid-1"},
	} {
		p, server := start(t, sendgrid.Config{Sandbox: sandbox}, nil)
		got, err := p.Send(t.Context(), sending(t, p))
		if err != nil || got != want {
			t.Errorf("sandbox %v: got %+v, %v, want %+v", sandbox, got, err, want)
		}
		seen := server.Seen()[0]
		for name, value := range map[string]string{
			"Authorization": "Bearer " + apiKey, "Content-Type": "application/json", "Idempotency-Key": "",
		} {
			if got := seen.Header.Get(name); got != value {
				t.Errorf("%s: %q, want %q", name, got, value)
			}
		}
		if seen.Path != "/v3/mail/send" {
			t.Errorf("path %s", seen.Path)
		}
	}
}

// F6: an accepted message stays accepted when its id could not be stored.
func TestSendReceiptWithoutID(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{"none": "", "long": strings.Repeat("a", 257), "blank space": "a b"} {
		p, _ := start(t, sendgrid.Config{}, func(providertest.Seen) providertest.Reaction {
			return providertest.Accept().Then(providertest.Reply(202, "").With("X-Message-Id", id))
		})
		got, err := p.Send(t.Context(), sending(t, p))
		if want := (providers.Receipt{Status: 202}); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
	}
}

// F2: refusals were taken for success by sendgrid-go (#423, #450).
func TestSendRefusal(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body, detail string
	}{
		{
			"documented form",
			`{"errors":[{"message":"Bad thing.","field":"content","help":null},{"message":"Other.","field":null}]}`,
			"content: Bad thing.; Other.",
		},
		{"no JSON", "<html>oops\xff</html>", "<html>oops</html>"},
		{"empty", "", ""},
		{"quotes the key", `{"errors":[{"message":"key ` + apiKey + ` is bad"}]}`, "key [redacted] is bad"},
		{"long", strings.Repeat("x", 10_000), strings.Repeat("x", 500)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, server := start(t, sendgrid.Config{}, func(providertest.Seen) providertest.Reaction {
				return providertest.Reply(400, tt.body)
			})
			_, err := p.Send(t.Context(), sending(t, p))
			e := providers.AsError(err)
			if err == nil || e.Outcome != providers.Rejected || e.Status != 400 || e.Detail != tt.detail {
				t.Errorf("got %+v, want rejected with detail %q", e, tt.detail)
			}
			if len(server.Accepted()) != 0 {
				t.Error("accepted")
			}
		})
	}
}

func TestSendRateLimited(t *testing.T) {
	t.Parallel()
	reset := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).Unix()) }
	tests := []struct {
		name, header, value string
		min, max            time.Duration
	}{
		{"Retry-After", "Retry-After", "90", 90 * time.Second, 90 * time.Second},
		{"X-RateLimit-Reset", "X-RateLimit-Reset", reset(10 * time.Minute), 8 * time.Minute, 10 * time.Minute},
		{"reset that has passed", "X-RateLimit-Reset", reset(-time.Minute), 0, 0},
		{"reset in the far future", "X-RateLimit-Reset", "99999999999", 24 * time.Hour, 24 * time.Hour},
		{"nonsense", "X-RateLimit-Reset", "soon", 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, _ := start(t, sendgrid.Config{}, func(providertest.Seen) providertest.Reaction {
				return providertest.Reply(429, "").With(tt.header, tt.value)
			})
			_, err := p.Send(t.Context(), sending(t, p))
			e := providers.AsError(err)
			if err == nil || e.Outcome != providers.Deferred || e.RetryAfter < tt.min || e.RetryAfter > tt.max {
				t.Errorf("got %+v, want deferred for %v to %v", e, tt.min, tt.max)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]sendgrid.Config{
		"no key":               {},
		"key with a line end":  {APIKey: "SG.x\n"},
		"no scheme":            {APIKey: apiKey, BaseURL: "api.sendgrid.com"},
		"other scheme":         {APIKey: apiKey, BaseURL: "ftp://api.sendgrid.com"},
		"credentials in URL":   {APIKey: apiKey, BaseURL: "https://u:" + apiKey + "@api.sendgrid.com"},
		"query in URL":         {APIKey: apiKey, BaseURL: "https://api.sendgrid.com?x=1"},
		"malformed URL":        {APIKey: apiKey, BaseURL: "https://" + apiKey + "\x7f"},
		"key beyond ASCII":     {APIKey: "SG.ü"},
		"key with blank space": {APIKey: "SG. x"},
	} {
		_, err := sendgrid.New(c)
		if err == nil {
			t.Errorf("%s was taken", name)
			continue
		}
		if strings.Contains(err.Error(), "SG.") {
			t.Errorf("%s: the error quotes the key: %v", name, err)
		}
	}
}
