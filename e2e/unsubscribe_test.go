package e2e_test

import (
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// A recipient opens the link of a mail in a real browser and presses the button:
// only then nothing more is sent.
func TestUnsubscribePage(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	d := startDev(t, devData(t))
	send := func() (id string) {
		t.Helper()
		body := map[string]any{
			"from": "Shop <shop@example.com>", "to": "jane@example.org", "subject": "New this week", "text": "Three things.",
			"list_unsubscribe": true,
		}
		a := mustCall(t, "POST", d.api+"/emails", d.key, "", body)
		if a.status != http.StatusAccepted {
			t.Fatalf("answer %d %s", a.status, a.body)
		}
		var sent struct{ ID string }
		a.decode(t, &sent)
		return sent.ID
	}
	status := func(id string) (status string) {
		t.Helper()
		var email struct{ Status string }
		mustCall(t, "GET", d.api+"/emails/"+id, d.key, "", nil).decode(t, &email)
		return email.Status
	}
	send()
	eventually(t, "the mail is in the inbox", func() bool { return d.mails() == 1 })
	var list struct{ Messages []struct{ ID string } }
	mustCall(t, "GET", d.inbox+"/api/messages", "", "", nil).decode(t, &list)
	var mail struct{ Headers map[string][]string }
	mustCall(t, "GET", d.inbox+"/api/messages/"+list.Messages[0].ID, "", "", nil).decode(t, &mail)
	link := strings.Trim(mail.Headers["List-Unsubscribe"][0], "<>")
	if !strings.HasPrefix(link, d.api+"/unsubscribe/") || mail.Headers["List-Unsubscribe-Post"][0] != "List-Unsubscribe=One-Click" {
		t.Fatalf("headers %v", mail.Headers)
	}

	page := see(ctx, t, "unsubscribe", chromedp.Navigate(link), chromedp.WaitVisible("//button"))
	if !strings.Contains(page, "Shop <shop@example.com>") || strings.Contains(page, "jane") {
		t.Errorf("the page says %q", page)
	}
	second := send()
	eventually(t, "opening the page stopped nothing", func() bool { return d.mails() == 2 && status(second) == "sent" })

	page = see(ctx, t, "unsubscribed", chromedp.Click("//button"), chromedp.WaitVisible(`//p[@role="status"]`))
	if !strings.Contains(page, "You are unsubscribed") {
		t.Errorf("the page says %q", page)
	}
	third := send()
	eventually(t, "the next mail is suppressed", func() bool { return status(third) == "suppressed" })
	if n := d.mails(); n != 2 {
		t.Errorf("%d mails, want 2", n)
	}

	dark := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, dark); err != nil {
		t.Fatal(err)
	}
	see(ctx, t, "unsubscribe-dark", chromedp.Navigate(link), chromedp.WaitVisible("//button"))
	page = see(ctx, t, "unsubscribe-forged", chromedp.Navigate(link+"x"), chromedp.WaitVisible(`//p[@role="status"]`))
	if !strings.Contains(page, "This link does not work") {
		t.Errorf("the page says %q", page)
	}
	d.stop(syscall.SIGINT)
}
