package e2e_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/outboxd/outboxd/internal/pgproxy"
)

// A process that is told to stop answers the requests it has.
func TestAPIStopAnswersWhatItHas(t *testing.T) {
	t.Parallel()
	const requests = 4 // of an org each: those of one may share a transaction
	in := install(t)
	proxy := pgproxy.New(t, in.databaseURL)
	api := in.startBehind(proxy)
	base := api.url("api")
	release := make(chan struct{})
	rule := proxy.On(pgproxy.Commit, pgproxy.HoldBefore(release), pgproxy.Saw(insertsKey), pgproxy.Always())
	var running []<-chan heard
	var tokens []string
	for i := range requests {
		tokens = append(tokens, in.newOrg(fmt.Sprint("org-", i)))
	}
	for i := range requests {
		running = append(running, background("POST", base+"/emails", tokens[i], fmt.Sprint("key-", i), email(i)))
	}
	eventually(t, "all commits are held", func() bool { return rule.Count() == requests })
	if err := api.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing new is taken", func() bool {
		_, err := call("GET", base+"/healthz", "", "", nil)
		return err != nil
	})
	close(release)
	for _, r := range running {
		if o := await(t, "the answer", r); o.err != nil || o.status != http.StatusAccepted {
			t.Errorf("answer %d %s, %v; want 202", o.status, o.body, o.err)
		}
	}
	await(t, "the process ends", api.done)
	if api.err != nil {
		t.Errorf("exit: %v, want 0", api.err)
	}
	in.wantRows(requests, requests)
}

// A process is told to stop under load. What it acknowledged is there, and
// what it did not can be submitted again elsewhere.
func TestAPIStopsUnderLoad(t *testing.T) {
	t.Parallel()
	const clients, before = 16, 200
	in := install(t)
	api := in.start("api", "OUTBOXD_PROVIDERS=smtp")
	base := api.url("api")

	var wg sync.WaitGroup
	var next, acknowledged atomic.Int32
	enough := make(chan struct{})
	bodies := make([][]byte, 100_000)
	for range clients {
		wg.Go(func() {
			for {
				number := int(next.Add(1)) - 1
				a, err := call("POST", base+"/emails", in.token, fmt.Sprint("key-", number), email(number))
				if err != nil {
					return // stopped: nobody listens
				}
				if a.status != http.StatusAccepted {
					t.Errorf("answer %d %s", a.status, a.body)
					return
				}
				bodies[number] = a.body
				if acknowledged.Add(1) == before {
					close(enough)
				}
			}
		})
	}
	await(t, "enough submissions", enough)
	api.stop(syscall.SIGTERM)
	wg.Wait()

	if n := in.count("SELECT count(*) FROM outbox.emails"); n < int(acknowledged.Load()) {
		t.Errorf("%d emails, and %d were acknowledged", n, acknowledged.Load())
	}
	base = in.start("api", "OUTBOXD_PROVIDERS=smtp").url("api")
	for number := range int(next.Load()) {
		a := mustCall(t, "POST", base+"/emails", in.token, fmt.Sprint("key-", number), email(number))
		if a.status != http.StatusAccepted {
			t.Fatalf("retry of %d: answer %d %s", number, a.status, a.body)
		}
		if first := bodies[number]; first != nil && (!a.replayed || string(a.body) != string(first)) {
			t.Errorf("retry of %d: %s, replayed %v; first %s", number, a.body, a.replayed, first)
		}
	}
	in.wantRows(int(next.Load()), int(next.Load()))
}
