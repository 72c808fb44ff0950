package providertest_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers/providertest"
)

const goodMail = `{
	"personalizations":[{"to":[{"email":"a@example.org"}]}],
	"from":{"email":"s@example.com"},"subject":"s",
	"content":[{"type":"text/plain","value":"x"}],
	"custom_args":{"outboxd_attempt":"key-1"}
}`

// postMail posts body with a key and returns the reply's status and body.
func postMail(t *testing.T, url, body string) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer key")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

// The service's own rules hold without a script: an adapter that breaks them
// fails its tests and not in production.
func TestSendGridRules(t *testing.T) {
	t.Parallel()
	edit := func(old, with string) string { return strings.Replace(goodMail, old, with, 1) }
	tests := []struct {
		name, path, body string
		want             int
	}{
		{"good", "/v3/mail/send", goodMail, 202},
		{"sandbox", "/v3/mail/send", edit(`"subject"`, `"mail_settings":{"sandbox_mode":{"enable":true}},"subject"`), 200},
		{"other path", "/v3/other", goodMail, 404},
		{"no JSON", "/v3/mail/send", "x", 400},
		{"nobody", "/v3/mail/send", edit(`{"email":"a@example.org"}`, ""), 400},
		{"empty subject", "/v3/mail/send", edit(`"subject":"s"`, `"subject":""`), 400},
		{"empty content", "/v3/mail/send", edit(`"value":"x"`, `"value":""`), 400},
		{"address twice (F40)", "/v3/mail/send", edit(`}]}],`, `}],"cc":[{"email":"A@example.org"}]}],`), 400},
		{"empty file", "/v3/mail/send", edit(`"subject"`, `"attachments":[{"filename":"a","type":"a/b"}],"subject"`), 400},
		{"type with parameters", "/v3/mail/send", edit(`"subject"`, `"attachments":[{"content":"eA==","filename":"a","type":"a/b; c=d"}],"subject"`), 400},
		{"good file", "/v3/mail/send", edit(`"subject"`, `"attachments":[{"content":"eA==","filename":"a","type":"a/b"}],"subject"`), 202},
		{"11 categories", "/v3/mail/send", edit(`"subject"`, `"categories":["1","2","3","4","5","6","7","8","9","10","11"],"subject"`), 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := providertest.NewHTTP(t, providertest.SendGrid)
			resp, text, err := postMail(t, p.URL()+tt.path, tt.body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.want {
				t.Errorf("status %d %s, want %d", resp.StatusCode, text, tt.want)
			}
			if accepted := len(p.Accepted()) == 1; accepted != (tt.want < 300) {
				t.Errorf("accepted: %v with status %d", accepted, resp.StatusCode)
			}
		})
	}
}

func TestHTTPRecords(t *testing.T) {
	t.Parallel()
	p, err := providertest.StartHTTP("127.0.0.1:0", providertest.SendGrid)
	if err != nil {
		t.Fatal(err)
	}
	var logged []string
	p.OnAccept(func(a providertest.Accepted) { logged = append(logged, a.Reference) })
	p.Respond(func(r providertest.Seen) providertest.Reaction {
		if r.Number == 1 {
			return providertest.Reply(429, "slow down").With("Retry-After", "7")
		}
		return providertest.Accept().Then(providertest.Reply(500, "lost"))
	})
	resp, text, err := postMail(t, p.URL()+"/v3/mail/send", goodMail)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests || text != "slow down" || resp.Header.Get("Retry-After") != "7" {
		t.Errorf("first: %v %q %v, want the scripted 429", resp, text, err)
	}
	resp, text, err = postMail(t, p.URL()+"/v3/mail/send", goodMail)
	if err != nil || resp.StatusCode != http.StatusInternalServerError || text != "lost" {
		t.Errorf("second: %v %q %v, want the scripted 500", resp, text, err)
	}
	p.Close()
	p.Close() // twice is fine
	accepted := p.Accepted()
	if len(accepted) != 1 || accepted[0].Reference != "key-1" || string(accepted[0].Body) != goodMail || accepted[0].Path != "/v3/mail/send" {
		t.Errorf("accepted %+v, want the second request", accepted)
	}
	if len(logged) != 1 || logged[0] != "key-1" {
		t.Errorf("the hook saw %v, want key-1", logged)
	}
	if seen := p.Seen(); len(seen) != 2 || seen[0].Reference != "key-1" || !seen[1].Complete {
		t.Errorf("seen %+v, want both requests", seen)
	}
	if _, err := providertest.StartHTTP("not an address", providertest.SendGrid); err == nil {
		t.Error("started on an address that is none")
	}
}

func TestHTTPForgetsBodies(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.SendGrid)
	p.ForgetBodies()
	if _, _, err := postMail(t, p.URL()+"/v3/mail/send", goodMail); err != nil {
		t.Fatal(err)
	}
	if a, s := p.Accepted()[0], p.Seen()[0]; a.Body != nil || s.Body != nil || a.Reference != "key-1" {
		t.Errorf("%+v, %+v: want the reference and no body", a, s)
	}
}

func TestHTTPHangs(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.SendGrid)
	p.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Accept().Then(providertest.Hang()) })
	done := make(chan error, 1)
	go func() {
		_, _, err := postMail(t, p.URL()+"/v3/mail/send", goodMail)
		done <- err
	}()
	if err := p.WaitAccepted(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	p.Close()
	if err := <-done; err == nil {
		t.Error("an answer came, want none")
	}
}
