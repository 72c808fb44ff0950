package fakeesp

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers/providertest"
)

func TestAccepted(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	for i, provider := range Providers() {
		if got, e := send(t.Context(), t, s.adapter(t, provider), i, "a@example.org", "b@example.org"); got != "accepted" {
			t.Fatalf("%s: %s, %v", provider, got, e)
		}
	}
	_, text := s.call(t, "GET", "/fake/accepted", "")
	var list struct {
		Total    int
		Accepted []Message
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	if list.Total != len(Providers()) || len(list.Accepted) != list.Total {
		t.Fatalf("%d of %d accepted messages, want %d", len(list.Accepted), list.Total, len(Providers()))
	}
	for i, m := range list.Accepted {
		want := providertest.Request(i)
		if m.Provider != Providers()[i] || m.Reference != want.Key || m.Subject != want.Message.Subject ||
			m.From != "sender@example.com" || !slices.Equal(m.To, []string{"a@example.org", "b@example.org"}) {
			t.Errorf("message %d: %+v", i, m)
		}
		status, body := s.call(t, "GET", "/fake/accepted/"+m.ID, "")
		if status != http.StatusOK || len(body) != m.Bytes || m.Bytes == 0 {
			t.Errorf("%s: body %d, %d bytes, want %d", m.ID, status, len(body), m.Bytes)
		}
	}
	if status, text := s.call(t, "GET", "/fake/accepted/none", ""); status != http.StatusNotFound || !strings.Contains(text, "no message none") {
		t.Errorf("unknown message: %d %s", status, text)
	}
}

func TestPage(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	_, empty := s.call(t, "GET", "/", "")
	for _, want := range []string{"Nothing yet", "No rules", "SENDGRID_BASE_URL=" + s.URL(), `content="light dark"`} {
		if !strings.Contains(empty, want) {
			t.Errorf("the empty page lacks %s", want)
		}
	}
	s.call(t, "POST", "/fake/script", `[{"fault":"slow","provider":"resend"}]`)
	p := s.adapter(t, "sendgrid")
	for n, to := range map[int]string{1: "a@example.org", 2: "503@fake.test"} {
		if got, e := send(t.Context(), t, p, n, to); (got == "accepted") != (n == 1) {
			t.Errorf("%s: %s, %v", to, got, e)
		}
	}
	_, page := s.call(t, "GET", "/", "")
	for _, want := range []string{
		"sendgrid-1", "Message 1", ">accepted<", ">refused<", "503", "&#34;provider&#34;:&#34;resend&#34;", providertest.Request(2).Key,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if status, css := s.call(t, "GET", "/fake/style.css", ""); status != http.StatusOK || !strings.Contains(css, "light-dark(") {
		t.Errorf("style: %d", status)
	}
	if status, _ := s.call(t, "GET", "/other", ""); status != http.StatusNotFound {
		t.Errorf("another page: %d", status)
	}
}

// A page on another site changes nothing by way of the developer's browser, and
// the fake's own page may.
func TestCrossOrigin(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	for origin, want := range map[string]int{"https://evil.example": http.StatusForbidden, s.URL(): http.StatusSeeOther} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/fake/reset", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", origin)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("from %s: %d, want %d", origin, resp.StatusCode, want)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	s := start(t, Options{URL: "http://fake:9999/", Domain: "Bad.Example"})
	if got := variable(t, s.Environment(), "RESEND_BASE_URL"); got != "http://fake:9999" {
		t.Errorf("base URL %s", got)
	}
	if got := variable(t, s.Environment(), "SMTP_URL"); !strings.HasPrefix(got, "smtp://fake:") {
		t.Errorf("relay %s", got)
	}
	if f, ok := s.fault(relay, []string{"lost@bad.example"}); !ok || f.name != "lost" {
		t.Errorf("fault %+v, want lost", f)
	}
	if got, want := variable(t, s.Environment(), "OUTBOXD_PROVIDERS"), strings.Join(Providers(), ","); got != want {
		t.Errorf("providers %s", got)
	}
	for name, o := range map[string]Options{
		"HTTP":       {HTTPAddr: "no address", SMTPAddr: "127.0.0.1:0"},
		"SMTP":       {HTTPAddr: "127.0.0.1:0", SMTPAddr: "no address"},
		"not an htt": {HTTPAddr: "127.0.0.1:0", SMTPAddr: "127.0.0.1:0", WebhookURL: "ftp://example.org"},
	} {
		if _, err := Start(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("started, or another error than about %s: %v", name, err)
		}
	}
}
