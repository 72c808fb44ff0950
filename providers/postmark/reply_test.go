package postmark_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/postmark"
	"github.com/outboxd/outboxd/providers/providertest"
)

// start returns an adapter and the provider it talks to, which answers as
// respond says.
func start(t *testing.T, c postmark.Config, respond func(providertest.Seen) providertest.Reaction) (*postmark.Provider, *providertest.HTTP) {
	t.Helper()
	server := providertest.NewHTTP(t, providertest.Postmark)
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
//   - accepted, search: https://postmarkapp.com/developer/api/email-api,
//     https://postmarkapp.com/developer/api/messages-api
//   - accepted-partly, refused-inactive: the wording that anymail parses
//     (anymail/django-anymail, anymail/backends/postmark.py)
//   - accepted-delayed: anymail/django-anymail#392
//   - refused-token: PipedreamHQ/pipedream#10254
//   - refused-sender, maintenance: https://postmarkapp.com/developer/api/overview
//   - refused-metadata: dittofeed/dittofeed#1759
func TestRecordedReplies(t *testing.T) {
	t.Parallel()
	const accepted = "accepted"
	tests := []struct {
		file   string
		status int
		want   string
		code   string
		id     string
	}{
		{"accepted.json", 200, accepted, "", "0a129aee-e1cd-480d-b08d-4f48548ff48d"},
		{"accepted-partly.json", 200, accepted, "", "0a129aee-e1cd-480d-b08d-4f48548ff48d"},
		{"accepted-delayed.json", 200, accepted, "", "38360f97-ff7f-44b2-bcd1-5ea94ff2af00"},
		{"accepted.json", 202, accepted, "", "0a129aee-e1cd-480d-b08d-4f48548ff48d"}, // F3
		{"refused-token.json", 401, "misconfigured", "10", ""},
		{"refused-sender.json", 422, "deferred", "400", ""},
		{"refused-inactive.json", 422, "rejected", "406", ""},
		{"refused-metadata.json", 422, "rejected", "300", ""},
		{"maintenance.json", 503, "deferred", "100", ""},
		// A success that says otherwise is none (F2).
		{"refused-inactive.json", 200, "rejected", "406", ""},
		{"maintenance.json", 200, "in_doubt", "100", ""},
		// A known code under another status says nothing.
		{"refused-inactive.json", 500, "in_doubt", "406", ""},
		{"refused-sender.json", 503, "in_doubt", "400", ""},
		{"maintenance.json", 500, "in_doubt", "100", ""},
		{"maintenance.json", 422, "rejected", "100", ""},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			t.Parallel()
			p, _ := start(t, postmark.Config{}, always(providertest.Reply(tt.status, recorded(t, tt.file))))
			receipt, err := p.Send(t.Context(), sending(t, p, 1))
			if tt.want == accepted {
				if want := (providers.Receipt{Status: tt.status, ProviderMessageID: tt.id}); err != nil || receipt != want {
					t.Errorf("%d: got %+v, %v, want %+v", tt.status, receipt, err, want)
				}
				return
			}
			e := providers.AsError(err)
			if err == nil || e.Outcome.String() != tt.want || e.Status != tt.status || e.Code != tt.code || e.Detail == "" {
				t.Errorf("%d: got %+v, want %s %s", tt.status, e, tt.want, tt.code)
			}
		})
	}
}

