package e2e_test

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxd/outboxd/internal/testdb"
)

// slowClients are connections that hold the API up as long as it lets them.
type slowClients struct {
	addr, token string
	stop        chan struct{}
	wg          sync.WaitGroup
	open, cut   atomic.Int64
}

// slowWays are the ways to be slow: what is sent at once, and whether a byte is
// added every second. The bodies are of a length that the server waits for before
// it answers; of a longer one it closes the connection at once.
func slowWays(token string) []struct {
	name, begin string
	drips       bool
} {
	const post = "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n"
	return []struct {
		name, begin string
		drips       bool
	}{
		{"silent", "", false},
		{"half a request line", "POST /emai", false},
		{"header byte by byte", "GET /healthz HTTP/1.1\r\nX-Slow: ", true},
		{"no body", fmt.Sprintf(post, "/emails", token, "Content-Length: 200000"), false},
		{"body byte by byte", fmt.Sprintf(post, "/emails", token, "Content-Length: 200000"), true},
		{"batch in chunks", fmt.Sprintf(post, "/emails/batch", token, "Transfer-Encoding: chunked") + "fffff\r\n", true},
		{"no key, body byte by byte", fmt.Sprintf(post, "/emails", "x", "Content-Length: 200000"), true},
		{"a provider's event", fmt.Sprintf(post, "/hooks/sendgrid", "x", "Content-Length: 200000"), true},
		{"an unsubscription", fmt.Sprintf(post, "/unsubscribe/x", "x", "Content-Length: 200000"), true},
		{"answers that nobody reads", strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n", 300), false},
	}
}

// run keeps one connection up until it is stopped; one that is cut is opened
// again, if again is set.
func (s *slowClients) run(begin string, drips, again bool) {
	for {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			return // the test is over
		}
		s.open.Add(1)
		over := make(chan struct{})
		go func() {
			defer close(over)
			// Some never read; the server ends it for them too, and then they write in vain.
			if !strings.HasPrefix(begin, "GET /openapi") {
				_, _ = io.Copy(io.Discard, conn)
			} else {
				s.awaitCut(conn)
			}
		}()
		go s.feed(conn, begin, drips, over)
		select {
		case <-over:
			s.cut.Add(1)
		case <-s.stop:
		}
		s.open.Add(-1)
		_ = conn.Close()
		<-over
		select {
		case <-s.stop:
			return
		default:
		}
		if !again {
			return
		}
		<-time.After(time.Second) // slow, not a flood
	}
}

// awaitCut returns when the connection is of no use any more, without reading.
func (s *slowClients) awaitCut(conn net.Conn) {
	for {
		select {
		case <-time.After(time.Second):
			if _, err := conn.Write([]byte("\r\n")); err != nil {
				return
			}
		case <-s.stop:
			return
		}
	}
}

func (s *slowClients) feed(conn net.Conn, begin string, drips bool, over chan struct{}) {
	if _, err := io.WriteString(conn, begin); err != nil || !drips {
		return
	}
	for {
		select {
		case <-time.After(time.Second):
			if _, err := io.WriteString(conn, "a"); err != nil {
				return
			}
		case <-over:
			return
		}
	}
}

func startSlowClients(base, token string, n int, again bool) *slowClients {
	s := &slowClients{addr: strings.TrimPrefix(base, "http://"), token: token, stop: make(chan struct{})}
	ways := slowWays(token)
	for i := range n {
		way := ways[i%len(ways)]
		s.wg.Go(func() { s.run(way.begin, way.drips, again) })
	}
	return s
}

func (s *slowClients) end() {
	close(s.stop)
	s.wg.Wait()
}

// latencies submits emails one after the other, as long as more says, and returns
// what each took.
func latencies(t *testing.T, base, token string, more func(sent int) bool) []time.Duration {
	t.Helper()
	var took []time.Duration
	for n := 0; more(n); n++ {
		began := time.Now()
		a, err := call("POST", base+"/emails", token, fmt.Sprintf("slow-%d-%d", began.UnixNano(), n), email(n))
		if err != nil || a.status != http.StatusAccepted {
			t.Fatalf("a normal client: answer %d %s, error %v", a.status, a.body, err)
		}
		took = append(took, time.Since(began))
		<-time.After(5 * time.Millisecond) // a client that is not in a hurry
	}
	return took
}

func quantile(list []time.Duration, q float64) time.Duration {
	list = slices.Sorted(slices.Values(list))
	return list[int(math.Ceil(q*float64(len(list))))-1]
}

// Slow clients of every kind are cut off, and a normal one is served as if they
// were not there. In full: 500 for a minute, and its p99 stays under 3 times what
// it is without them.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	in := install(t)
	base := in.start("api", "OUTBOXD_PROVIDERS=smtp", "SMTP_URL=smtp://127.0.0.1:1?tls=none").url("api")
	if os.Getenv(longEnv) != "" {
		slowClientsInFull(t, in, base)
		return
	}
	slow := startSlowClients(base, in.token, 100, false)
	eventually(t, "all slow clients are connected", func() bool { return slow.open.Load()+slow.cut.Load() == 100 })
	latencies(t, base, in.token, func(sent int) bool { return sent < 100 })
	// Those who do not read are cut later: by the time-out of an answer.
	eventually(t, "slow clients are cut", func() bool { return slow.cut.Load() >= 90 })
	slow.end()
}

