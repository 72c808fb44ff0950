package e2e_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/internal/pgproxy"
	"github.com/outboxd/outboxd/providers/providertest"
)

// awaitLines waits until the program has printed so many lines that hold all
// of the texts.
func (p *process) awaitLines(n int, texts ...string) {
	p.t.Helper()
	p.await(strings.Join(texts, ", "), func() string {
		found := 0
		for _, line := range p.lines {
			if holdsAll(line, texts) {
				found++
			}
		}
		if found < n {
			return ""
		}
		return "found"
	})
}

func holdsAll(line string, texts []string) bool {
	for _, text := range texts {
		if !strings.Contains(line, text) {
			return false
		}
	}
	return true
}

// F13: each answer of the database takes 2 s. Nothing is taken for dead, and
// nothing is sent twice.
func TestF13SlowDatabase(t *testing.T) {
	t.Parallel()
	const emails = 24
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	base := in.start("api", sendGridEnv(provider)...).url("api")
	proxy := pgproxy.New(t, in.databaseURL)
	env := append(sendGridEnv(provider), "DATABASE_URL="+proxy.URL())
	for range 2 {
		in.start("worker", env...).ready()
	}
	proxy.SetLatency(2 * time.Second)
	in.submitBatches(base, emails)
	in.awaitEnded()
	in.wantSentOnce(provider, emails)
	if n := provider.Requests(); n != emails {
		t.Errorf("%d requests for %d emails", n, emails)
	}
}

// F14: the database is cut off after the provider has accepted and before that
// is recorded. The worker remembers until it is back, and needs no restart. A
// worker that still has its database sees the doubt and leaves it, or there
// would be another mail: the provider knows no keys.
func TestF14DatabaseCutBeforeFinish(t *testing.T) {
	t.Parallel()
	t.Run("only worker", func(t *testing.T) { t.Parallel(); testCutBeforeFinish(t, false) })
	t.Run("with a neighbour", func(t *testing.T) { t.Parallel(); testCutBeforeFinish(t, true) })
}

func testCutBeforeFinish(t *testing.T, neighbour bool) {
	t.Helper()
	const emails = 5
	// Finish is tried again after 50 ms, doubling, at most 5 s: this is how
	// many tries take about a second, or more than a minute.
	tries := 5
	if os.Getenv("OUTBOXD_TEST_LONG") != "" {
		tries = 19
	}
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	proxy := pgproxy.New(t, in.databaseURL)
	cut := make(chan struct{})
	provider.OnAccept(func(a providertest.Accepted) {
		if a.Number == emails {
			proxy.Refuse()
			proxy.CutAll()
			close(cut)
		}
	})
	provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Accept().When(cut) })
	base := in.start("api", sendGridEnv(provider)...).url("api")
	worker := in.start("worker", append(sendGridEnv(provider), "DATABASE_URL="+proxy.URL())...).ready()
	in.submit(base, 0, emails)
	await(t, "the cut", cut)
	const open = "SELECT count(*) FROM outbox.attempts WHERE stage = 'sending'"
	if n := in.count(open); n != emails {
		t.Fatalf("%d attempts are open at the cut, want %d: it did not hit", n, emails)
	}
	if neighbour {
		in.start("worker", sendGridEnv(provider)...).ready()
		eventually(t, "the neighbour sees the doubt", func() bool {
			return in.count("SELECT count(*) FROM outbox.emails WHERE status = 'unknown'") == emails
		})
	}
	worker.awaitLines(tries*emails, "database is away")
	if n := in.count(open); n != emails {
		t.Fatalf("%d attempts are open before the database is back, want %d", n, emails)
	}
	proxy.Accept()
	in.awaitEnded()
	in.wantSentOnce(provider, emails)
	if n := in.count("SELECT count(*) FROM outbox.attempts WHERE stage = 'accepted' AND evidence = 'response'"); n != emails {
		t.Errorf("%d attempts are recorded with the provider's answer, want %d", n, emails)
	}

	worker.ready()
	in.submit(base, emails, 2*emails)
	in.awaitEnded()
	in.wantSentOnce(provider, 2*emails)
}

