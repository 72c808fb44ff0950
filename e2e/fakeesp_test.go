package e2e_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// fakeESP is a running `outboxctl fake-esp`.
type fakeESP struct {
	*process
	url string
	// env are the variables for outboxd that it prints.
	env []string
	log string
}

func startFakeESP(t *testing.T, args ...string) *fakeESP {
	t.Helper()
	f := &fakeESP{log: filepath.Join(t.TempDir(), "log.jsonl")}
	args = append([]string{"fake-esp", "--addr", "127.0.0.1:0", "--smtp-addr", "127.0.0.1:0", "--log", f.log}, args...)
	f.process = start(t, filepath.Join(binDir, "outboxctl"), args, nil)
	last := "SMTP_URL"
	if slices.Contains(args, "--webhook-url") {
		last = "SES_SNS_ENDPOINT_URL"
	}
	f.await("the last variable", func() string {
		return regexp.MustCompile(`(?m)^` + last + `=.*`).FindString(strings.Join(f.lines, "\n"))
	})
	variable := regexp.MustCompile(`^[A-Z_]+=`)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, line := range f.lines {
		if match := regexp.MustCompile(`ready: (http://[^/]+)/`).FindStringSubmatch(line); match != nil {
			f.url = match[1]
		}
		if variable.MatchString(line) {
			f.env = append(f.env, line)
		}
	}
	return f
}

// A user's own test: outboxd and the fake, with nothing but the variables that
// it prints. One mail is accepted, the reply to one is lost, and one is refused
// at first: each goes out once.
func TestFakeESP(t *testing.T) {
	t.Parallel()
	in := install(t)
	fake := startFakeESP(t)
	env := slices.Concat(fake.env, []string{"OUTBOXD_PROVIDERS=resend"})
	api, worker := in.start("api", env...), in.start("worker", env...)
	for i, to := range []string{"a@example.org", "lost+1@fake.test", "429+1@fake.test"} {
		mail := email(i)
		mail["to"] = to
		in.submitted(api.url("api"), mail)
	}
	var list struct{ Total int }
	in.awaitEnded()
	mustCall(t, "GET", fake.url+"/fake/accepted", "", "", nil).decode(t, &list)
	if sent := in.count("SELECT count(*) FROM outbox.emails WHERE status = 'sent'"); sent != 3 || list.Total != 3 {
		t.Errorf("%d emails are sent and %d were accepted, want 3", sent, list.Total)
	}
	worker.stop(syscall.SIGTERM)
	api.stop(syscall.SIGTERM)
	fake.stop(syscall.SIGTERM)

	text, err := os.ReadFile(fake.log)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var r struct{ Outcome string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		outcomes[r.Outcome]++
	}
	// The lost reply was asked for again under its key.
	if outcomes["accepted"] != 3 || outcomes["replayed"] < 1 || outcomes["refused"] < 1 {
		t.Errorf("the log says %v", outcomes)
	}
}

// The page in a real browser, in the light and in the dark.
func TestFakeESPPage(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	fake := startFakeESP(t)
	for _, body := range []string{
		`{"from":"s@example.com","to":["jane@example.org"],"subject":"Your receipt","text":"x"}`,
		`{"from":"s@example.com","to":["429@fake.test"],"subject":"Refused","text":"x"}`,
		`{"from":"s@example.com","to":["500-accepted@fake.test"],"subject":"Said otherwise","text":"x"}`,
	} {
		poke(t, fake.url+"/emails", body)
	}
	poke(t, fake.url+"/fake/script", `[{"fault":"slow","provider":"ses","until":"1h0m0s"}]`)
	for _, scheme := range []string{"light", "dark"} {
		if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		}); err != nil {
			t.Fatal(err)
		}
		page := see(ctx, t, "fake-esp-"+scheme, chromedp.Navigate(fake.url+"/"), chromedp.WaitVisible(`//td[contains(., "Your receipt")]`))
		for _, want := range []string{"jane@example.org", "Said otherwise", "refused", "slow", "SMTP_URL=smtp://127.0.0.1:"} {
			if !strings.Contains(page, want) {
				t.Errorf("%s: the page lacks %q", scheme, want)
			}
		}
		if strings.Contains(page, "Refused") {
			t.Errorf("%s: the page shows what was not accepted", scheme)
		}
	}
	page := see(ctx, t, "fake-esp-empty", chromedp.Click(`//button[.="Forget all"]`), chromedp.WaitVisible(`//*[contains(., "Nothing yet")]`))
	if strings.Contains(page, "jane@example.org") {
		t.Error("something is remembered")
	}
	fake.stop(syscall.SIGINT)
}

// poke posts to the fake, whatever it answers.
func poke(t *testing.T, url, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer fake")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}
