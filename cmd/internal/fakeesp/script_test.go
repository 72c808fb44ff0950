package fakeesp

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// A day in the life of a provider: 429, then 500, then accepted but silent, and
// the other provider is well all the time.
func TestScriptByTime(t *testing.T) {
	t.Parallel()
	rules, err := ParseScript([]byte(`[
		{"fault":"429","provider":"sendgrid","from":"10s","until":"20s","retry_after":"7s"},
		{"fault":"500","provider":"sendgrid","from":"20s","until":"30s"},
		{"fault":"lost","provider":"sendgrid","from":"30s"}]`))
	if err != nil {
		t.Fatal(err)
	}
	c := &clock{at: time.Now()}
	s := start(t, Options{Script: rules, now: c.now})
	p, other := s.adapter(t, "sendgrid"), s.adapter(t, "resend")
	for n, want := range []string{"accepted", "deferred", "in_doubt", "in_doubt"} {
		got, e := send(t.Context(), t, p, n, "a@example.org")
		if got != want {
			t.Errorf("after %d s: %s, want %s: %v", 10*n, got, want, e)
		}
		if want == "deferred" && e.RetryAfter != 7*time.Second {
			t.Errorf("Retry-After was read as %v", e.RetryAfter)
		}
		if got, e := send(t.Context(), t, other, n, "a@example.org"); got != "accepted" {
			t.Errorf("the other provider after %d s: %s, %v", 10*n, got, e)
		}
		c.forward(10 * time.Second)
	}
	if n := len(s.http.Accepted()); n != 6 {
		t.Errorf("%d accepted, want 2 and 4", n)
	}
	s.call(t, "POST", "/fake/reset", "") // the script's clock begins anew
	if got, e := send(t.Context(), t, p, 9, "a@example.org"); got != "accepted" {
		t.Errorf("after the reset: %s, %v", got, e)
	}
}

func TestScriptByCount(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	if status, text := s.call(t, "POST", "/fake/script", `[{"fault":"413","first":2,"last":3},{"fault":"503","first":5}]`); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	for _, provider := range Providers() {
		p := s.adapter(t, provider)
		wants := []string{"accepted", "rejected", "rejected", "accepted", "in_doubt", "in_doubt"}
		if provider == relay {
			wants[4], wants[5] = "deferred", "deferred"
		}
		for n, want := range wants {
			if provider == "postmark" && want == "in_doubt" {
				want = "deferred" // its 503 is a refusal
			}
			if got, e := send(t.Context(), t, p, n, "a@example.org"); got != want {
				t.Errorf("%s, request %d: %s, want %s: %v", provider, n+1, got, want, e)
			}
		}
		// A recipient goes before the script.
		if got, e := send(t.Context(), t, p, 20, "413@fake.test"); got != "rejected" {
			t.Errorf("%s: recipient: %s, %v", provider, got, e)
		}
	}
	if status, _ := s.call(t, "POST", "/fake/script", `[]`); status != http.StatusOK {
		t.Errorf("emptied: %d", status)
	}
	if got, e := send(t.Context(), t, s.adapter(t, "sendgrid"), 30, "a@example.org"); got != "accepted" {
		t.Errorf("without a script: %s, %v", got, e)
	}
}

func TestScriptIsRead(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	const good = `[{"fault":"slow","provider":"smtp","from":"1s","until":"1m0s","delay":"2s"}]`
	if status, text := s.call(t, "POST", "/fake/script", good); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	for body, want := range map[string]string{
		`x`:                              "JSON array",
		`{"fault":"slow"}`:               "JSON array",
		`[] []`:                          "more behind it",
		`[{"fault":"slow","when":"1s"}]`: "when",
		`[{"fault":"sloth"}]`:            "rule 1: there is no fault",
		`[{"fault":"200"}]`:              "rule 1: there is no fault",
		`[{"fault":"slow"},{"fault":"slow","provider":"pigeon"}]`: "rule 2: there is no provider",
		`[{"fault":"slow","from":"2s","until":"1s"}]`:             "until is not after from",
		`[{"fault":"slow","first":3,"last":2}]`:                   "last is not before first",
		`[{"fault":"slow","delay":"soon"}]`:                       "not a duration",
		`[{"fault":"slow","delay":"-1s"}]`:                        "not a duration",
		`[{"fault":"` + strings.Repeat("x", maxScript) + `"}]`:    "too large",
	} {
		status, text := s.call(t, "POST", "/fake/script", body)
		if status != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%.80s: %d %s, want 400 %s", body, status, text, want)
		}
	}
	// A refused script changes nothing.
	if _, text := s.call(t, "GET", "/fake/script", ""); strings.Join(strings.Fields(text), "") != good {
		t.Errorf("in force: %s", text)
	}
}
