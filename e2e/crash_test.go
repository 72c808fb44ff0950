package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/outboxd/outboxd/internal/pgproxy"
	"github.com/outboxd/outboxd/providers/providertest"
)

// An API process is killed while it takes 500 submissions; every one is then
// submitted again. I1, I2, I6, and F26: an answer comes after the commit.
func TestAPIKilledDuringSubmissions(t *testing.T) {
	t.Parallel()
	const submissions = 500
	in, inbox := install(t), startMailpit(t)
	api := in.start("api", inbox.env()...)
	base := api.url("api")

	var wg sync.WaitGroup
	var acknowledged atomic.Int32
	first := make([]string, submissions)
	slots := make(chan struct{}, 32)
	for i := range submissions {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			a, err := call("POST", base+"/emails", in.token, fmt.Sprint("key-", i), email(i))
			if err == nil && a.status == http.StatusAccepted {
				first[i] = string(a.body)
				if acknowledged.Add(1) == submissions/5 {
					_ = api.cmd.Process.Kill()
				}
			}
		})
	}
	wg.Wait()
	<-api.done
	if n := acknowledged.Load(); n < submissions/5 || n == submissions {
		t.Fatalf("%d submissions were acknowledged before the kill: it did not hit", n)
	}

	base = in.start("api", inbox.env()...).url("api")
	for i := range submissions {
		a := mustCall(t, "POST", base+"/emails", in.token, fmt.Sprint("key-", i), email(i))
		if a.status != http.StatusAccepted {
			t.Fatalf("retry of %d: %d %s", i, a.status, a.body)
		}
		if first[i] != "" && (string(a.body) != first[i] || !a.replayed) {
			t.Errorf("retry of %d: %s, replayed %v; first %s", i, a.body, a.replayed, first[i])
		}
	}
	for _, table := range []string{"emails", "river_job", "idempotency_keys"} {
		if n := in.count("SELECT count(*) FROM outbox." + table); n != submissions {
			t.Errorf("%d rows in %s, want %d", n, table, submissions)
		}
	}

	in.start("worker", inbox.env()...)
	in.awaitEnded()
	total, messages := inbox.messages()
	var subjects []string
	for _, m := range messages {
		subjects = append(subjects, m.Subject)
	}
	slices.Sort(subjects)
	if distinct := len(slices.Compact(subjects)); total != submissions || distinct != submissions {
		t.Errorf("%d mails arrived, %d different ones, want %d", total, distinct, submissions)
	}
}

// A worker that is told to stop lets what it is sending end (F34).
func TestWorkerStopsGracefully(t *testing.T) {
	t.Parallel()
	const emails = 200
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	provider.Respond(func(providertest.Seen) providertest.Reaction {
		return providertest.Accept().Late(500 * time.Millisecond)
	})
	env := []string{"OUTBOXD_PROVIDERS=sendgrid", "SENDGRID_API_KEY=SG.test", "SENDGRID_BASE_URL=" + provider.URL()}
	base := in.start("api", env...).url("api")
	for i := range emails {
		if a := mustCall(t, "POST", base+"/emails", in.token, "", email(i)); a.status != http.StatusAccepted {
			t.Fatalf("answer %d: %s", a.status, a.body)
		}
	}
	worker := in.start("worker", env...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := provider.WaitRequests(ctx, 60); err != nil {
		t.Fatal(err)
	}
	worker.stop(syscall.SIGTERM)
	if open := in.count("SELECT count(*) FROM outbox.emails WHERE status NOT IN ('queued', 'sent')"); open != 0 {
		t.Errorf("%d emails are neither queued nor sent after the stop", open)
	}

	in.start("worker", env...)
	in.awaitEnded()
	sent := in.count("SELECT count(*) FROM outbox.emails WHERE status = 'sent'")
	if requests := provider.Requests(); sent != emails || requests != emails {
		t.Errorf("%d emails are sent with %d requests, want %d each", sent, requests, emails)
	}
}

// The API tells a database that is away from everything else, and goes on when
// it is back.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	in := install(t)
	proxy := pgproxy.New(t, in.databaseURL)
	base := in.startBehind(proxy).url("api")

	if a := mustCall(t, "POST", base+"/emails", in.token, "before", email(1)); a.status != http.StatusAccepted {
		t.Fatalf("answer %d: %s", a.status, a.body)
	}
	proxy.Refuse()
	proxy.CutAll()
	a := mustCall(t, "POST", base+"/emails", in.token, "during", email(2))
	var problem struct{ Name, Message string }
	a.decode(t, &problem)
	if a.status != http.StatusServiceUnavailable || problem.Name != "service_unavailable" || a.header.Get("Retry-After") == "" {
		t.Errorf("answer %d %s", a.status, a.body)
	}
	if a := mustCall(t, "GET", base+"/readyz", "", "", nil); a.status != http.StatusServiceUnavailable {
		t.Errorf("readyz answers %d, want 503", a.status)
	}
	if n := in.count("SELECT count(*) FROM outbox.emails"); n != 1 {
		t.Errorf("%d emails, want 1", n)
	}
	proxy.Accept()
	eventually(t, "the API takes the retry", func() bool {
		return mustCall(t, "POST", base+"/emails", in.token, "during", email(2)).status == http.StatusAccepted
	})
	if n := in.count("SELECT count(*) FROM outbox.emails"); n != 2 {
		t.Errorf("%d emails, want 2", n)
	}
}
