package providertest_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

const resendMail = `{
	"from":"Sender <s@example.com>","to":["a@example.org"],"subject":"s","text":"x",
	"tags":[{"name":"outboxd_attempt","value":"key-1"}]
}`

// postKeyed posts body under key, if there is one, and returns the reply's
// status and body. A broken connection is status 0.
func postKeyed(t *testing.T, p *providertest.HTTP, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL()+"/emails", io.NopCloser(strings.NewReader(body)))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	req.Header.Set("Authorization", "Bearer key")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func TestResendRules(t *testing.T) {
	t.Parallel()
	edit := func(old, with string) string { return strings.Replace(resendMail, old, with, 1) }
	attach := func(file string) string { return edit(`"text"`, `"attachments":[`+file+`],"text"`) }
	tests := []struct {
		name, key, body string
		want            int
		code            string
	}{
		{"good", "k", resendMail, 200, ""},
		{"no key", "", resendMail, 200, ""},
		{"long key", strings.Repeat("k", 257), resendMail, 400, "invalid_idempotency_key"},
		{"no JSON", "k", "x", 400, "validation_error"},
		{"nobody", "k", edit(`"a@example.org"`, ""), 422, "missing_required_field"},
		{"no subject", "k", edit(`"subject":"s"`, `"subject":""`), 422, "missing_required_field"},
		{"no body", "k", edit(`"text":"x"`, `"text":""`), 422, "validation_error"},
		{"51 recipients", "k", edit(`"a@example.org"`, `"a@example.org"`+strings.Repeat(`,"b@example.org"`, 50)), 422, "validation_error"},
		{"comma in From", "k", edit(`Sender`, `Sender, Inc.`), 422, "invalid_from_address"},
		{"encoded word in From", "k", edit(`Sender`, `=?utf-8?q?S=C3=A9?=`), 451, "security_error"},
		{"UTF-8 local part", "k", edit(`a@example.org`, `ä@example.org`), 422, "validation_error"},
		{"tag with a space", "k", edit(`"key-1"`, `"key 1"`), 422, "validation_error"},
		{"empty file", "k", attach(`{"filename":"a","content":""}`), 200, ""},
		{"file without content", "k", attach(`{"filename":"a"}`), 422, "invalid_attachment"},
		{"file that is not base64", "k", attach(`{"filename":"a","content":"!"}`), 422, "invalid_attachment"},
		{"long content id", "k", attach(`{"filename":"a","content":"","content_id":"` + strings.Repeat("c", 128) + `"}`), 422, "invalid_attachment"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := providertest.NewHTTP(t, providertest.Resend)
			status, text := postKeyed(t, p, tt.key, tt.body)
			if status != tt.want || !strings.Contains(text, tt.code) {
				t.Errorf("status %d %s, want %d %s", status, text, tt.want, tt.code)
			}
			if accepted := len(p.Accepted()) == 1; accepted != (tt.want < 300) {
				t.Errorf("accepted: %v with status %d", accepted, status)
			}
		})
	}
}

// Whatever became of the first reply: the second request gets it, and there is
// one message.
func TestResendReplays(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]providertest.Reaction{
		"answered":                 providertest.Accept(),
		"accepted, reset":          providertest.Accept().Then(providertest.Reset()),
		"accepted, 500":            providertest.Accept().Then(providertest.Reply(500, "")),
		"accepted, garbage":        providertest.Accept().Then(providertest.Raw("x\r\n")),
		"accepted, late and reset": providertest.Accept().Late(time.Millisecond).Then(providertest.Reset()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := providertest.NewHTTP(t, providertest.Resend)
			p.Respond(func(r providertest.Seen) providertest.Reaction {
				if r.Number == 1 {
					return first
				}
				return providertest.Accept()
			})
			postKeyed(t, p, "k", resendMail)
			status, text := postKeyed(t, p, "k", resendMail)
			if status != 200 || text != `{"id":"resend-1"}` {
				t.Errorf("replay: %d %s, want the first reply", status, text)
			}
			if status, text = postKeyed(t, p, "k", strings.Replace(resendMail, `"x"`, `"y"`, 1)); status != 409 ||
				!strings.Contains(text, "invalid_idempotent_request") {
				t.Errorf("other body: %d %s, want a conflict", status, text)
			}
			if accepted := p.Accepted(); len(accepted) != 1 || accepted[0].Reference != "key-1" {
				t.Errorf("accepted %+v, want one message", accepted)
			}
			want := []providertest.Replay{{Request: 2, Reference: "key-1", ID: "resend-1"}}
			if got := p.Replays(); !slices.Equal(got, want) {
				t.Errorf("replays %+v, want %+v", got, want)
			}
		})
	}
}

