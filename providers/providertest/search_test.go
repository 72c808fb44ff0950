package providertest_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

// do makes a request and returns the reply's status and body. A broken
// connection is status 0.
func do(t *testing.T, req *http.Request) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func request(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

const postmarkMail = `{
	"From":"Sender <s@example.com>","To":"a@example.org","Subject":"s","TextBody":"x",
	"Metadata":{"outboxd_attempt":"key-1"}
}`

func postPostmark(t *testing.T, p *providertest.HTTP, token, body string) (int, string) {
	t.Helper()
	req := request(t, http.MethodPost, p.URL()+"/email", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Postmark-Server-Token", token)
	return do(t, req)
}

func TestPostmarkRules(t *testing.T) {
	t.Parallel()
	edit := func(old, with string) string { return strings.Replace(postmarkMail, old, with, 1) }
	attach := func(file string) string { return edit(`"TextBody"`, `"Attachments":[`+file+`],"TextBody"`) }
	tests := []struct {
		name, token, body string
		want              int
		code              string
	}{
		{"good", "t", postmarkMail, 200, `"ErrorCode":0`},
		{"no token", "", postmarkMail, 401, `"ErrorCode":10`},
		{"no JSON", "t", "x", 422, `"ErrorCode":402`},
		{"nobody", "t", edit("a@example.org", ""), 422, `"ErrorCode":300`},
		{"no body", "t", edit(`"TextBody":"x"`, `"TextBody":""`), 422, `"ErrorCode":300`},
		{"large body", "t", edit(`"TextBody":"x"`, `"TextBody":"`+strings.Repeat("x", 5<<20+1)+`"`), 422, `"ErrorCode":300`},
		{"too large", "t", edit(`"TextBody":"x"`, `"TextBody":"`+strings.Repeat("x", 10<<20)+`"`), 413, ""},
		{"51 recipients", "t", edit("a@example.org", "a@example.org"+strings.Repeat(",b@example.org", 50)), 422, "50 recipients"},
		{"comma in From", "t", edit("Sender", "Sender, Inc."), 422, `'From'`},
		{"UTF-8 local part", "t", edit("a@example.org", "ä@example.org"), 422, `'To'`},
		{"long tag", "t", edit(`"Subject"`, `"Tag":"`+strings.Repeat("t", 1001)+`","Subject"`), 422, "1000 characters"},
		{"long metadata name", "t", edit("outboxd_attempt", strings.Repeat("m", 21)), 422, "20 characters"},
		{"long metadata value", "t", edit("key-1", strings.Repeat("m", 81)), 422, "80 characters"},
		{"repeated metadata", "t", edit(`"outboxd_attempt"`, `"Outboxd_attempt":"x","outboxd_attempt"`), 422, "Duplicate"},
		{"empty file", "t", attach(`{"Name":"a","Content":"","ContentType":"a/b"}`), 200, ""},
		{"file without a type", "t", attach(`{"Name":"a","Content":""}`), 422, "ContentType"},
		{"content id without cid:", "t", attach(`{"Name":"a","Content":"","ContentType":"a/b","ContentID":"x"}`), 422, "cid:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := providertest.NewHTTP(t, providertest.Postmark)
			status, text := postPostmark(t, p, tt.token, tt.body)
			if status != tt.want || !strings.Contains(text, tt.code) {
				t.Errorf("status %d %s, want %d %s", status, text, tt.want, tt.code)
			}
			if accepted := len(p.Accepted()) == 1; accepted != (tt.want < 300) {
				t.Errorf("accepted: %v with status %d", accepted, status)
			}
		})
	}
}

// mailgunForm returns a form with the given fields over those of a good one; an
// empty value leaves a field out.
func mailgunForm(fields ...string) (contentType string, body io.Reader) {
	values := map[string]string{
		"from": "Sender <s@example.com>", "to": "a@example.org", "text": "x",
		"v:outboxd_attempt": "key-1", "h:Message-Id": "<key-1@mg.example.com>",
	}
	for i := 0; i < len(fields); i += 2 {
		values[fields[i]] = fields[i+1]
	}
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for name, value := range values {
		switch {
		case name == "attachment":
			part, _ := w.CreateFormFile(name, value)
			_, _ = part.Write([]byte("x"))
		case value != "":
			_ = w.WriteField(name, value)
		}
	}
	_ = w.Close()
	return w.FormDataContentType(), &b
}

func postMailgun(t *testing.T, p *providertest.HTTP, user string, fields ...string) (int, string) {
	t.Helper()
	contentType, body := mailgunForm(fields...)
	req := request(t, http.MethodPost, p.URL()+"/v3/mg.example.com/messages", body)
	req.Header.Set("Content-Type", contentType)
	req.SetBasicAuth(user, "key")
	return do(t, req)
}

func TestMailgunRules(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, user string
		fields     []string
		want       int
		text       string
	}{
		{"good", "api", nil, 200, `"id":"\u003ckey-1@mg.example.com\u003e"`},
		{"without an id of its own", "api", []string{"h:Message-Id", ""}, 200, "mailgun-1"},
		{"with an id that is none", "api", []string{"h:Message-Id", "<key-1>"}, 200, "mailgun-1"},
		{"another user", "key", nil, 401, "Forbidden"},
		{"no sender", "api", []string{"from", ""}, 400, "from"},
		{"nobody", "api", []string{"to", ""}, 400, "to parameter"},
		{"no body", "api", []string{"text", ""}, 400, "Need at least one"},
		{"comma in From", "api", []string{"from", "Sender, Inc. <s@example.com>"}, 400, "from"},
		{"name that Mailgun encodes wrongly", "api", []string{"from", `"Müller, Jürgen" <s@example.com>`}, 400, "wrongly"},
		{"1001 recipients", "api", []string{"bcc", strings.Repeat("b@example.org,", 999) + "b@example.org"}, 400, "max is 1000"},
		{"16 kB of options", "api", []string{"h:X-A", strings.Repeat("x", 16<<10)}, 400, "16 kB"},
		{"tag beyond ASCII", "api", []string{"o:tag", "ü"}, 400, "tag"},
		{"header beyond ASCII", "api", []string{"h:X-Ü", "1"}, 400, "ASCII"},
		{"file", "api", []string{"attachment", "a.txt"}, 200, ""},
		{"file without a name", "api", []string{"attachment", ""}, 400, "dropped"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := providertest.NewHTTP(t, providertest.Mailgun)
			status, text := postMailgun(t, p, tt.user, tt.fields...)
			if status != tt.want || !strings.Contains(text, tt.text) {
				t.Errorf("status %d %s, want %d %s", status, text, tt.want, tt.text)
			}
			if accepted := len(p.Accepted()) == 1; accepted != (tt.want < 300) {
				t.Errorf("accepted: %v with status %d", accepted, status)
			}
		})
	}
}

