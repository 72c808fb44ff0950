package e2e_test

import (
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/outboxd/outboxd/providers/providertest"
)

// accessibilityJS defines what the checks below ask a page.
//
//go:embed testdata/accessibility.js
var accessibilityJS string

// logIn gives the browser the admin password.
func logIn(ctx context.Context, t *testing.T, password string) {
	t.Helper()
	token := base64.StdEncoding.EncodeToString([]byte("admin:" + password))
	if _, err := chromedp.Call(ctx, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{
		Headers: network.Headers{"Authorization": "Basic " + token},
	}); err != nil {
		t.Fatal(err)
	}
}

// inScheme shows pages light or dark.
func inScheme(ctx context.Context, t *testing.T, scheme string) {
	t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
		t.Fatal(err)
	}
}

// evaluate runs an expression in the page.
func evaluate[T any](ctx context.Context, t *testing.T, expression string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// checkAccessible checks the page that is open, light and dark: labels, the
// contrast of every text, and with names what of it a keyboard reaches.
func checkAccessible(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		inScheme(ctx, t, scheme)
		see(ctx, t, "console-"+name+"-"+scheme)
		report := evaluate[string](ctx, t, accessibilityJS+"accessibility.report()")
		var found struct {
			Texts, Controls int
			Faults          []string
		}
		if err := json.Unmarshal([]byte(report), &found); err != nil {
			t.Fatal(err)
		}
		for _, fault := range found.Faults {
			t.Errorf("%s, %s: %s", name, scheme, fault)
		}
		if found.Texts < 10 || found.Controls < 1 {
			t.Errorf("%s, %s: only %d texts and %d controls were looked at", name, scheme, found.Texts, found.Controls)
		}
		checkFocus(ctx, t, name+", "+scheme)
	}
}

// checkFocus goes through the page with the tab key: each stop is in sight and is
// seen to have the focus, and every control is one.
func checkFocus(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	for range evaluate[int](ctx, t, "accessibility.begin()") {
		if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.Tab)); err != nil {
			t.Fatal(err)
		}
		if fault := evaluate[string](ctx, t, "accessibility.stop()"); fault != "" {
			t.Errorf("%s: %s", name, fault)
		}
	}
	if missed := evaluate[string](ctx, t, "accessibility.missed()"); missed != "" {
		t.Errorf("%s: the tab key does not reach %s", name, missed)
	}
}

// tabTo presses the tab key until what is in focus says a text.
func tabTo(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	for range 200 {
		if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.Tab)); err != nil {
			t.Fatal(err)
		}
		if evaluate[string](ctx, t, "document.activeElement.innerText") == text {
			return
		}
	}
	t.Fatalf("the tab key does not reach %q", text)
}

// Somebody on call sees that an email is in doubt, finds it, looks at its story and
// settles it, in a real browser and at last with the keyboard alone.
func TestConsole(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	provider.Respond(func(r providertest.Seen) providertest.Reaction {
		if strings.Contains(string(r.Body), "Mail 2") {
			return providertest.Accept().Then(providertest.Reset()) // it has it, and its answer is lost
		}
		return providertest.Accept()
	})
	env := []string{
		"OUTBOXD_PROVIDERS=sendgrid", "SENDGRID_API_KEY=SG.key", "SENDGRID_BASE_URL=" + provider.URL(),
		"OUTBOXD_ON_UNKNOWN=hold", "OUTBOXD_ADMIN_PASSWORD=secret",
	}
	api := in.start("api", env...)
	in.start("worker", env...).ready()
	base, console := api.url("api"), api.url("ops")+"/console/"
	status := func(id string) string {
		var email struct{ Status string }
		mustCall(t, http.MethodGet, base+"/emails/"+id, in.token, "", nil).decode(t, &email)
		return email.Status
	}
	sent, doubtful := in.submitted(base, email(1)), in.submitted(base, email(2))
	eventually(t, "one is sent and one in doubt", func() bool { return status(sent) == "sent" && status(doubtful) == "unknown" })

	logIn(ctx, t, "secret")
	refused := violations(ctx, t)
	page := see(ctx, t, "console", chromedp.Navigate(console), chromedp.WaitVisible(`//h1[text()="Overview"]`))
	for _, part := range []string{"1 email is in doubt", "Workers alive", "sendgrid"} {
		if !strings.Contains(page, part) {
			t.Errorf("the overview does not say %q: %s", part, page)
		}
	}
	checkAccessible(ctx, t, "overview")

	see(ctx, t, "console-emails", chromedp.Click(`//nav/a[text()="Emails"]`), chromedp.WaitVisible(`//a[text()="Mail 1"]`))
	checkAccessible(ctx, t, "emails")
	page = see(ctx, t, "console-filtered", chromedp.SetValue(`#status`, "unknown"), chromedp.Click(`//button[text()="Show"]`),
		chromedp.WaitNotPresent(`//a[text()="Mail 1"]`), chromedp.WaitVisible(`//a[text()="Mail 2"]`))
	if !strings.Contains(page, "jane@example.org") {
		t.Errorf("the list says %q", page)
	}
	page = see(ctx, t, "console-email", chromedp.Click(`//a[text()="Mail 2"]`), chromedp.WaitVisible(`//h1[text()="Mail 2"]`))
	if !strings.Contains(page, "Attempt 1 at sendgrid: in doubt") || strings.Contains(page, "Hello.") {
		t.Errorf("the email's page says %q", page)
	}
	checkAccessible(ctx, t, "email")

	evaluate[string](ctx, t, "document.activeElement.blur(); ''")
	tabTo(ctx, t, "The provider has it")
	page = see(ctx, t, "console-ask", chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(`//form[@method="post"]`))
	if !strings.Contains(page, "Did the provider accept this email?") || status(doubtful) != "unknown" {
		t.Errorf("the page that asks says %q", page)
	}
	checkAccessible(ctx, t, "ask")
	evaluate[string](ctx, t, "document.activeElement.blur(); ''")
	tabTo(ctx, t, "The provider has it")
	page = see(ctx, t, "console-resolved", chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(`//p[@role="status"]`))
	for _, part := range []string{"the email counts as sent", "accepted by console, user admin", "a person"} {
		if !strings.Contains(page, part) {
			t.Errorf("the email's page does not say %q: %s", part, page)
		}
	}
	if got := status(doubtful); got != "sent" || provider.Requests() != 2 {
		t.Errorf("the email is %s, after %d requests to the provider", got, provider.Requests())
	}

	see(ctx, t, "console-search", chromedp.SendKeys(`#q`, sent+kb.Enter), chromedp.WaitVisible(`//h1[text()="Mail 1"]`))
	see(ctx, t, "console-job", chromedp.Click(`//a[contains(., "in River UI")]`), chromedp.WaitVisible(`//*[text()="Job Details"]`))
	for _, text := range refused() {
		t.Errorf("the browser refused a part of a page: %s", text)
	}
	api.await("the line that says who", func() string {
		for _, line := range api.lines {
			if strings.Contains(line, `"user":"admin"`) && strings.Contains(line, doubtful) && !strings.Contains(line, "jane@") {
				return line
			}
		}
		return ""
	})
}
