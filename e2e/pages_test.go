package e2e_test

import (
	"context"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// browser returns a headless Chromium, or skips the test on a machine without
// one. `make test` lists what was left out, and CI does not allow it.
func browser(t *testing.T) context.Context {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("Chromium is not installed")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1200, 800),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	// The browser lives as long as the context of the first call.
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// see does what a person does and returns the text of the page. It keeps a
// picture where OUTBOXD_TEST_SCREENSHOTS names a folder.
func see(ctx context.Context, t *testing.T, name string, steps ...chromedp.Action[chromedp.Void]) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if dir := os.Getenv("OUTBOXD_TEST_SCREENSHOTS"); dir != "" {
		picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := chromedp.Run(ctx, chromedp.Text("body"))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return text
}

// violations collects what the browser refuses by a page's security policy.
func violations(ctx context.Context, t *testing.T) (soFar func() []string) {
	t.Helper()
	var mu sync.Mutex
	var texts []string
	err := chromedp.Listen(ctx, func(event any) {
		entry, ok := event.(*log.EventEntryAdded)
		if ok && entry.Entry.Source == log.EntrySourceSecurity {
			mu.Lock()
			defer mu.Unlock()
			texts = append(texts, entry.Entry.Text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(texts)
	}
}

// A person sends the mail of the welcome and looks at it in a real browser.
func TestPages(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	d := startDev(t, devData(t))
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", d.curl).CombinedOutput(); err != nil {
		t.Fatalf("curl: %v\n%s", err, out)
	}
	eventually(t, "the mail is in the inbox", func() bool { return d.mails() == 1 })

	see(ctx, t, "inbox", chromedp.Navigate(d.inbox+"/"), chromedp.WaitVisible(`//a[contains(., "Hello")]`))
	page := see(ctx, t, "message", chromedp.Click(`//a[contains(., "Hello")]`),
		chromedp.WaitVisible(`//*[contains(text(), "It works.")]`))
	if !strings.Contains(page, "jane@example.org") {
		t.Errorf("the message's page says %q", page)
	}

	refused := violations(ctx, t)
	password := base64.StdEncoding.EncodeToString([]byte("admin:" + d.password))
	if _, err := chromedp.Call(ctx, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{
		Headers: network.Headers{"Authorization": "Basic " + password},
	}); err != nil {
		t.Fatal(err)
	}
	page = see(ctx, t, "riverui", chromedp.Navigate(d.riverUI+"jobs?state=completed"),
		chromedp.WaitVisible(`//*[text()="deliver_email"]`))
	if strings.Contains(page, "jane@example.org") {
		t.Error("River UI shows an address")
	}
	see(ctx, t, "riverui-job", chromedp.Click(`//a[contains(., "deliver_email")]`),
		chromedp.WaitVisible(`//*[text()="Job Details"]`))
	see(ctx, t, "riverui-queues", chromedp.Navigate(d.riverUI+"queues"), chromedp.WaitVisible(`//*[text()="emails"]`))
	for _, text := range refused() {
		t.Errorf("the browser refused a part of River UI: %s", text)
	}
	d.stop(syscall.SIGINT)
}