// Every service's search, by the same rules.
func TestSearch(t *testing.T) {
	t.Parallel()
	services := map[string]struct {
		dialect providertest.Dialect
		post    func(*testing.T, *providertest.HTTP) (int, string)
		query   string
		other   string
		auth    func(*http.Request)
	}{
		"postmark": {
			providertest.Postmark,
			func(t *testing.T, p *providertest.HTTP) (int, string) { return postPostmark(t, p, "t", postmarkMail) },
			"/messages/outbound?count=1&offset=0&metadata_outboxd_attempt=key-1",
			"/messages/outbound?count=1&offset=0&metadata_outboxd_attempt=key-2",
			func(r *http.Request) { r.Header.Set("X-Postmark-Server-Token", "t") },
		},
		"mailgun": {
			providertest.Mailgun,
			func(t *testing.T, p *providertest.HTTP) (int, string) { return postMailgun(t, p, "api") },
			"/v3/mg.example.com/events?ascending=yes&begin=0&message-id=key-1@mg.example.com",
			"/v3/mg.example.com/events?ascending=yes&begin=0&message-id=key-2@mg.example.com",
			func(r *http.Request) { r.SetBasicAuth("api", "key") },
		},
	}
	for name, s := range services {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := providertest.NewHTTP(t, s.dialect)
			find := func(query string, auth bool) (int, bool) {
				req := request(t, http.MethodGet, p.URL()+query, http.NoBody)
				if auth {
					s.auth(req)
				}
				status, text := do(t, req)
				return status, strings.Contains(text, "outboxd_attempt")
			}
			if status, text := s.post(t, p); status != 200 {
				t.Fatalf("%d %s", status, text)
			}
			if status, found := find(s.query, true); status != 200 || !found {
				t.Errorf("the message: %d, %v, want it found", status, found)
			}
			if status, found := find(s.other, true); status != 200 || found {
				t.Errorf("another: %d, %v, want it not found", status, found)
			}
			if status, found := find(s.query, false); status != 401 || found {
				t.Errorf("without credentials: %d, %v, want 401", status, found)
			}
			path, _, _ := strings.Cut(s.query, "?")
			if status, found := find(path, true); status < 400 || found {
				t.Errorf("without its parameters: %d, %v, want a refusal", status, found)
			}
			p.SetSearchLag(time.Hour)
			if status, found := find(s.query, true); status != 200 || found {
				t.Errorf("before the index has it: %d, %v, want it not found", status, found)
			}
			p.SetSearchLag(0)
			p.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reset() })
			if status, found := find(s.query, true); status != 200 || !found {
				t.Errorf("while hand-overs fail: %d, %v, want it found", status, found)
			}
			p.RespondSearch(func(r providertest.Seen) providertest.Reaction {
				if r.Number == 7 {
					return providertest.Reply(503, "")
				}
				return providertest.Accept().Late(time.Millisecond)
			})
			if status, _ := find(s.query, true); status != 503 {
				t.Errorf("scripted: %d, want 503", status)
			}
			if status, found := find(s.query, true); status != 200 || !found {
				t.Errorf("late: %d, %v, want it found", status, found)
			}
			if r, n := p.Requests(), len(p.Searches()); r != 1 || n != 8 || len(p.Seen()) != 1 {
				t.Errorf("%d hand-overs and %d searches, want 1 and 8", r, n)
			}
		})
	}
	t.Run("a service without one", func(t *testing.T) {
		t.Parallel()
		p := providertest.NewHTTP(t, providertest.SendGrid)
		if status, _ := do(t, request(t, http.MethodGet, p.URL()+"/v3/messages", http.NoBody)); status != 404 {
			t.Errorf("status %d, want 404", status)
		}
	})
}
