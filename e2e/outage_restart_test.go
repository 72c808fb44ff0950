package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/internal/localpg"
	"github.com/outboxd/outboxd/internal/pgproxy"
)

// longEnv makes the tests that can run longer do so.
const longEnv = "OUTBOXD_TEST_LONG"

// Postgres gets SIGKILL and comes back, again and again, while submissions
// arrive at 200 a second and clients retry. I1, I2, I6: what was acknowledged
// is there, and every key has one email. The API process just goes on.
func TestPostgresKilledUnderLoad(t *testing.T) {
	t.Parallel()
	const perSecond = 200
	seconds, restarts := 5, 1
	if os.Getenv(longEnv) != "" {
		seconds, restarts = 60, 12
	}
	pg := startCrashable(t)
	outboxctl(t, pg.proxy.URL(), "migrate", "up")
	in := installOn(t, pg.proxy.URL())
	api := in.startBehind(pg.proxy)

	total := perSecond * seconds
	start := time.Now()
	load := submitSteadily(api.url("api"), in.token, total, perSecond)
	got := make([]acknowledgement, 0, total)
	for len(got) < total {
		a := await(t, "an acknowledgement", load)
		if a.err != nil {
			t.Fatalf("submission %d: %v", a.number, a.err)
		}
		got = append(got, a)
		if n := len(got) * (restarts + 1) / total; n > pg.restarts && n <= restarts {
			pg.restart()
		}
	}
	took := time.Since(start)

	select {
	case <-api.done:
		t.Fatalf("the API process ended: %v", api.err)
	default:
	}
	if pg.restarts != restarts {
		t.Errorf("%d restarts, want %d", pg.restarts, restarts)
	}
	in.wantRows(total, total)
	in.checkAcknowledged(got)
	t.Logf("%d submissions acknowledged in %v; Postgres killed %d times and away for %v; %s",
		total, took.Round(time.Second), pg.restarts, pg.away.Round(time.Second), summary(got))
}

// crashable is a durable Postgres behind a proxy, whose address stays.
type crashable struct {
	t        *testing.T
	dir      string
	server   *localpg.Server
	proxy    *pgproxy.Proxy
	restarts int
	away     time.Duration // in all
}

func startCrashable(t *testing.T) *crashable {
	t.Helper()
	c := &crashable{t: t, dir: devData(t)}
	c.start()
	t.Cleanup(func() {
		if err := c.server.Stop(); err != nil {
			t.Error(err)
		}
	})
	c.proxy = pgproxy.New(t, c.server.URL())
	return c
}

func (c *crashable) start() {
	c.t.Helper()
	var err error
	if c.server, err = localpg.Start(c.t.Context(), localpg.Options{DataDir: c.dir}); err != nil {
		c.t.Fatal(err)
	}
}

// restart kills the server and starts it again.
func (c *crashable) restart() {
	c.t.Helper()
	killed := time.Now()
	if err := c.server.Kill(); err != nil {
		c.t.Fatal(err)
	}
	c.start()
	if err := c.proxy.Retarget(c.server.URL()); err != nil {
		c.t.Fatal(err)
	}
	c.restarts++
	c.away += time.Since(killed)
}

// acknowledgement is how a submission ended: the id of its email, and the
// answers that made the client try again.
type acknowledgement struct {
	number   int
	id       string
	replayed bool
	refused  []int // status, 0 for none
	err      error
}

// submitSteadily submits at a steady rate, whatever becomes of what was
// submitted before.
func submitSteadily(base, token string, total, perSecond int) <-chan acknowledgement {
	done := make(chan acknowledgement, total)
	go func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for number := range total {
			<-tick.C
			go func() { done <- submitPersistently(base, token, number) }()
		}
	}()
	return done
}

// persistence bounds how long a client retries. It is no measure of speed: on a
// slow machine a backlog of submissions takes its time.
const persistence = 5 * time.Minute

// submitPersistently retries as a good client does: after what says that it
// helps, with the same key, as late as the answer asks.
func submitPersistently(base, token string, number int) acknowledgement {
	result := acknowledgement{number: number}
	deadline := time.Now().Add(persistence)
	for {
		a, err := call("POST", base+"/emails", token, fmt.Sprint("key-", number), email(number))
		switch {
		case err == nil && a.status == http.StatusAccepted:
			result.id, result.replayed = strings.TrimPrefix(a.header.Get("Location"), "/emails/"), a.replayed
			return result
		case err == nil && a.status != http.StatusServiceUnavailable && a.status != http.StatusConflict:
			result.err = fmt.Errorf("answer %d %s", a.status, a.body)
			return result
		case time.Now().After(deadline):
			result.err = errors.Join(fmt.Errorf("not accepted in %v; last answer %d %s", persistence, a.status, a.body), err)
			return result
		}
		result.refused = append(result.refused, a.status)
		seconds, _ := strconv.Atoi(a.header.Get("Retry-After"))
		<-time.After(max(time.Duration(seconds)*time.Second, 100*time.Millisecond))
	}
}

// checkAcknowledged checks that every acknowledged id exists once and is that
// of its own key and its own email.
func (in *installation) checkAcknowledged(got []acknowledgement) {
	in.t.Helper()
	ids, keys, subjects := make([]string, len(got)), make([]string, len(got)), make([]string, len(got))
	for i, a := range got {
		ids[i], keys[i], subjects[i] = a.id, fmt.Sprint("key-", a.number), fmt.Sprint("Mail ", a.number)
	}
	if distinct := len(slices.Compact(slices.Sorted(slices.Values(ids)))); distinct != len(got) {
		in.t.Errorf("%d different ids were acknowledged, want %d", distinct, len(got))
	}
	found := in.count(`SELECT count(*) FROM unnest($1::uuid[], $2::text[], $3::text[]) AS a (id, key, subject)
		JOIN outbox.emails e ON e.id = a.id
		JOIN outbox.email_contents c ON c.email_id = a.id AND c.subject = a.subject
		JOIN outbox.idempotency_keys k ON k.key = a.key AND k.email_ids = ARRAY[a.id]`, ids, keys, subjects)
	if found != len(got) {
		in.t.Errorf("%d of %d acknowledged emails are there under their key", found, len(got))
	}
}

// summary tells what the clients saw.
func summary(got []acknowledgement) string {
	answers, replayed, retried := map[int]int{}, 0, 0
	for _, a := range got {
		for _, status := range a.refused {
			answers[status]++
		}
		if len(a.refused) > 0 {
			retried++
		}
		if a.replayed {
			replayed++
		}
	}
	return fmt.Sprintf("%d submissions were retried, after these answers: %v; %d were replays of a commit that had been lost",
		retried, answers, replayed)
}
