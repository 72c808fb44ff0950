package e2e_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// One key, 100 times at once, at two processes: one email. I6.
// OUTBOXD_TEST_ROUNDS=50 does more.
func TestOneKeyManyTimesAtOnce(t *testing.T) {
	t.Parallel()
	in := install(t)
	apis := in.startPair()
	rounds := repeats(t, "OUTBOXD_TEST_ROUNDS", 3)
	for round := range rounds {
		apis.storm(100, fmt.Sprint("order-", round), email(round))
	}
	in.wantRows(rounds, rounds)
	t.Logf("%d rounds of 100, %d answers 409", rounds, apis.conflicts.Load())
}

// An expired key, 50 times at once: one new email.
func TestExpiredKeyManyTimesAtOnce(t *testing.T) {
	t.Parallel()
	in := install(t)
	apis := in.startPair()
	rounds := repeats(t, "OUTBOXD_TEST_ROUNDS", 3)
	for round := range rounds {
		key := fmt.Sprint("order-", round)
		old := apis.storm(1, key, email(round))
		in.exec("UPDATE outbox.emails SET status = 'sent', ended_at = now() - interval '2 days' WHERE ended_at IS NULL")
		in.exec("UPDATE outbox.idempotency_keys SET expires_at = now() WHERE key = $1", key)
		if again := apis.storm(50, key, email(round)); again == old {
			t.Errorf("round %d: the expired answer %s came again", round, old)
		}
	}
	in.wantRows(2*rounds, rounds)
}

// storm submits one request many times at once, half of it to each process.
// Exactly one answer is the first, all have the same body, which it returns.
func (p *pair) storm(submitters int, key string, body any) string {
	t := p.in.t
	t.Helper()
	answers := make([]answer, submitters)
	var first atomic.Int32
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range submitters {
		wg.Go(func() {
			<-begin
			answers[i] = p.submitUntilTaken(i%len(p.apis), key, body)
			if !answers[i].replayed {
				first.Add(1)
			}
		})
	}
	close(begin)
	wg.Wait()
	if n := first.Load(); n != 1 {
		t.Errorf("%s: %d answers were no replay, want 1", key, n)
	}
	for _, a := range answers {
		if a.status != http.StatusAccepted || string(a.body) != string(answers[0].body) {
			t.Fatalf("%s: answers %d %s and %d %s", key, a.status, a.body, answers[0].status, answers[0].body)
		}
	}
	return string(answers[0].body)
}

// submitUntilTaken does what the contract asks of a client: after 409 the same
// again. On a slow machine the last of a hundred may wait for longer than the
// lock time-out.
func (p *pair) submitUntilTaken(i int, key string, body any) answer {
	for {
		a, err := call("POST", p.url(i)+"/emails", p.in.token, key, body)
		if err != nil {
			p.in.t.Errorf("%s: %v", key, err)
			return answer{}
		}
		if a.status != http.StatusConflict {
			return a
		}
		p.conflicts.Add(1)
		if a.header.Get("Retry-After") == "" {
			p.in.t.Errorf("%s: 409 without Retry-After: %s", key, a.body)
			return a
		}
	}
}

// wantRows checks what is in the tables in all: a job for each email, and so
// many keys.
func (in *installation) wantRows(emails, keys int) {
	in.t.Helper()
	for table, want := range map[string]int{
		"emails": emails, "email_contents": emails, "idempotency_keys": keys,
		"river_job WHERE queue = 'emails'": emails, // workers have one for their upkeep
	} {
		if n := in.count("SELECT count(*) FROM outbox." + table); n != want {
			in.t.Errorf("%d rows in %s, want %d", n, table, want)
		}
	}
}
