package e2e_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxd/outboxd/internal/pgproxy"
	"github.com/outboxd/outboxd/providers/providertest"
)

// heldBySQL is the condition that a worker's session stands.
const heldBySQL = `outbox.workers w JOIN pg_locks l
	ON l.locktype = 'advisory' AND l.granted AND l.objid = w.lock_key::oid AND l.objsubid = 2
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// pids returns the process ids of workers.
func pids(workers ...*process) []int {
	all := make([]int, len(workers))
	for i, w := range workers {
		all[i] = w.cmd.Process.Pid
	}
	return all
}

// awaitAlive waits until all the workers have a session.
func (in *installation) awaitAlive(workers ...*process) {
	in.t.Helper()
	eventually(in.t, "every worker has a session", func() bool {
		return in.count(`SELECT count(DISTINCT w.pid) FROM `+heldBySQL+` WHERE w.pid = ANY ($1)`, pids(workers...)) == len(workers)
	})
}

// checkRunning checks that processes have not ended.
func checkRunning(t *testing.T, processes ...*process) {
	t.Helper()
	for _, p := range processes {
		select {
		case <-p.done:
			t.Errorf("%v ended: %v", p.cmd.Args, p.err)
		default:
		}
	}
}

// acceptances counts the accepted messages by subject, which in these tests is
// an email's own.
func acceptances(t *testing.T, p *providertest.HTTP) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, a := range p.Accepted() {
		var mail struct{ Subject string }
		if err := json.Unmarshal(a.Body, &mail); err != nil {
			t.Fatal(err)
		}
		all[mail.Subject]++
	}
	return all
}

// checkOnce checks that n emails are sent, and were accepted once each.
func (in *installation) checkOnce(p *providertest.HTTP, n int) {
	in.t.Helper()
	if sent := in.count("SELECT count(*) FROM outbox.emails WHERE status = 'sent' AND NOT possible_duplicate"); sent != n {
		in.t.Errorf("%d emails are sent, want %d", sent, n)
	}
	accepted := acceptances(in.t, p)
	if len(accepted) != n {
		in.t.Errorf("the provider accepted %d emails, want %d", len(accepted), n)
	}
	for subject, times := range accepted {
		if times != 1 {
			in.t.Errorf("%s was accepted %d times", subject, times)
		}
	}
}

// Postgres gets SIGKILL and comes back, again and again, while four workers
// deliver. Nothing is lost, nothing doubled, and all workers are at work
// afterwards (I3, I10).
func TestLivenessPostgresKilled(t *testing.T) {
	t.Parallel()
	const perSecond, perKill, concurrency = 50, 150, 5
	kills := repeats(t, "OUTBOXD_TEST_PG_KILLS", 1)
	pg := startCrashable(t)
	outboxctl(t, pg.proxy.URL(), "migrate", "up")
	in := installOn(t, pg.proxy.URL())
	provider := providertest.NewHTTP(t, providertest.Resend)
	provider.Respond(func(providertest.Seen) providertest.Reaction {
		return providertest.Accept().Late(50 * time.Millisecond) // so that kills meet sends
	})
	env := append(resendEnv(provider), "OUTBOXD_CONCURRENCY=5")
	api := in.start("api", env...)
	var workers []*process
	for range 4 {
		workers = append(workers, in.start("worker", env...))
	}
	for _, w := range workers {
		w.ready()
	}

	total := perKill * (kills + 1)
	load := submitSteadily(api.url("api"), in.token, total, perSecond)
	for acknowledged := 1; acknowledged <= total; acknowledged++ {
		if a := await(t, "an acknowledgement", load); a.err != nil {
			t.Fatalf("submission %d: %v", a.number, a.err)
		}
		if acknowledged%perKill == 0 && pg.restarts < kills {
			pg.restart()
		}
	}
	submitted := time.Now()
	in.awaitEnded()
	took := time.Since(submitted)
	in.awaitAlive(workers...)

	// As many as all of them together can hold.
	release := make(chan struct{})
	provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Accept().When(release) })
	in.submit(api.url("api"), total, total+len(workers)*concurrency)
	total += len(workers) * concurrency
	eventually(t, "all workers send", func() bool {
		return in.count(`SELECT count(DISTINCT w.pid) FROM outbox.attempts a JOIN outbox.workers w ON w.id = a.worker
			WHERE a.stage = 'sending'`) == len(workers)
	})
	close(release)
	in.awaitEnded()
	checkRunning(t, append(workers, api)...)
	in.checkOnce(provider, total)
	t.Logf("Postgres killed %d times and away for %v; %d emails, the last ended %v after the last submission; "+
		"%d requests were replays, %d sessions in all", pg.restarts, pg.away.Round(time.Millisecond), total,
		took.Round(time.Millisecond), len(provider.Replays()), in.count("SELECT count(*) FROM outbox.workers"))
}

// The network between one of two workers and Postgres is cut while it sends,
// and heals. The other takes over, whether Postgres notices or not, and what
// the first one says late is the truth or changes nothing.
func TestLivenessNetworkCut(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		dialect  providertest.Dialect
		keys     bool
		notices  bool
		settings []string
	}{
		{"native keys, Postgres ends the session", providertest.Resend, true, true, nil},
		{"native keys, Postgres keeps the session", providertest.Resend, true, false, []string{"OUTBOXD_SEND_TIMEOUT=3s"}},
		{"no keys, Postgres ends the session", providertest.SendGrid, false, true, nil},
		{"no keys, Postgres keeps the session", providertest.SendGrid, false, false, []string{"OUTBOXD_SEND_TIMEOUT=3s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := startCut(t, test.dialect, append(test.settings, "OUTBOXD_ON_UNKNOWN=hold", "OUTBOXD_UNKNOWN_WAIT=1s")...)
			c.cut(test.notices)
			if test.keys {
				eventually(t, "the other worker replays", func() bool { return c.log.replayed() >= cutHeld })
			} else {
				eventually(t, "the other worker sees the doubts", func() bool {
					return c.in.count("SELECT count(*) FROM outbox.emails WHERE status = 'unknown'") == cutHeld
				})
			}
			t.Logf("taken over %v after the cut", time.Since(c.began).Round(time.Millisecond))
			if os.Getenv(longEnv) != "" {
				<-time.After(time.Until(c.began.Add(time.Minute)))
			}
			c.heal()
			if test.keys {
				c.in.awaitEnded()
				c.in.checkOnce(c.provider, c.submitted)
				return
			}
			c.checkDoubts(test.notices)
		})
	}
}

// cutHeld is how many sends a worker holds when it is cut off. Of each three
// the provider accepts one and answers late, accepts one and never answers,
// and accepts and answers nothing of one.
const cutHeld = 9

// cutOff is a worker behind a network that breaks, and another.
type cutOff struct {
	t         *testing.T
	in        *installation
	provider  *providertest.HTTP
	network   *pgproxy.Proxy
	worker    *process
	other     *process
	base      string
	submitted int
	log       sends
	release   chan struct{}
	began     time.Time
}

// startCut returns when the one worker holds its sends and the other is ready.
func startCut(t *testing.T, dialect providertest.Dialect, settings ...string) *cutOff {
	t.Helper()
	c := &cutOff{t: t, in: install(t), provider: providertest.NewHTTP(t, dialect), release: make(chan struct{})}
	c.network = pgproxy.New(t, c.in.databaseURL)
	env := append(resendEnv(c.provider), settings...)
	if dialect.Name == "sendgrid" {
		env = append([]string{"OUTBOXD_PROVIDERS=sendgrid", "SENDGRID_API_KEY=SG.test", "SENDGRID_BASE_URL=" + c.provider.URL()}, settings...)
	}
	c.provider.Respond(func(r providertest.Seen) providertest.Reaction {
		first, number := c.log.note(r.Reference), c.log.keys()
		switch {
		case !first || number > cutHeld:
			return providertest.Accept()
		case number%3 == 0:
			return providertest.Accept().When(c.release)
		case number%3 == 1:
			return providertest.Accept().Then(providertest.Hang())
		default:
			return providertest.Hang()
		}
	})
	c.base = c.in.start("api", env...).url("api")
	// Of repeated variables the last one counts.
	c.worker = c.in.start("worker", append(env, "DATABASE_URL="+c.network.URL())...).ready()
	// One after the other, so that each has a number.
	for held := 1; held <= cutHeld; held++ {
		c.submit(1)
		eventually(t, "the provider has it", func() bool { return c.log.keys() == held })
	}
	c.other = c.in.start("worker", env...).ready()
	return c
}

// keys counts the keys that the provider saw, each with a complete request.
func (s *sends) keys() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// replayed counts the keys that the provider saw more than once.
func (s *sends) replayed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, at := range s.seen {
		if len(at) > 1 {
			n++
		}
	}
	return n
}

func (c *cutOff) submit(n int) {
	c.t.Helper()
	c.in.submit(c.base, c.submitted, c.submitted+n)
	c.submitted += n
}

// cut breaks the network, and lets the provider answer into the cut. What
// Postgres does within seconds when a host is gone, tcp_user_timeout, it cannot
// do here: the proxy's kernel goes on to answer for the worker. That Postgres
// notices is therefore done for it.
func (c *cutOff) cut(noticed bool) {
	c.t.Helper()
	c.network.Blackhole()
	c.began = time.Now()
	close(c.release)
	c.submit(5) // the other one's
	if !noticed {
		return
	}
	ended := c.in.count(`SELECT count(*) FILTER (WHERE pg_terminate_backend(l.pid)) FROM `+heldBySQL+` WHERE w.pid = ANY ($1)`, pids(c.worker))
	if ended != 1 {
		c.t.Fatalf("%d sessions of the worker ended, want 1", ended)
	}
}

// heal mends the network; the worker that was cut off works again, alone.
func (c *cutOff) heal() {
	c.t.Helper()
	c.worker.await("the worker has noticed", func() string {
		if i := slices.IndexFunc(c.worker.lines, func(line string) bool {
			return strings.Contains(line, "liveness session lost")
		}); i >= 0 {
			return c.worker.lines[i]
		}
		return ""
	})
	c.network.Heal()
	healed := time.Now()
	c.in.awaitAlive(c.worker)
	c.t.Logf("at work again %v after the network healed", time.Since(healed).Round(time.Millisecond))
	c.other.stop(syscall.SIGTERM)
	before := c.submitted
	c.submit(5)
	eventually(c.t, "the worker delivers again", func() bool { return c.deliveredSince(before) == 5 })
	checkRunning(c.t, c.worker)
}

// deliveredSince counts those of the emails after the first so many that are sent.
// What was submitted before may be sent at any time.
func (c *cutOff) deliveredSince(first int) int {
	c.t.Helper()
	return c.in.count(`SELECT count(*) FROM (SELECT status FROM outbox.emails ORDER BY id OFFSET $1) AS e WHERE status = 'sent'`, first)
}

// checkDoubts checks what became of each email at a provider without keys: the
// status is the truth, as far as anybody can know it, and nothing was sent
// twice. answered says that the worker must have heard the late answers; else
// its sends may have timed out before.
func (c *cutOff) checkDoubts(answered bool) {
	c.t.Helper()
	const late = cutHeld / 3
	if answered {
		eventually(c.t, "what the worker heard in the cut is recorded", func() bool {
			return c.deliveredSince(0) == c.submitted-cutHeld+late
		})
	}
	sent, unknown := c.deliveredSince(0), c.in.count("SELECT count(*) FROM outbox.emails WHERE status = 'unknown' AND ended_at IS NULL")
	if sent+unknown != c.submitted || unknown < cutHeld-late {
		c.t.Errorf("of %d emails %d are sent and %d in doubt; the provider answered %d", c.submitted, sent, unknown,
			c.submitted-cutHeld+late)
	}
	for subject, times := range acceptances(c.t, c.provider) {
		if times > 1 {
			c.t.Errorf("%s was accepted %d times", subject, times)
		}
	}
	if n := c.log.keys(); n != c.submitted || c.log.replayed() > 0 {
		c.t.Errorf("%d emails were handed over with %d keys, %d of them again", c.submitted, n, c.log.replayed())
	}
	var keys []string
	for _, a := range c.provider.Accepted() {
		keys = append(keys, a.Reference)
	}
	lies := c.in.count(`SELECT count(*) FROM outbox.emails e WHERE e.status = 'sent' AND NOT EXISTS (
		SELECT FROM outbox.attempts a WHERE a.email_id = e.id AND a.provider_key = ANY ($1::uuid[]))`, keys)
	if lies > 0 {
		c.t.Errorf("%d emails are called sent and were not accepted", lies)
	}
}
