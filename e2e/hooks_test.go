package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// The whole loop, for every provider that reports: a mail goes out, what became
// of it comes back signed in the provider's own format, three times and out of
// order, and ends as the one true status. What bounced or complained is not sent
// to again.
func TestProvidersReportBack(t *testing.T) {
	t.Parallel()
	in := install(t)
	addr := freeAddress(t)
	fake := startFakeESP(t, "--webhook-url", "http://"+addr, "--webhook-copies", "3", "--webhook-shuffle")
	reporting := []string{"mailgun", "postmark", "resend", "sendgrid", "ses"}
	env := slices.Concat(fake.env, []string{"OUTBOXD_PROVIDERS=" + strings.Join(reporting, ",")})
	base := in.start("api", append(env, "OUTBOXD_ADDR="+addr)...).url("api")
	in.start("worker", env...).ready()

	// What nobody signed changes nothing.
	for _, provider := range reporting {
		if a := mustCall(t, "POST", base+"/hooks/"+provider, "", "", map[string]any{"event": "delivered"}); a.status != http.StatusUnauthorized {
			t.Errorf("%s: unsigned, answer %d: %s", provider, a.status, a.body)
		}
	}
	if n := in.count("SELECT count(*) FROM outbox.events"); n != 0 {
		t.Errorf("%d events before any email", n)
	}

	want := map[string]string{"jane": "delivered", "bounce": "bounced", "complaint": "complained"}
	ids := map[string]string{}
	for _, provider := range reporting {
		for local, status := range want {
			mail := email(0)
			mail["to"], mail["provider"] = fmt.Sprintf("%s@%s.fake.test", local, provider), provider
			ids[in.submitted(base, mail)] = status
		}
	}
	for id, status := range ids {
		var got struct {
			Status, Provider string
			Events           []struct{ Type, Provider string }
		}
		eventually(t, id+" is "+status, func() bool {
			mustCall(t, "GET", base+"/emails/"+id, in.token, "", nil).decode(t, &got)
			return got.Status == status
		})
		seen := map[string]bool{}
		for _, e := range got.Events {
			if key := e.Type + e.Provider; e.Provider != "" && seen[key] {
				t.Errorf("%s at %s: event %s is told twice", status, got.Provider, e.Type)
			} else {
				seen[key] = true
			}
		}
	}
	var list struct {
		Data []struct{ Address, Reason string }
	}
	mustCall(t, "GET", base+"/suppressions?limit=100", in.token, "", nil).decode(t, &list)
	if n := 2 * len(reporting); len(list.Data) != n {
		t.Errorf("%d addresses are suppressed, want %d: %v", len(list.Data), n, list.Data)
	}
	if stray := in.count("SELECT count(*) FROM outbox.stray_events"); stray != 0 {
		t.Errorf("%d events found no attempt", stray)
	}
}