// setReadOnly makes the database read-only, or writable again, for all
// sessions, as a failover does: by ending them.
func (in *installation) setReadOnly(on bool) {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cfg, err := pgx.ParseConfig(in.databaseURL)
	if err != nil {
		in.t.Fatal(err)
	}
	cfg.RuntimeParams["default_transaction_read_only"] = "off" // of this session
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		in.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	value := "off"
	if on {
		value = "on"
	}
	for _, sql := range []string{
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = ` + value + `', current_database()); END $$`,
		`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			in.t.Fatal(err)
		}
	}
}

// F28: the database becomes read-only while emails are being sent and others
// wait. What was accepted is recorded when it can be and not sent again,
// nothing is begun, and submissions are refused so that they can be repeated.
func TestF28ReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	const (
		sending = 4
		waiting = 6
		refusal = "in a read-only transaction"
	)
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	release := make(chan struct{})
	provider.Respond(func(r providertest.Seen) providertest.Reaction {
		if r.Number <= sending {
			return providertest.Accept().When(release)
		}
		return providertest.Accept()
	})
	env := append(sendGridEnv(provider), "OUTBOXD_CONCURRENCY=4")
	base := in.start("api", env...).url("api")
	worker := in.start("worker", env...).ready()
	in.submit(base, 0, sending+waiting)
	awaitAccepted(t, provider, sending)

	in.setReadOnly(true)
	for range 3 {
		checkRetryAdvice(t, mustCall(t, "POST", base+"/emails", in.token, "key", email(100)))
	}
	worker.awaitLines(2, "no liveness session", refusal)
	close(release)
	worker.awaitLines(3*sending, "finish attempt", refusal)
	if n := provider.Requests(); n != sending {
		t.Errorf("%d requests, want none after the first %d", n, sending)
	}
	if n := in.count("SELECT count(*) FROM outbox.attempts"); n != sending {
		t.Errorf("%d attempts, want %d", n, sending)
	}

	in.setReadOnly(false)
	eventually(t, "the API takes the submission", func() bool {
		return mustCall(t, "POST", base+"/emails", in.token, "key", email(100)).status == http.StatusAccepted
	})
	in.awaitEnded()
	in.wantSentOnce(provider, sending+waiting+1)
	if n := provider.Requests(); n != sending+waiting+1 {
		t.Errorf("%d requests, want %d", n, sending+waiting+1)
	}
}

// F29: the connection on which River hears of new jobs is there and hears
// nothing. Emails are picked up all the same, when the worker next looks.
func TestF29ListenerSilentlyDead(t *testing.T) {
	t.Parallel()
	const emails = 3
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	proxy := pgproxy.New(t, in.databaseURL)
	base := in.start("api", sendGridEnv(provider)...).url("api")
	in.start("worker", append(sendGridEnv(provider), "DATABASE_URL="+proxy.URL())...).ready()
	in.submit(base, 0, 1)
	awaitAccepted(t, provider, 1)

	// The worker listens anew. Postgres takes it for listening, and nothing of
	// what it says arrives.
	silent := proxy.On(pgproxy.Autocommit, pgproxy.HoldAfter(make(chan struct{})), pgproxy.Saw(`LISTEN "outbox.`), pgproxy.Always())
	in.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'outboxd-worker'`)
	await(t, "the worker listens", silent.Fired())
	var took []time.Duration
	for i := 1; i < emails; i++ {
		in.submit(base, i, i+1)
		submitted := time.Now()
		awaitAccepted(t, provider, i+1)
		took = append(took, time.Since(submitted))
	}
	in.awaitEnded()
	in.wantSentOnce(provider, emails)
	t.Logf("picked up after %v", took)
}
