package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
)

// The size of a history: enough at once to collide, and enough kills to hit a
// submission before its commit, after it, and in between.
const (
	historyClients = 8
	historyOps     = 16 // of each client
	historyKills   = 4
	givesUpEvery   = 8 // one in so many operations has an impatient client
)

// Histories of clients against two API processes that are killed and started
// again meanwhile linearize. I6. OUTBOXD_TEST_HISTORIES=60 records more.
func TestHistoriesWithKillsLinearize(t *testing.T) {
	t.Parallel()
	in := install(t)
	apis := in.startPair()
	total := map[verdict]int{}
	n := repeats(t, "OUTBOXD_TEST_HISTORIES", 4)
	for number := range n {
		r := newRecorder(in)
		apis.recordHistory(r, number)
		r.look(in)
		r.check(true)
		for _, op := range r.history {
			total[op.Output.(outcome).verdict]++
		}
	}
	if apis.kills != n*historyKills {
		t.Errorf("%d kills, want %d", apis.kills, n*historyKills)
	}
	emails := in.count("SELECT count(*) FROM outbox.emails")
	for _, table := range []string{"river_job", "idempotency_keys"} {
		if rows := in.count("SELECT count(*) FROM outbox." + table); rows != emails {
			t.Errorf("%d rows in %s, want one for each of %d emails", rows, table, emails)
		}
	}
	t.Logf("%d histories, %d kills, %d emails, operations: %v", n, apis.kills, emails, total)
}

// repeats is how often a test does its thing: as often as the environment
// variable says, and few times by default.
func repeats(t *testing.T, variable string, few int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number of repeats", variable, text)
	}
	return n
}

// pair is two API processes on one database.
type pair struct {
	in    *installation
	apis  [2]*process
	urls  [2]atomic.Value // string
	kills int

	conflicts atomic.Int64 // answers 409
}

func (in *installation) startPair() *pair {
	in.t.Helper()
	p := &pair{in: in}
	for i := range p.apis {
		p.start(i)
	}
	return p
}

func (p *pair) start(i int) {
	p.apis[i] = p.in.start("api", "OUTBOXD_PROVIDERS=smtp")
	p.urls[i].Store(p.apis[i].url("api"))
}

func (p *pair) url(i int) string { return p.urls[i].Load().(string) }

// killAndRestart leaves the other process up, so a client always has one.
func (p *pair) killAndRestart(i int) {
	p.apis[i].kill()
	p.kills++
	p.start(i)
}

// recordHistory runs clients to their end, and kills processes in between:
// when a share of the answers is in, so that the rest is on its way.
func (p *pair) recordHistory(r *recorder, number int) {
	progress := make(chan struct{}, historyClients*historyOps)
	var wg sync.WaitGroup
	for c := range historyClients {
		random := rand.New(rand.NewPCG(uint64(number), uint64(c)))
		wg.Go(func() {
			for i := range historyOps {
				p.submitSomewhere(r, random, anyOf(random, number, i))
				progress <- struct{}{}
			}
		})
	}
	for kill := range historyKills {
		for range historyClients * historyOps / (historyKills + 1) {
			<-progress
		}
		p.killAndRestart(kill % len(p.apis))
	}
	wg.Wait()
}

// anyOf draws a submission. New keys come up all the time, so that there is
// always a first submission for a kill to hit.
func anyOf(random *rand.Rand, history, i int) submitted {
	key := i/4 + random.IntN(2)
	request := "a"
	if random.IntN(4) == 0 {
		request = "b"
	}
	return submitted{key: fmt.Sprintf("history-%d-key-%d", history, key), request: request}
}

// submitSomewhere submits to one of the processes, or to the other if that one
// is down.
func (p *pair) submitSomewhere(r *recorder, random *rand.Rand, in submitted) {
	wait := patience
	if random.IntN(givesUpEvery) == 0 {
		// The usual way to lose an answer without anybody's death.
		wait = time.Duration(random.IntN(20_000)) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for at := random.IntN(len(p.apis)); !r.submit(ctx, p.url(at), in); at = 1 - at {
		if ctx.Err() != nil {
			return
		}
	}
}

// recorder writes down what clients asked and were told.
type recorder struct {
	t     *testing.T
	token string
	began time.Time

	mu      sync.Mutex
	history []porcupine.Operation
}

func newRecorder(in *installation) *recorder {
	return &recorder{t: in.t, token: in.token, began: time.Now()}
}

func (r *recorder) now() int64 { return int64(time.Since(r.began)) }

func (r *recorder) record(call, ret int64, in submitted, out outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, op(call, ret, in, out))
}

// submit returns false if there was nobody to take the request. Then nothing
// has happened and there is nothing to record.
func (r *recorder) submit(ctx context.Context, base string, in submitted) (sent bool) {
	body := email(0)
	body["subject"] = in.key + " " + in.request
	call := r.now()
	a, err := callWithin(ctx, "POST", base+"/emails", r.token, in.key, body)
	ret := r.now()
	if network, ok := errors.AsType[*net.OpError](err); ok && network.Op == "dial" {
		return false
	}
	out := r.outcomeOf(a, err)
	if out.verdict == lost {
		ret = neverReturned
	}
	r.record(call, ret, in, out)
	return true
}

func (r *recorder) outcomeOf(a answer, err error) outcome {
	if err != nil {
		return outcome{verdict: lost}
	}
	var told struct{ ID, Name string }
	a.decode(r.t, &told)
	switch {
	case a.status == http.StatusAccepted && a.replayed:
		return outcome{verdict: replayed, id: told.ID}
	case a.status == http.StatusAccepted:
		return outcome{verdict: created, id: told.ID}
	case told.Name == "invalid_idempotent_request":
		return outcome{verdict: refused}
	case told.Name == "concurrent_idempotent_requests":
		return outcome{verdict: declined}
	case a.status == http.StatusServiceUnavailable:
		return outcome{verdict: lost}
	}
	r.t.Errorf("answer %d %s", a.status, a.body)
	return outcome{verdict: lost}
}

// look reads what the database has for each key of the history. All of it is
// one snapshot, so it is one moment for each key.
func (r *recorder) look(in *installation) {
	r.t.Helper()
	keys := map[string][]stored{}
	for _, op := range r.history {
		keys[op.Input.(submitted).key] = nil
	}
	call := r.now()
	for _, found := range in.storedEmails() {
		key, request, _ := strings.Cut(found.request, " ")
		if _, ours := keys[key]; ours {
			keys[key] = append(keys[key], stored{request, found.id})
		}
	}
	ret := r.now()
	for key, emails := range keys {
		r.record(call, ret, submitted{key: key, look: true}, outcome{verdict: looked, emails: emails})
	}
}

func (in *installation) storedEmails() []stored {
	in.t.Helper()
	return rowsOf(in, func(row pgx.CollectableRow) (s stored, err error) {
		return s, row.Scan(&s.request, &s.id)
	}, "SELECT c.subject, e.id::text FROM outbox.emails e JOIN outbox.email_contents c ON c.email_id = e.id")
}

// check asks Porcupine.
func (r *recorder) check(want bool) {
	r.t.Helper()
	if got := porcupine.CheckOperations(oneEmailPerKey, r.history); got != want {
		for _, op := range r.history {
			r.t.Logf("%d to %d: %s", op.Call, op.Return, oneEmailPerKey.DescribeOperation(op.Input, op.Output))
		}
		r.t.Fatalf("the history is linearizable: %v, want %v", got, want)
	}
}
