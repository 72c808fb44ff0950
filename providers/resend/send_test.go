package resend_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/resend"
)

// start returns an adapter and the provider it talks to, which answers as
// respond says.
func start(t *testing.T, respond func(providertest.Seen) providertest.Reaction) (*resend.Provider, *providertest.HTTP) {
	t.Helper()
	server := providertest.NewHTTP(t, providertest.Resend)
	server.Respond(respond)
	return newProvider(t, server.URL()), server
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

func TestSendReceipt(t *testing.T) {
	t.Parallel()
	p, server := start(t, nil)
	s := sending(t, p, 1)
	got, err := p.Send(t.Context(), s)
	if want := (providers.Receipt{Status: 200, ProviderMessageID: "resend-1"}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	seen := server.Seen()[0]
	for name, value := range map[string]string{
		"Authorization": "Bearer " + apiKey, "Content-Type": "application/json", "Idempotency-Key": s.Key,
	} {
		if got := seen.Header.Values(name); len(got) != 1 || got[0] != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
	if seen.Path != "/emails" || seen.Reference != s.Key {
		t.Errorf("path %s, reference %q", seen.Path, seen.Reference)
	}
}

// F6: an accepted message stays accepted when its id cannot be read, or could
// not be stored.
func TestSendReceiptWithoutID(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"empty": "", "no JSON": "<html>", "array": "[1]", "no id": "{}", "id is a number": `{"id":7}`,
		"NUL": `{"id":"a\u0000b"}`, "line end": `{"id":"a\nb"}`, "not ASCII": `{"id":"ü"}`,
		"long": `{"id":"` + strings.Repeat("a", 257) + `"}`,
	} {
		p, _ := start(t, always(providertest.Accept().Then(providertest.Reply(200, body))))
		got, err := p.Send(t.Context(), sending(t, p, 1))
		if want := (providers.Receipt{Status: 200}); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
	}
}

func failure(status int, name, message string) providertest.Reaction {
	return providertest.Reply(status, fmt.Sprintf(`{"statusCode":%d,"name":%q,"message":%q}`, status, name, message))
}

// The errors of https://resend.com/docs/api-reference/errors that a send can
// meet, in its order.
func TestSendErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status        int
		name, message string
		want          providers.Outcome
		wait          time.Duration
	}{
		{400, "invalid_idempotency_key", "Idempotency keys, if present, must have ...", providers.Rejected, 0},
		{400, "validation_error", "An error was found with one or more fields in the request.", providers.Rejected, 0},
		{400, "validation_error", "API key is invalid", providers.Misconfigured, 0},
		{401, "missing_api_key", "Missing API Key", providers.Misconfigured, 0},
		{401, "restricted_api_key", "This API key is restricted to only send emails.", providers.Misconfigured, 0},
		{401, "validation_error", "API key is invalid", providers.Misconfigured, 0},
		{403, "invalid_api_key", "API key is invalid", providers.Misconfigured, 0},
		{403, "validation_error", "The domain.com domain is not verified.", providers.Deferred, 0},
		{404, "not_found", "The requested endpoint does not exist.", providers.Misconfigured, 0},
		{405, "method_not_allowed", "Method is not allowed for the requested path.", providers.Misconfigured, 0},
		{409, "invalid_idempotent_request", "Same idempotency key used with a different request payload.", providers.InDoubt, 0},
		{409, "concurrent_idempotent_requests", "Same idempotency key used while ...", providers.InDoubt, 3 * time.Second},
		{422, "invalid_attachment", "Attachment must have either a content or path.", providers.Rejected, 0},
		{422, "missing_required_field", "The request body is missing ...", providers.Rejected, 0},
		{422, "validation_error", "API key is invalid is not a subject", providers.Rejected, 0},
		{429, "rate_limit_exceeded", "Too many requests.", providers.Deferred, 0},
		{429, "daily_quota_exceeded", "You have reached your daily email sending quota.", providers.Deferred, 30 * time.Minute},
		{429, "monthly_quota_exceeded", "You have reached your monthly email sending quota.", providers.Deferred, 2 * time.Hour},
		{451, "security_error", "We may have found a security issue with the request.", providers.Rejected, 0},
		{500, "application_error", "An unexpected error occurred.", providers.InDoubt, 0},
		{500, "internal_server_error", "An unexpected error occurred.", providers.InDoubt, 0},
		// A known name under another status says nothing.
		{500, "validation_error", "API key is invalid", providers.InDoubt, 0},
		{503, "rate_limit_exceeded", "Too many requests.", providers.InDoubt, 0},
		{409, "not_found", "", providers.InDoubt, 0},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.status, " ", tt.name), func(t *testing.T) {
			t.Parallel()
			p, server := start(t, always(failure(tt.status, tt.name, tt.message)))
			_, err := p.Send(t.Context(), sending(t, p, 1))
			e := providers.AsError(err)
			if err == nil || e.Outcome != tt.want || e.Status != tt.status || e.Code != tt.name || e.RetryAfter != tt.wait {
				t.Errorf("got %+v, want %v %s with a wait of %v", e, tt.want, tt.name, tt.wait)
			}
			if tt.message != "" && e.Detail != tt.message {
				t.Errorf("detail %q, want %q", e.Detail, tt.message)
			}
			if len(server.Accepted()) != 0 {
				t.Error("accepted")
			}
		})
	}
}

