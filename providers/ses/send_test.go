package ses_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/ses"
)

// start returns an adapter and the provider it talks to, which answers as
// respond says.
func start(t *testing.T, respond func(providertest.Seen) providertest.Reaction, edit ...func(*ses.Config)) (*ses.Provider, *providertest.HTTP) {
	t.Helper()
	server := providertest.NewHTTP(t, providertest.SES)
	server.Respond(respond)
	return newProvider(t, server.URL(), edit...), server
}

func always(r providertest.Reaction) func(providertest.Seen) providertest.Reaction {
	return func(providertest.Seen) providertest.Reaction { return r }
}

// sending renders a message with recipients and tags of every kind.
func sending(t *testing.T, p providers.Provider) providers.Sending {
	t.Helper()
	r := providertest.Request(1)
	r.Message.Cc = []providers.Address{{Name: "C", Email: "cc@example.org"}}
	r.Message.Bcc = []providers.Address{{Email: "bcc@example.org"}}
	r.Message.Tags = []providers.Tag{{Name: "campaign", Value: "spring"}}
	payload, err := p.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	return providers.Sending{Request: r, Payload: payload}
}

func TestSendRequest(t *testing.T) {
	t.Parallel()
	p, server := start(t, nil, func(c *ses.Config) { c.ConfigurationSet = "events" })
	s := sending(t, p)
	got, err := p.Send(t.Context(), s)
	if want := (providers.Receipt{Status: 200, ProviderMessageID: "ses-1"}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	seen := server.Seen()[0]
	var body any
	if err := json.Unmarshal(seen.Body, &body); err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(s.Payload) // base64
	if err != nil {
		t.Fatal(err)
	}
	var want any
	text := `{
		"ConfigurationSetName": "events",
		"Content": {"Raw": {"Data": ` + string(encoded) + `}},
		"Destination": {
			"ToAddresses": ["to-1@example.org"], "CcAddresses": ["cc@example.org"], "BccAddresses": ["bcc@example.org"]
		},
		"EmailTags": [
			{"Name": "outboxd_attempt", "Value": "` + s.Key + `"}, {"Name": "campaign", "Value": "spring"}
		]
	}`
	if err := json.Unmarshal([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	authorization := seen.Header.Get("Authorization")
	if !strings.HasPrefix(authorization, "AWS4-HMAC-SHA256 Credential="+accessKey+"/") ||
		!strings.Contains(authorization, "/eu-west-1/ses/aws4_request") {
		t.Errorf("Authorization %q", authorization)
	}
	if token := seen.Header.Get("X-Amz-Security-Token"); token != sessionToken {
		t.Errorf("X-Amz-Security-Token %q", token)
	}
}

// I8: a second send of the attempt has the same bytes, signed anew.
func TestSendAgainIsTheSameBody(t *testing.T) {
	t.Parallel()
	p, server := start(t, nil)
	s := sending(t, p)
	for range 2 {
		if _, err := p.Send(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	seen := server.Seen()
	if string(seen[0].Body) != string(seen[1].Body) {
		t.Errorf("bodies differ:\n%s\n%s", seen[0].Body, seen[1].Body)
	}
}

// F6: an accepted message stays accepted when its id cannot be read, or could
// not be stored.
func TestSendReceiptWithoutID(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"empty": "", "no JSON": "<html>", "array": "[1]", "no id": "{}", "id is a number": `{"MessageId":7}`,
		"cut short": `{"MessageId":"0102`, "NUL": `{"MessageId":"a\u0000b"}`, "not ASCII": `{"MessageId":"ü"}`,
		"long": `{"MessageId":"` + strings.Repeat("a", 257) + `"}`,
	} {
		p, _ := start(t, always(providertest.Accept().Then(providertest.Reply(200, body))))
		got, err := p.Send(t.Context(), sending(t, p))
		if want := (providers.Receipt{Status: 200}); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
	}
}

// The replies in testdata, byte for byte as they come over the wire.
func TestSendRecordedReplies(t *testing.T) {
	t.Parallel()
	const quota, rate = 10 * time.Minute, 2 * time.Second
	tests := []struct {
		reply string
		want  string
		code  string
		wait  time.Duration
	}{
		{"accepted", "accepted", "", 0},
		{"message_rejected", "rejected", "MessageRejected", 0},
		{"bad_request", "rejected", "BadRequest", 0},
		{"not_verified", "deferred", "MessageRejected", 0},
		{"domain_not_verified", "deferred", "MailFromDomainNotVerified", 0},
		{"account_suspended", "misconfigured", "AccountSuspended", 0},
		{"sending_paused", "misconfigured", "SendingPaused", 0},
		{"configuration_set", "misconfigured", "NotFound", 0},
		{"expired_token", "misconfigured", "ExpiredToken", 0},
		{"unrecognized_client", "misconfigured", "UnrecognizedClient", 0},
		{"access_denied", "misconfigured", "AccessDenied", 0},
		{"limit_exceeded", "deferred", "LimitExceeded", quota},
		{"daily_quota", "deferred", "Throttling", quota},
		{"too_many_requests", "deferred", "TooManyRequests", rate},
		{"internal_failure", "in_doubt", "InternalFailure", 0},
		{"unavailable", "in_doubt", "ServiceUnavailable", 0},
	}
	names, err := filepath.Glob("testdata/*.http")
	if err != nil || len(names) != len(tests) {
		t.Errorf("%d replies in testdata, and %d are tested: %v", len(names), len(tests), err)
	}
	for _, tt := range tests {
		t.Run(tt.reply, func(t *testing.T) {
			t.Parallel()
			recorded, err := os.ReadFile("testdata/" + tt.reply + ".http")
			if err != nil {
				t.Fatal(err)
			}
			p, server := start(t, always(providertest.Raw(string(recorded))))
			receipt, err := p.Send(t.Context(), sending(t, p))
			if n := server.Requests(); n != 1 {
				t.Errorf("%d requests on the wire, want 1 (F19)", n)
			}
			if tt.want == "accepted" {
				if err != nil || receipt.ProviderMessageID != "0102019a1b2c3d4e-5f607182-93a4-b5c6-d7e8-f90a1b2c3d4e-000000" {
					t.Errorf("got %+v, %v", receipt, err)
				}
				return
			}
			e := providers.AsError(err)
			if err == nil || e.Outcome.String() != tt.want || e.Code != tt.code || e.RetryAfter != tt.wait || e.Detail == "" {
				t.Errorf("got %+v, want %s %s with a wait of %v", e, tt.want, tt.code, tt.wait)
			}
		})
	}
}

func failure(status int, code, message string) providertest.Reaction {
	return providertest.Reply(status, `{"message":"`+message+`"}`).With("X-Amzn-ErrorType", code)
}

// What the recorded replies leave open.
func TestSendErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		reply providertest.Reaction
		want  providers.Outcome
		code  string
		wait  time.Duration
	}{
		{"code in the body", providertest.Reply(400, `{"__type":"com.amazonaws.ses#MessageRejected","message":"x"}`), providers.Rejected, "MessageRejected", 0},
		{"a 400 of an unknown code", failure(400, "AccountInOrbitException", "x"), providers.Deferred, "AccountInOrbit", 0},
		{"a 400 without a code", providertest.Reply(400, "<html>"), providers.Deferred, "", 0},
		{"aborted, who knows where", failure(400, "RequestAbortedException", "x"), providers.InDoubt, "RequestAborted", 0},
		{"a clock that is wrong", failure(400, "RequestExpired", "x"), providers.Misconfigured, "RequestExpired", 0},
		{"a signature that is wrong", failure(403, "InvalidSignatureException", "x"), providers.Misconfigured, "InvalidSignature", 0},
		{"throttled for the rate", failure(400, "ThrottlingException", "Maximum sending rate exceeded."), providers.Deferred, "Throttling", 2 * time.Second},
		{"429 for the day", failure(429, "TooManyRequestsException", "Daily message quota exceeded"), providers.Deferred, "TooManyRequests", 10 * time.Minute},
		{"429 with a header", failure(429, "TooManyRequestsException", "x").With("Retry-After", "60"), providers.Deferred, "TooManyRequests", time.Minute},
		// A known code under another status says nothing.
		{"500 with a known code", failure(500, "MessageRejected", "x"), providers.InDoubt, "MessageRejected", 0},
		{"503 with a known code", failure(503, "ThrottlingException", "x"), providers.InDoubt, "Throttling", 0},
		{"redirect", providertest.Reply(302, ""), providers.InDoubt, "", 0},
		{"the key for a code", failure(400, accessKey, "x"), providers.Deferred, "[redacted]", 0},
		{"a code that is none", failure(400, "Bad code 1", "x"), providers.Deferred, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, server := start(t, always(tt.reply))
			_, err := p.Send(t.Context(), sending(t, p))
			e := providers.AsError(err)
			if err == nil || e.Outcome != tt.want || e.Code != tt.code || e.RetryAfter != tt.wait {
				t.Errorf("got %+v, want %v %q with a wait of %v", e, tt.want, tt.code, tt.wait)
			}
			if n := server.Requests(); n != 1 {
				t.Errorf("%d requests on the wire, want 1", n)
			}
		})
	}
}

func TestSendErrorTextIsRedacted(t *testing.T) {
	t.Parallel()
	p, server := start(t, func(r providertest.Seen) providertest.Reaction {
		return failure(403, "InvalidSignatureException", accessKey+" "+r.Header.Get("X-Amz-Security-Token")+" "+r.Header.Get("Authorization"))
	})
	_, err := p.Send(t.Context(), sending(t, p))
	_, signature, _ := strings.Cut(server.Seen()[0].Header.Get("Authorization"), "Signature=")
	e := providers.AsError(err)
	for _, secret := range []string{accessKey, sessionToken, signature} {
		if strings.Contains(e.Detail, secret) {
			t.Errorf("%q quotes %s", e.Detail, secret)
		}
	}
	if !strings.Contains(e.Detail, "[redacted]") {
		t.Errorf("detail %q", e.Detail)
	}
}

// find is a source of credentials that does what it says.
type find func(context.Context) (aws.Credentials, error)

func (f find) Retrieve(ctx context.Context) (aws.Credentials, error) { return f(ctx) }

func TestSendWithoutCredentials(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]struct {
		find find
		want string
	}{
		"none": {func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{}, errors.New("process printed " + secretKey)
		}, ""},
		"empty": {func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, nil }, ""},
		"refused": {func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{}, &smithy.GenericAPIError{Code: "AccessDenied", Message: secretKey}
		}, "AccessDenied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, server := start(t, nil, func(c *ses.Config) { c.Credentials = source.find })
			_, err := p.Send(t.Context(), sending(t, p))
			e := providers.AsError(err)
			if err == nil || e.Outcome != providers.Misconfigured || e.Code != "no_credentials" {
				t.Errorf("got %v, want misconfigured no_credentials", err)
			}
			if !strings.Contains(e.Error(), source.want) || strings.Contains(e.Error(), secretKey) {
				t.Errorf("error %q", e)
			}
			if n := server.Requests(); n != 0 {
				t.Errorf("%d requests on the wire, want none", n)
			}
		})
	}
}

