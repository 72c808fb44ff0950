package e2e_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

// The tests whose names begin with F and a number are what happened to others,
// as the list of field reports has it.

// sendGridEnv makes workers send to the programmable provider, which knows no
// idempotency keys: what is sent twice arrives twice.
func sendGridEnv(p *providertest.HTTP) []string {
	return []string{"OUTBOXD_PROVIDERS=sendgrid", "SENDGRID_API_KEY=SG.test", "SENDGRID_BASE_URL=" + p.URL()}
}

// awaitRequests waits until the provider has seen that many.
func awaitRequests(t *testing.T, p *providertest.HTTP, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.WaitRequests(ctx, n); err != nil {
		t.Fatalf("%d requests came, want %d: %v", p.Requests(), n, err)
	}
}

// awaitAccepted waits until the provider has accepted that many.
func awaitAccepted(t *testing.T, p *providertest.HTTP, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.WaitAccepted(ctx, n); err != nil {
		t.Fatalf("%d were accepted, want %d: %v", len(p.Accepted()), n, err)
	}
}

// wantSentOnce checks that so many emails are sent, that nothing else is
// there, and that the provider got each of them exactly once.
func (in *installation) wantSentOnce(p *providertest.HTTP, n int) {
	in.t.Helper()
	sent := in.count("SELECT count(*) FROM outbox.emails WHERE status = 'sent' AND NOT possible_duplicate")
	all := in.count("SELECT count(*) FROM outbox.emails")
	if accepted := len(p.Accepted()); sent != n || all != n || accepted != n {
		in.t.Errorf("of %d emails %d are sent, %d were accepted, want %d each", all, sent, accepted, n)
	}
}

// submitLater submits emails that are due in an hour.
func (in *installation) submitLater(base string, from, to int) {
	in.t.Helper()
	due := time.Now().Add(time.Hour).Format(time.RFC3339)
	for i := from; i < to; i++ {
		later := email(i)
		later["scheduled_at"] = due
		if a := mustCall(in.t, "POST", base+"/emails", in.token, "", later); a.status != http.StatusAccepted {
			in.t.Fatalf("answer %d: %s", a.status, a.body)
		}
	}
}

// lateCompletion closes the jobs of all emails that are due in an hour, as a
// worker does that completes somebody else's run, and makes the emails due.
func (in *installation) lateCompletion() {
	in.t.Helper()
	in.exec(`
		WITH due AS (
			UPDATE outbox.emails SET status = 'queued', scheduled_at = NULL, created_at = now() - interval '1 minute'
			WHERE status = 'scheduled' RETURNING id
		)
		UPDATE outbox.river_job j SET state = 'completed', finalized_at = now()
		FROM due WHERE j.args @> jsonb_build_object('email_id', due.id)`)
}

// F8: a send takes longer than it takes to look for what the dead left, and
// another worker is even given its job, as a rescuer does. As long as its
// owner lives, the other one looks and leaves it.
func TestF8LongSendDoesNotRunTwice(t *testing.T) {
	t.Parallel()
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	release := make(chan struct{})
	provider.Respond(func(r providertest.Seen) providertest.Reaction {
		if r.Number == 1 {
			return providertest.Accept().When(release)
		}
		return providertest.Accept()
	})
	// Longer than this test waits for anything.
	env := append(sendGridEnv(provider), "OUTBOXD_SEND_TIMEOUT=10m")
	base := in.start("api", env...).url("api")
	in.start("worker", env...).ready()
	in.submit(base, 0, 1)
	awaitRequests(t, provider, 1)
	in.start("worker", env...).ready()

	// Only a sweep brings this one back, and it finds nothing wrong with the
	// other.
	in.submitLater(base, 1, 2)
	in.lateCompletion()
	awaitRequests(t, provider, 2)
	// River closes the other one's job a moment after its email is sent.
	eventually(t, "one job is running as it began, that of the email that is being sent", func() bool {
		return in.count(`SELECT count(*) FROM outbox.river_job
			WHERE kind = 'deliver_email' AND state = 'running' AND errors IS NULL`) == 1
	})
	in.exec("UPDATE outbox.river_job SET state = 'available' WHERE state = 'running'")
	eventually(t, "others look at it", func() bool {
		return in.count("SELECT count(*) FROM outbox.river_job WHERE (metadata ->> 'snoozes')::int >= 2") == 1
	})
	if n := provider.Requests(); n != 2 {
		t.Errorf("%d requests while the first is being sent, want 2", n)
	}
	close(release)
	in.awaitEnded()
	in.wantSentOnce(provider, 2)
	if n := in.count("SELECT count(*) FROM outbox.attempts"); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
}

