package e2e_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// dev is a running `outboxctl dev`, which `make dev` is.
type dev struct {
	*process
	api, inbox, console, riverUI, key, password, curl string
}

func startDev(t *testing.T, data string) *dev {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed") // listed by .ci/left-out
	}
	env := []string{
		// Its own Postgres, as on a developer's machine.
		"DATABASE_URL=", "OUTBOXD_PROVIDERS=",
		"OUTBOXD_ADDR=" + freeAddress(t), "OUTBOXD_OPS_ADDR=" + freeAddress(t),
		"OUTBOXD_WORKER_OPS_ADDR=" + freeAddress(t),
		"OUTBOXD_INBOX_ADDR=" + freeAddress(t), "OUTBOXD_INBOX_SMTP_ADDR=" + freeAddress(t),
	}
	d := &dev{process: start(t, filepath.Join(binDir, "outboxctl"), []string{"dev", "--data", data}, env)}
	welcome := d.await("the welcome", func() string {
		text := strings.Join(d.lines, "\n")
		if !strings.Contains(text, "    -d '{") {
			return ""
		}
		return text
	})
	field := func(pattern string) string {
		match := regexp.MustCompile(pattern).FindStringSubmatch(welcome)
		if match == nil {
			t.Fatalf("no %s in the welcome:\n%s", pattern, welcome)
		}
		return match[1]
	}
	d.api, d.inbox = field(`API +(http://\S+)`), field(`Inbox +(http://\S+)/`)
	d.console = field(`Console +(http://\S+)`)
	d.riverUI, d.password = field(`River UI +(http://\S+)`), field(`password (\S+)`)
	d.key, d.curl = field(`API key +(\S+)`), field(`(?s)(curl .*?\}')`)
	return d
}

// devData returns a folder for the data of dev. It is not t.TempDir: as root,
// the user that Postgres runs as must be able to reach it.
func devData(t *testing.T) string {
	t.Helper()
	data, err := os.MkdirTemp("", "outboxd-dev-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(data) })
	if err := os.Chmod(data, 0o755); err != nil {
		t.Fatal(err)
	}
	return data
}

// mails returns how many the inbox has.
func (d *dev) mails() int {
	d.t.Helper()
	var list struct{ Total int }
	mustCall(d.t, "GET", d.inbox+"/api/messages", "", "", nil).decode(d.t, &list)
	return list.Total
}

// The README's first command, the curl that it prints, Ctrl-C, and again.
func TestDev(t *testing.T) {
	t.Parallel()
	data := devData(t)
	d := startDev(t, data)
	for range 2 { // pasted twice it is one mail
		out, err := exec.CommandContext(t.Context(), "sh", "-c", d.curl).Output()
		if err != nil || !strings.Contains(string(out), `"status":"queued"`) {
			t.Fatalf("the curl printed %s, error %v", out, err)
		}
	}
	eventually(t, "the mail is in the inbox", func() bool { return d.mails() == 1 })
	for _, page := range []string{d.console, d.riverUI + "api/states"} {
		if a := mustCall(t, "GET", page, "", "", nil); a.status != http.StatusUnauthorized {
			t.Errorf("%s: answer %d without the password, want 401", page, a.status)
		}
		a := mustCall(t, "GET", strings.Replace(page, "://", "://admin:"+d.password+"@", 1), "", "", nil)
		if a.status != http.StatusOK {
			t.Errorf("%s: answer %d with the password, want 200", page, a.status)
		}
	}
	d.stop(syscall.SIGINT)

	again := startDev(t, data)
	if again.key != d.key || again.password != d.password {
		t.Error("the second start has another key or password")
	}
	var page struct {
		Data []struct{ Status string }
	}
	mustCall(t, "GET", again.api+"/emails", again.key, "", nil).decode(t, &page)
	if len(page.Data) != 1 || page.Data[0].Status != "sent" || again.mails() != 1 {
		t.Errorf("after a restart: emails %+v, %d mails in the inbox", page.Data, again.mails())
	}
	again.stop(syscall.SIGINT)
}
