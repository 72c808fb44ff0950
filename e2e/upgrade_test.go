package e2e_test

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

// The next release migrates the database under processes of this one: they stay
// ready and deliver, so that they can be replaced one by one. One of this release
// that starts then is refused, and says why.
func TestUpgradeUnderRunningProcesses(t *testing.T) {
	t.Parallel()
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.Resend)
	env := resendEnv(provider)
	api, worker := in.start("api", env...), in.start("worker", env...).ready()

	// What a migration that is made for this does: it adds.
	in.exec("ALTER TABLE outbox.emails ADD COLUMN of_the_next_release text NOT NULL DEFAULT 'x'")
	in.exec("INSERT INTO outbox.schema_migrations (version_id, is_applied) VALUES (9999, true)")

	for name, url := range map[string]string{
		"api": api.url("api") + "/readyz", "api's ops": api.url("ops") + "/readyz", "worker": worker.url("ops") + "/readyz",
	} {
		if a := mustCall(t, http.MethodGet, url, "", "", nil); a.status != http.StatusOK {
			t.Errorf("%s is not ready: %d %s", name, a.status, a.body)
		}
	}
	in.submit(api.url("api"), 0, 3)
	in.awaitEnded()
	if n := len(provider.Accepted()); n != 3 {
		t.Errorf("%d of 3 emails were sent", n)
	}
	late := in.start("worker", env...)
	select {
	case <-late.done:
	case <-time.After(patience):
		t.Fatal("a process of this release starts on a newer database")
	}
	eventually(t, filepath.Base(late.cmd.Path)+" says why", func() bool {
		late.mu.Lock()
		defer late.mu.Unlock()
		return slices.ContainsFunc(late.lines, func(line string) bool { return strings.Contains(line, "newer than this program") })
	})
}