// F9: River says completed and the email is queued: it is sent.
func TestF9JobCompletedEmailQueued(t *testing.T) {
	t.Parallel()
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	base := in.start("api", sendGridEnv(provider)...).url("api")
	in.submitLater(base, 0, 3)
	in.lateCompletion()
	in.start("worker", sendGridEnv(provider)...)
	in.awaitEnded()
	in.wantSentOnce(provider, 3)
}

// F9: River says completed and the worker dies while it sends: the attempt is
// taken over all the same.
func TestF9JobCompletedEmailSending(t *testing.T) {
	t.Parallel()
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.Resend)
	provider.Respond(func(r providertest.Seen) providertest.Reaction {
		if r.Number == 1 {
			return providertest.Accept().Then(providertest.Hang())
		}
		return providertest.Accept()
	})
	base := in.start("api", resendEnv(provider)...).url("api")
	worker := in.start("worker", resendEnv(provider)...).ready()
	in.submit(base, 0, 1)
	awaitAccepted(t, provider, 1)
	in.exec("UPDATE outbox.river_job SET state = 'completed', finalized_at = now() WHERE state = 'running'")
	worker.kill()
	in.start("worker", resendEnv(provider)...)
	in.awaitEnded()
	in.wantSentOnce(provider, 1)
}

// F9: the email is sent and River says that its job is to be run: nothing is
// sent again.
func TestF9JobThrownBackEmailSent(t *testing.T) {
	t.Parallel()
	const emails = 3
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	base := in.start("api", sendGridEnv(provider)...).url("api")
	in.start("worker", sendGridEnv(provider)...)
	in.submit(base, 0, emails)
	completed := func() bool {
		return in.count("SELECT count(*) FROM outbox.river_job WHERE kind = 'deliver_email' AND state = 'completed'") == emails
	}
	eventually(t, "the jobs are completed", completed)
	in.exec(`UPDATE outbox.river_job SET state = 'available', finalized_at = NULL, scheduled_at = now()
		WHERE kind = 'deliver_email'`)
	eventually(t, "the jobs are completed again", completed)
	if n := in.count("SELECT count(*) FROM outbox.river_job WHERE kind = 'deliver_email' AND attempt = 2"); n != emails {
		t.Fatalf("%d jobs ran again, want %d", n, emails)
	}
	in.wantSentOnce(provider, emails)
	if n := provider.Requests(); n != emails {
		t.Errorf("%d requests, want %d", n, emails)
	}
}

// F25: an overloaded worker is killed in the middle of a full queue, and so is
// the next one. What was accepted and not recorded is recognised by its key.
func TestF25KilledUnderOverload(t *testing.T) {
	t.Parallel()
	const (
		emails = 300
		held   = 25 // are accepted and not recorded at each kill, for certain
		kills  = 2
	)
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.Resend)
	env := append(resendEnv(provider), "OUTBOXD_CONCURRENCY=50")
	base := in.start("api", env...).url("api")
	in.submitBatches(base, emails)

	var killed [kills]chan struct{}
	for i := range killed {
		killed[i] = make(chan struct{})
	}
	var firsts sends
	var accepted atomic.Int32
	provider.Respond(func(r providertest.Seen) providertest.Reaction {
		if !firsts.note(r.Reference) {
			return providertest.Accept()
		}
		// Of each hundred, the last quarter gets its answer after a kill.
		n := int(accepted.Add(1)) - 1
		if round := n / 100; round < kills && n%100 >= 100-held {
			return providertest.Accept().When(killed[round])
		}
		return providertest.Accept()
	})
	for i := range killed {
		worker := in.start("worker", env...)
		awaitAccepted(t, provider, (i+1)*100)
		worker.kill()
		close(killed[i])
	}
	in.start("worker", env...)
	in.awaitEnded()
	in.wantSentOnce(provider, emails)
	if n := len(provider.Replays()); n < kills*held {
		t.Errorf("%d keys were recognised, want at least %d: the kills did not hit", n, kills*held)
	}
}

// submitBatches submits emails, a hundred at a time.
func (in *installation) submitBatches(base string, emails int) {
	in.t.Helper()
	for from := 0; from < emails; from += 100 {
		var batch []any
		for i := from; i < min(from+100, emails); i++ {
			batch = append(batch, email(i))
		}
		if a := mustCall(in.t, "POST", base+"/emails/batch", in.token, "", batch); a.status >= 300 {
			in.t.Fatalf("answer %d: %s", a.status, a.body)
		}
	}
}