// A client that hangs holds no key: the service has done its work.
func TestResendReplaysWhileTheFirstClientHangs(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.Resend)
	p.Respond(func(r providertest.Seen) providertest.Reaction {
		if r.Number == 1 {
			return providertest.Accept().Then(providertest.Hang())
		}
		return providertest.Accept()
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		postKeyed(t, p, "k", resendMail)
	}()
	if err := p.WaitAccepted(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	status, text := postKeyed(t, p, "k", resendMail)
	for status == 409 { // for a moment after the message was accepted
		status, text = postKeyed(t, p, "k", resendMail)
	}
	if status != 200 || len(p.Accepted()) != 1 {
		t.Errorf("%d %s with %d messages, want the first reply", status, text, len(p.Accepted()))
	}
	p.Close()
	<-done
}

func TestResendConcurrentRequests(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.Resend)
	released := make(chan struct{})
	p.Respond(func(r providertest.Seen) providertest.Reaction {
		if r.Number == 1 {
			return providertest.Accept().When(released)
		}
		return providertest.Accept()
	})
	first := make(chan int)
	go func() {
		status, _ := postKeyed(t, p, "k", resendMail)
		first <- status
	}()
	if err := p.WaitAccepted(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	status, text := postKeyed(t, p, "k", resendMail)
	if status != 409 || !strings.Contains(text, "concurrent_idempotent_requests") {
		t.Errorf("while the first is processed: %d %s, want a conflict", status, text)
	}
	if status, text = postKeyed(t, p, "other", resendMail); status != 200 {
		t.Errorf("another key: %d %s", status, text)
	}
	close(released)
	if status := <-first; status != 200 {
		t.Errorf("first: %d", status)
	}
	if status, text = postKeyed(t, p, "k", resendMail); status != 200 || text != `{"id":"resend-1"}` {
		t.Errorf("afterwards: %d %s, want the first reply", status, text)
	}
	if n := len(p.Accepted()); n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
}

// What a service refuses leaves no key, and neither does what never reached it.
func TestResendRefusalsLeaveNoKey(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.Resend)
	p.Respond(func(r providertest.Seen) providertest.Reaction {
		switch r.Number {
		case 1:
			return providertest.Reply(429, "")
		case 2:
			return providertest.Reset()
		}
		return providertest.Accept()
	})
	for i, want := range []int{429, 0, 200} {
		if status, text := postKeyed(t, p, "k", resendMail); status != want {
			t.Errorf("request %d: %d %s, want %d", i+1, status, text, want)
		}
	}
	if n := len(p.Replays()); n != 0 {
		t.Errorf("%d replays, want none", n)
	}
}

func TestResendForgetsKeys(t *testing.T) {
	t.Parallel()
	p := providertest.NewHTTP(t, providertest.Resend)
	send := func(body string, want int) {
		t.Helper()
		if status, text := postKeyed(t, p, "k", body); status != want {
			t.Errorf("%d %s, want %d", status, text, want)
		}
	}
	other := strings.Replace(resendMail, `"x"`, `"y"`, 1)
	send(resendMail, 200)
	send(other, 409)
	p.SetKeyWindow(0)
	send(other, 200) // a new message
	p.SetKeyWindow(time.Hour)
	send(resendMail, 409) // the key is the new message's now
	if n := len(p.Accepted()); n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
}
