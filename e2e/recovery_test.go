package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

// resendEnv makes workers send to the programmable provider, which honours
// idempotency keys.
func resendEnv(p *providertest.HTTP) []string {
	return []string{"OUTBOXD_PROVIDERS=resend", "RESEND_API_KEY=re_test", "RESEND_BASE_URL=" + p.URL()}
}

// ready waits until a worker delivers.
func (p *process) ready() *process {
	p.t.Helper()
	url := p.url("ops") + "/readyz"
	eventually(p.t, "the worker is ready", func() bool {
		a, err := call("GET", url, "", "", nil)
		return err == nil && a.status == http.StatusOK
	})
	return p
}

// submit submits emails without a key and returns when all are accepted.
func (in *installation) submit(base string, from, to int) {
	in.t.Helper()
	for i := from; i < to; i++ {
		if a := mustCall(in.t, "POST", base+"/emails", in.token, "", email(i)); a.status != http.StatusAccepted {
			in.t.Fatalf("answer %d: %s", a.status, a.body)
		}
	}
}

// sends is when the provider saw each key, in order.
type sends struct {
	mu   sync.Mutex
	seen map[string][]time.Time
}

func (s *sends) note(key string) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string][]time.Time{}
	}
	s.seen[key] = append(s.seen[key], time.Now())
	return len(s.seen[key]) == 1
}

// await waits until the provider has read that many different messages whole:
// a request that has only begun when its sender is killed was never sent.
func (s *sends) await(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the provider has read the messages", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.seen) >= n
	})
}

// after returns, for each key that was sent again, how long after the moment.
func (s *sends) after(moment time.Time) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []time.Duration
	for _, at := range s.seen {
		if len(at) > 1 && at[0].Before(moment) && at[1].After(moment) {
			all = append(all, at[1].Sub(moment))
		}
	}
	return all
}

// A worker is killed while it holds 20 sends; another takes them over within
// seconds, and the provider accepts each exactly once: half of them it had
// accepted before (F7, F17, F31, I3, I10).
func TestKilledWorkerIsTakenOver(t *testing.T) {
	t.Parallel()
	const held = 20
	rounds := repeats(t, "OUTBOXD_TEST_KILLS", 2)
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.Resend)
	env := append(resendEnv(provider), "OUTBOXD_CONCURRENCY=20")
	base := in.start("api", env...).url("api")

	var log sends
	provider.Respond(func(r providertest.Seen) providertest.Reaction {
		switch first := log.note(r.Reference); {
		case !first:
			return providertest.Accept()
		case r.Number%2 == 0:
			return providertest.Accept().Then(providertest.Hang())
		default:
			return providertest.Hang()
		}
	})
	var took []time.Duration
	worker := in.start("worker", env...).ready()
	for round := range rounds {
		in.submit(base, round*held, (round+1)*held)
		log.await(t, (round+1)*held)
		successor := in.start("worker", env...).ready()
		killed := time.Now()
		worker.kill()
		in.awaitEnded()
		took = append(took, log.after(killed)...)
		worker = successor
	}
	if n := in.count("SELECT count(*) FROM outbox.emails WHERE status = 'sent' AND NOT possible_duplicate"); n != rounds*held {
		t.Errorf("%d emails are sent, want %d", n, rounds*held)
	}
	if n := len(provider.Accepted()); n != rounds*held {
		t.Errorf("the provider accepted %d, want %d", n, rounds*held)
	}
	if len(took) != rounds*held {
		t.Errorf("%d sends were taken over, want %d", len(took), rounds*held)
	}
	slices.Sort(took)
	t.Logf("%d kills, %d sends: from the kill to the next send p50 %v, p99 %v, max %v",
		rounds, len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}

// The only worker is killed; a new one goes on where it was (F31).
func TestOnlyWorkerIsReplaced(t *testing.T) {
	t.Parallel()
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.Resend)
	env := resendEnv(provider)
	base := in.start("api", env...).url("api")
	var log sends
	provider.Respond(func(r providertest.Seen) providertest.Reaction {
		if log.note(r.Reference) {
			return providertest.Accept().Then(providertest.Hang())
		}
		return providertest.Accept()
	})
	worker := in.start("worker", env...).ready()
	in.submit(base, 0, 10)
	log.await(t, 10)
	worker.kill()
	started := time.Now()
	in.start("worker", env...)
	in.awaitEnded()
	took := log.after(started)
	slices.Sort(took)
	if n := len(provider.Accepted()); n != 10 || len(took) != 10 {
		t.Fatalf("%d accepted, %d taken over, want 10 each", n, len(took))
	}
	t.Logf("from the start of the new worker to its sends: first %v, last %v", took[0], took[9])
}