func slowClientsInFull(t *testing.T, in *installation, base string) {
	t.Helper()
	lasting := func(d time.Duration) func(int) bool {
		end := time.Now().Add(d)
		return func(int) bool { return time.Now().Before(end) }
	}
	latencies(t, base, in.token, lasting(5*time.Second)) // warm
	before := latencies(t, base, in.token, lasting(30*time.Second))
	slow := startSlowClients(base, in.token, 500, true)
	eventually(t, "all slow clients are connected", func() bool { return slow.open.Load() >= 450 })
	loaded := latencies(t, base, in.token, lasting(time.Minute))
	cut := slow.cut.Load()
	slow.end()
	after := latencies(t, base, in.token, lasting(30*time.Second))
	for name, list := range map[string][]time.Duration{"idle before": before, "500 slow clients": loaded, "idle after": after} {
		t.Logf("%-17s %5d emails, p50 %v, p99 %v", name, len(list), quantile(list, 0.5), quantile(list, 0.99))
	}
	t.Logf("%d connections were cut", cut)
	idle := max(quantile(before, 0.99), quantile(after, 0.99))
	if p99 := quantile(loaded, 0.99); p99 >= 3*idle {
		t.Errorf("p99 is %v, 3 times %v or more", p99, idle)
	}
}

// memoryOf reads a line of /proc/<pid>/status, in bytes.
func (p *process) memoryOf(name string) int {
	p.t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(p.cmd.Process.Pid), "status"))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int
		if _, err := fmt.Sscanf(line, name+": %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	p.t.Fatalf("no %s in %s", name, status)
	return 0
}

// A body of 1 GB in chunks, which says no length, is cut off at the limit, and the
// process does not grow by 50 MB for it.
func TestHugeBodyIsCut(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("memory is read from /proc")
	}
	in := install(t)
	p := in.start("api", "OUTBOXD_PROVIDERS=smtp", "SMTP_URL=smtp://127.0.0.1:1?tls=none")
	base := p.url("api")
	mustCall(t, "POST", base+"/emails", in.token, "", email(1)) // warm
	before := p.memoryOf("VmRSS")
	var sent atomic.Int64
	body := io.MultiReader(strings.NewReader(`{"html":"`), &counted{Reader: io.LimitReader(letters{}, 1<<30), n: &sent})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/emails", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+in.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("answer %d, want 413", resp.StatusCode)
	}
	if sent.Load() > 64<<20 {
		t.Errorf("%d MB were taken", sent.Load()>>20)
	}
	limit := 50 << 20
	if testdb.Race() {
		limit *= 8 // what the race detector keeps beside each byte
	}
	grown := p.memoryOf("VmHWM") - before
	t.Logf("%d MB were sent, the process grew by %d MB from %d MB", sent.Load()>>20, grown>>20, before>>20)
	if grown > limit {
		t.Errorf("the process grew by %d MB, more than %d MB", grown>>20, limit>>20)
	}
	if a := mustCall(t, "POST", base+"/emails", in.token, "", email(2)); a.status != http.StatusAccepted {
		t.Errorf("afterwards: answer %d %s", a.status, a.body)
	}
}

// letters never end.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// Many of the largest bodies at once do not take more memory than a few: some wait
// or are sent away, and all that say so were taken. In full only: it fills a disk
// with what it proves.
func TestManyLargeBodies(t *testing.T) {
	t.Parallel()
	if os.Getenv(longEnv) == "" || runtime.GOOS != "linux" {
		t.Skip("stores hundreds of MB; set " + longEnv + "=1 on Linux")
	}
	in := install(t)
	p := in.start("api", "OUTBOXD_PROVIDERS=smtp", "SMTP_URL=smtp://127.0.0.1:1?tls=none")
	base := p.url("api")
	var taken, away atomic.Int32
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			mail := email(i)
			mail["html"] = strings.Repeat("a", 10<<20-1000)
			a, err := call("POST", base+"/emails", in.token, "", mail)
			switch {
			case err != nil:
				t.Error(err)
			case a.status == http.StatusAccepted:
				taken.Add(1)
			case a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") != "":
				away.Add(1)
			default:
				t.Errorf("answer %d %.200s", a.status, a.body)
			}
		})
	}
	wg.Wait()
	t.Logf("%d taken, %d sent away, at most %d MB", taken.Load(), away.Load(), p.memoryOf("VmHWM")>>20)
	if taken.Load() == 0 || int(taken.Load()) != in.count("SELECT count(*) FROM outbox.emails") {
		t.Errorf("%d were taken", taken.Load())
	}
}