// A laptop's network does not answer for a role: the search ends by itself.
func TestSearchForCredentialsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		defer close(over)
		p := newProvider(t, "http://127.0.0.1:1", func(c *ses.Config) {
			c.Credentials = find(func(context.Context) (aws.Credentials, error) {
				<-over // deaf to the context, as a dial may be
				return aws.Credentials{}, errors.New("nobody there")
			})
		})
		began := time.Now()
		_, err := p.Send(t.Context(), sending(t, p))
		if e := providers.AsError(err); e.Outcome != providers.Misconfigured || e.Code != "no_credentials" {
			t.Errorf("got %v, want misconfigured no_credentials", err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it took %v, want 5s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Send(ctx, sending(t, p)); providers.AsError(err).Outcome != providers.Deferred || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want deferred by the caller's context", err)
		}
	})
}

// A role's credentials expire; the next send looks for them again.
func TestCredentialsAreRenewed(t *testing.T) {
	t.Parallel()
	asked := 0
	p, server := start(t, nil, func(c *ses.Config) {
		c.Credentials = find(func(context.Context) (aws.Credentials, error) {
			asked++
			return aws.Credentials{
				AccessKeyID: strings.Repeat("A", asked), SecretAccessKey: secretKey,
				CanExpire: true, Expires: time.Now().Add(-time.Second),
			}, nil
		})
	})
	for range 2 {
		if _, err := p.Send(t.Context(), sending(t, p)); err != nil {
			t.Fatal(err)
		}
	}
	for i, seen := range server.Seen() {
		if want := "Credential=" + strings.Repeat("A", i+1) + "/"; !strings.Contains(seen.Header.Get("Authorization"), want) {
			t.Errorf("request %d: %s, want %s in it", i, seen.Header.Get("Authorization"), want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	source := find(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, nil })
	for name, endpoint := range map[string]string{
		"no scheme": "email.eu-west-1.amazonaws.com", "other scheme": "ftp://x", "query": "https://x?y=1",
		"credentials": "https://u:" + secretKey + "@x", "malformed": "https://" + secretKey + "\x7f",
	} {
		_, err := ses.New(ses.Config{Region: "eu-west-1", Credentials: source, EndpointURL: endpoint})
		if err == nil {
			t.Errorf("%s was taken", name)
			continue
		}
		if strings.Contains(err.Error(), secretKey) {
			t.Errorf("%s: the error quotes the URL: %v", name, err)
		}
	}
	if _, err := ses.New(ses.Config{Region: "eu-west-1", Credentials: source, HTTPClient: http.DefaultClient}); err != nil {
		t.Errorf("the region's own endpoint was refused: %v", err)
	}
}