// All codes that a send can meet, under the status that they come with.
func TestErrorCodes(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]providers.Outcome{
		`{"ErrorCode":10}`:  providers.Misconfigured,
		`{"ErrorCode":300}`: providers.Rejected,
		`{"ErrorCode":400}`: providers.Deferred,
		`{"ErrorCode":401}`: providers.Deferred,
		`{"ErrorCode":402}`: providers.Rejected,
		`{"ErrorCode":403}`: providers.Rejected,
		`{"ErrorCode":405}`: providers.Misconfigured,
		`{"ErrorCode":406}`: providers.Rejected,
		`{"ErrorCode":409}`: providers.Rejected,
		`{"ErrorCode":411}`: providers.Rejected,
		`{"ErrorCode":412}`: providers.Misconfigured,
		`{"ErrorCode":413}`: providers.Misconfigured,
		`{"ErrorCode":429}`: providers.Deferred,
		`{"ErrorCode":998}`: providers.Rejected, // the status decides
		`{"ErrorCode":"?"}`: providers.Rejected,
		``:                  providers.Rejected,
	} {
		p, server := start(t, postmark.Config{}, always(providertest.Reply(422, body)))
		_, err := p.Send(t.Context(), sending(t, p, 1))
		if e := providers.AsError(err); err == nil || e.Outcome != want || len(server.Accepted()) != 0 {
			t.Errorf("%s: %v, want %v", body, err, want)
		}
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body, code, detail string
	}{
		{"no JSON", "<html>oops\xff</html>", "", "<html>oops</html>"},
		{"empty", "", "", ""},
		{"long", strings.Repeat("x", 600), "", strings.Repeat("x", 500)},
		{"quotes the token", `{"ErrorCode":300,"Message":"` + token + ` is bad"}`, "300", "[redacted] is bad"},
		{"quotes the token as it is", "bad token " + token, "", "bad token [redacted]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, _ := start(t, postmark.Config{}, always(providertest.Reply(422, tt.body)))
			_, err := p.Send(t.Context(), sending(t, p, 1))
			if e := providers.AsError(err); err == nil || e.Code != tt.code || e.Detail != tt.detail {
				t.Errorf("got %+v, want %q %q", e, tt.code, tt.detail)
			}
		})
	}
}

func TestRateLimited(t *testing.T) {
	t.Parallel()
	p, _ := start(t, postmark.Config{}, always(providertest.Reply(429, "").With("Retry-After", "90")))
	_, err := p.Send(t.Context(), sending(t, p, 1))
	if e := providers.AsError(err); err == nil || e.Outcome != providers.Deferred || e.RetryAfter != 90*time.Second {
		t.Errorf("got %+v, want deferred for 90 s", e)
	}
}

func TestSend(t *testing.T) {
	t.Parallel()
	for sandbox, wantToken := range map[bool]string{false: token, true: "POSTMARK_API_TEST"} {
		p, server := start(t, postmark.Config{Sandbox: sandbox}, nil)
		s := sending(t, p, 1)
		got, err := p.Send(t.Context(), s)
		if want := (providers.Receipt{Status: 200, ProviderMessageID: "postmark-1"}); err != nil || got != want {
			t.Errorf("sandbox %v: got %+v, %v, want %+v", sandbox, got, err, want)
		}
		seen := server.Seen()[0]
		for name, value := range map[string]string{
			"X-Postmark-Server-Token": wantToken, "Content-Type": "application/json", "Idempotency-Key": "",
		} {
			if got := seen.Header.Get(name); got != value {
				t.Errorf("%s: %q, want %q", name, got, value)
			}
		}
		if seen.Path != "/email" || seen.Reference != s.Key {
			t.Errorf("path %s, reference %q", seen.Path, seen.Reference)
		}
	}
}

// F6: an accepted message stays accepted when its id cannot be read, or could
// not be stored.
func TestReceiptWithoutID(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"empty": "", "no JSON": "<html>", "array": "[1]", "no id": "{}", "id is a number": `{"MessageID":7}`,
		"NUL": `{"MessageID":"a\u0000b"}`, "not ASCII": `{"MessageID":"ü"}`,
		"long": `{"MessageID":"` + strings.Repeat("a", 257) + `"}`,
	} {
		p, _ := start(t, postmark.Config{}, always(providertest.Accept().Then(providertest.Reply(200, body))))
		got, err := p.Send(t.Context(), sending(t, p, 1))
		if want := (providers.Receipt{Status: 200}); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]postmark.Config{
		"no token":              {},
		"token with a line end": {ServerToken: "pm\n"},
		"no URL":                {ServerToken: token, BaseURL: "api.postmarkapp.com"},
	} {
		if _, err := postmark.New(c); err == nil || !strings.HasPrefix(err.Error(), "postmark: ") || strings.Contains(err.Error(), "pm\n") {
			t.Errorf("%s: %v, want an error", name, err)
		}
	}
	p, err := postmark.New(postmark.Config{Sandbox: true})
	if err != nil {
		t.Errorf("the sandbox needs no token: %v", err)
	}
	if p.Name() != "postmark" || p.Capabilities().MaxRecipients != 50 || p.Capabilities().KeyWindow != 0 {
		t.Errorf("%s: %+v", p.Name(), p.Capabilities())
	}
}