func TestSendErrorText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body, code, detail string
	}{
		{"no JSON", "<html>oops\xff</html>", "", "<html>oops</html>"},
		{"other JSON", `["oops"]`, "", `["oops"]`},
		{"empty", "", "", ""},
		{"long", strings.Repeat("x", 600), "", strings.Repeat("x", 500)},
		{"quotes the key", `{"name":"validation_error","message":"` + apiKey + ` is bad"}`, "validation_error", "[redacted] is bad"},
		{"the key for a name", `{"name":"` + apiKey + `","message":"x"}`, "[redacted]", "x"},
		{"a name that is none", `{"name":"Bad\u0000 name","message":"x"}`, "", "x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, _ := start(t, always(providertest.Reply(422, tt.body)))
			_, err := p.Send(t.Context(), sending(t, p, 1))
			e := providers.AsError(err)
			if err == nil || e.Outcome != providers.Rejected || e.Code != tt.code || e.Detail != tt.detail {
				t.Errorf("got %+v, want rejected %q %q", e, tt.code, tt.detail)
			}
		})
	}
}

func TestSendRateLimited(t *testing.T) {
	t.Parallel()
	limited := failure(429, "rate_limit_exceeded", "Too many requests.")
	quota := failure(429, "daily_quota_exceeded", "Too many emails.")
	tests := []struct {
		name  string
		reply providertest.Reaction
		want  time.Duration
	}{
		{"Retry-After", limited.With("Retry-After", "90"), 90 * time.Second},
		{"ratelimit-reset", limited.With("ratelimit-reset", "7"), 7 * time.Second},
		{"the longer of both", limited.With("Retry-After", "1").With("ratelimit-reset", "2"), 2 * time.Second},
		{"absurd", limited.With("ratelimit-reset", "999999999"), 24 * time.Hour},
		{"beyond an integer", limited.With("ratelimit-reset", "99999999999999999999"), 0},
		{"negative", limited.With("ratelimit-reset", "-5"), 0},
		{"nonsense", limited.With("ratelimit-reset", "soon"), 0},
		{"quota, longer than the rate limit", quota.With("Retry-After", "1"), 30 * time.Minute},
		{"quota, with a longer wait", quota.With("Retry-After", "7200"), 2 * time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, _ := start(t, always(tt.reply))
			_, err := p.Send(t.Context(), sending(t, p, 1))
			e := providers.AsError(err)
			if err == nil || e.Outcome != providers.Deferred || e.RetryAfter != tt.want {
				t.Errorf("got %+v, want deferred for %v", e, tt.want)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]resend.Config{
		"no key":               {},
		"key with a line end":  {APIKey: "re_x\n"},
		"no scheme":            {APIKey: apiKey, BaseURL: "api.resend.com"},
		"other scheme":         {APIKey: apiKey, BaseURL: "ftp://api.resend.com"},
		"credentials in URL":   {APIKey: apiKey, BaseURL: "https://u:" + apiKey + "@api.resend.com"},
		"query in URL":         {APIKey: apiKey, BaseURL: "https://api.resend.com?x=1"},
		"malformed URL":        {APIKey: apiKey, BaseURL: "https://" + apiKey + "\x7f"},
		"key beyond ASCII":     {APIKey: "re_ü"},
		"key with blank space": {APIKey: "re_ x"},
	} {
		_, err := resend.New(c)
		if err == nil {
			t.Errorf("%s was taken", name)
			continue
		}
		if strings.Contains(err.Error(), "re_") {
			t.Errorf("%s: the error quotes the key: %v", name, err)
		}
	}
	if _, err := resend.New(resend.Config{APIKey: apiKey, HTTPClient: http.DefaultClient}); err != nil {
		t.Errorf("the default base URL was refused: %v", err)
	}
}
