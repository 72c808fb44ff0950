package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboxd/outboxd/internal/pgproxy"
)

// An API process is stopped with SIGSTOP between its INSERT and its COMMIT. It
// holds its key until Postgres ends its session, and nothing else.
func TestAPIFrozenDuringCommit(t *testing.T) {
	t.Parallel()
	const hammers = 8
	in := install(t)
	proxy := pgproxy.New(t, in.databaseURL)
	// So long that a slow machine can measure all others while the key is held.
	frozen := in.startBehind(proxy, "DATABASE_URL="+proxy.URL()+"&application_name=frozen&idle_in_transaction_session_timeout=20s")
	frozenBase := frozen.url("api")
	base := in.start("api", "OUTBOXD_PROVIDERS=smtp").url("api")
	submitMany(t, base, in.token, "warm") // connections, on both sides
	usual := submitMany(t, base, in.token, "usual")

	rule := proxy.On(pgproxy.Commit, pgproxy.HoldBefore(make(chan struct{})), pgproxy.Saw(insertsKey))
	zombie := background("POST", frozenBase+"/emails", in.token, "held", email(0))
	await(t, "the hold", rule.Fired())
	frozen.pause()

	var wg sync.WaitGroup
	results := make([]hammered, hammers)
	for i := range results {
		wg.Go(func() { results[i] = hammer(base, in.token, "held", email(0)) })
	}
	// Behind the held key they would take until its session ends. A busy machine is
	// slow without it, too, at times; what waits for the key is slow each time.
	limit := max(time.Second, 4*usual)
	p99 := submitMany(t, base, in.token, "other-")
	for try := 2; p99 > limit && try <= 3; try++ {
		p99 = submitMany(t, base, in.token, fmt.Sprintf("other-%d-", try))
	}
	held := in.count(`SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'frozen' AND state = 'idle in transaction'`)
	if held != 1 {
		t.Fatalf("%d sessions hold the key after the measurement, want 1: the test shows nothing", held)
	}
	if p99 > limit {
		t.Errorf("other keys' p99 is %v, want at most %v; it is %v when no key is held", p99, limit, usual)
	}
	wg.Wait() // the key works again
	conflicts := 0
	for _, r := range results {
		if r.err != nil {
			t.Error(r.err)
		}
		conflicts += r.conflicts
		if body := string(r.accepted.body); body != string(results[0].accepted.body) {
			t.Errorf("answers %s and %s for one key", body, results[0].accepted.body)
		}
	}
	if conflicts < hammers {
		t.Errorf("%d answers of 409 for %d clients", conflicts, hammers)
	}
	t.Logf("other keys' p99 %v, %v when no key is held; %d answers of 409 for the held key", p99, usual, conflicts)

	if err := frozen.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	late := await(t, "the answer of the frozen process", zombie)
	switch {
	case late.err != nil:
		t.Error(late.err)
	case late.status == http.StatusAccepted && late.replayed:
	default:
		checkRetryAdvice(t, late.answer)
	}
	retry := mustCall(t, "POST", frozenBase+"/emails", in.token, "held", email(0))
	for retry.status == http.StatusServiceUnavailable { // on a machine that is slow to connect again
		checkRetryAdvice(t, retry)
		retry = mustCall(t, "POST", frozenBase+"/emails", in.token, "held", email(0))
	}
	if retry.status != http.StatusAccepted || !retry.replayed || string(retry.body) != string(results[0].accepted.body) {
		t.Errorf("retry at the frozen process: %d, replayed %v, %s", retry.status, retry.replayed, retry.body)
	}
	if n := in.emails(0); n != 1 {
		t.Errorf("%d emails of the held key, want 1", n)
	}
}

// submitMany submits 208 emails with keys of their own from 16 clients, and
// returns the 99th percentile of how long an answer took.
func submitMany(t *testing.T, base, token, prefix string) time.Duration {
	t.Helper()
	const clients, each = 16, 13
	var wg sync.WaitGroup
	took := make([]time.Duration, clients*each)
	for client := range clients {
		wg.Go(func() {
			for i := client * each; i < (client+1)*each; i++ {
				start := time.Now()
				a, err := call("POST", base+"/emails", token, fmt.Sprint(prefix, i), email(i+1))
				took[i] = time.Since(start)
				if err != nil || a.status != http.StatusAccepted {
					t.Errorf("submission with a key of its own: answer %d %s, %v", a.status, a.body, err)
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took[len(took)*99/100]
}

// hammered is what a client got that repeats a submission at once until it is
// accepted.
type hammered struct {
	conflicts int
	accepted  answer
	err       error
}

func hammer(base, token, key string, body any) (h hammered) {
	for {
		a, err := call("POST", base+"/emails", token, key, body)
		if err != nil {
			h.err = err
			return h
		}
		switch {
		case a.status == http.StatusAccepted:
			h.accepted = a
			return h
		case a.status == http.StatusConflict && a.header.Get("Retry-After") != "":
			h.conflicts++
		default:
			h.err = fmt.Errorf("answer %d %s for the held key", a.status, a.body)
			return h
		}
	}
}