// A paused worker stays the owner of what it sends until its deadline; then
// another takes over, and what the first finds out when it wakes is recorded, or
// harms nothing. OUTBOXD_TEST_LONG pauses it for three minutes.
func TestPausedWorker(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		env  func(*providertest.HTTP) []string
		kind providertest.Dialect
		// meanwhile is the status of what the paused worker held.
		meanwhile string
	}{
		{"native keys", resendEnv, providertest.Resend, "sent"},
		{"no keys", sendGridEnv, providertest.SendGrid, "unknown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			provider := providertest.NewHTTP(t, test.kind)
			// A short time-out, so that the deadline and the margin behind it pass
			// within the test.
			env := append(test.env(provider), "OUTBOXD_SEND_TIMEOUT=2s", "OUTBOXD_ON_UNKNOWN=hold", "OUTBOXD_UNKNOWN_WAIT=1s")
			testPaused(t, provider, env, test.meanwhile)
		})
	}
}

func testPaused(t *testing.T, provider *providertest.HTTP, env []string, meanwhile string) {
	t.Helper()
	const held = 5
	in := install(t)
	base := in.start("api", env...).url("api")
	var log sends
	release := make(chan struct{})
	provider.Respond(func(r providertest.Seen) providertest.Reaction {
		if log.note(r.Reference) {
			return providertest.Accept().When(release)
		}
		return providertest.Accept()
	})
	paused := in.start("worker", env...).ready()
	in.submit(base, 0, held)
	log.await(t, held)
	paused.pause()
	stopped := time.Now()
	close(release) // the answers wait in the sockets of the paused process
	in.start("worker", env...).ready()
	eventually(t, "another has taken over", func() bool {
		return in.count("SELECT count(*) FROM outbox.emails WHERE status = $1", meanwhile) == held
	})
	if os.Getenv(longEnv) != "" {
		<-time.After(time.Until(stopped.Add(3 * time.Minute)))
	}
	if err := paused.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	in.submit(base, held, 2*held)
	in.awaitEnded()
	paused.stop(syscall.SIGTERM)
	in.checkOnce(provider, 2*held)
	t.Logf("paused for %v, %d requests were replays", time.Since(stopped).Round(time.Second), len(provider.Replays()))
}

// F34: rolling restarts under load leave nothing in doubt and double nothing.
func TestRollingRestarts(t *testing.T) {
	t.Parallel()
	restarts := repeats(t, "OUTBOXD_TEST_RESTARTS", 3)
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	provider.Respond(func(providertest.Seen) providertest.Reaction {
		return providertest.Accept().Late(50 * time.Millisecond)
	})
	env := []string{"OUTBOXD_PROVIDERS=sendgrid", "SENDGRID_API_KEY=SG.test", "SENDGRID_BASE_URL=" + provider.URL()}
	base := in.start("api", env...).url("api")

	stop, submitted := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				submitted <- n
				return
			default:
			}
			if a, err := call("POST", base+"/emails", in.token, fmt.Sprint("roll-", n), email(n)); err == nil && a.status == http.StatusAccepted {
				n++
			}
		}
	}()
	workers := []*process{in.start("worker", env...).ready(), in.start("worker", env...).ready()}
	for i := range restarts {
		workers[i%2].stop(syscall.SIGTERM)
		workers[i%2] = in.start("worker", env...).ready()
	}
	close(stop)
	n := <-submitted
	in.awaitEnded()
	sent := in.count("SELECT count(*) FROM outbox.emails WHERE status = 'sent'")
	doubts := in.count("SELECT count(*) FROM outbox.attempts WHERE in_doubt_at IS NOT NULL OR stage <> 'accepted'")
	if sent != n || doubts != 0 || len(provider.Accepted()) != n {
		t.Errorf("%d submitted, %d sent, %d accepted, %d attempts in doubt or refused", n, sent, len(provider.Accepted()), doubts)
	}
	t.Logf("%d restarts, %d emails", restarts, n)
}
