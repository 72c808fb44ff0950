package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/internal/testdb"
)

// patience bounds every wait of these tests. It is no measure of speed: a
// condition that holds ends the wait at once.
var patience = func() time.Duration {
	if os.Getenv(longEnv) != "" {
		return 5 * time.Minute
	}
	return 3 * time.Minute
}()

// installation is a migrated database with an org and an API key.
type installation struct {
	t           *testing.T
	databaseURL string
	token       string
	pool        *pgxpool.Pool
}

func install(t *testing.T) *installation {
	t.Helper()
	return installOn(t, testdb.URL(t))
}

// installOn takes a migrated database.
func installOn(t *testing.T, databaseURL string) *installation {
	t.Helper()
	in := connect(t, databaseURL)
	in.token = in.newOrg("acme")
	return in
}

// newOrg makes an org and returns a key of it that may do all.
func (in *installation) newOrg(name string) (token string) {
	in.t.Helper()
	if _, err := api.CreateOrg(context.Background(), in.pool, api.Org{Name: name}); err != nil {
		in.t.Fatal(err)
	}
	return in.newKey(name, "send", "read", "admin")
}

func (in *installation) newKey(org string, scopes ...string) (token string) {
	in.t.Helper()
	token, err := api.CreateKey(context.Background(), in.pool, api.Key{Org: org, Scopes: scopes})
	if err != nil {
		in.t.Fatal(err)
	}
	return token
}

// process is a running program.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	err  error // read after done

	mu    sync.Mutex
	addrs map[string]string // of its listeners, by name
	lines []string
	heard chan struct{} // closed at each line
}

// start runs a program on free ports, with JSON logs, which hold nothing that is in
// an email.
func (in *installation) start(program string, env ...string) *process {
	in.t.Helper()
	var p *process
	in.t.Cleanup(func() { // after the program's end
		if line := contentIn(p.output()); line != "" {
			in.t.Errorf("%s printed content of an email: %s", program, line)
		}
	})
	p = start(in.t, filepath.Join(binDir, program), nil, append([]string{
		"DATABASE_URL=" + in.databaseURL,
		"OUTBOXD_ADDR=127.0.0.1:0",
		"OUTBOXD_OPS_ADDR=127.0.0.1:0",
		"OUTBOXD_LOG_FORMAT=json",
	}, env...))
	return p
}

// content is an address, or the subject of the emails of these tests.
var content = regexp.MustCompile(`[\w.+-]+@[\w-]+(\.[\w-]+)*\.[a-z]+\b|\bMail \d`)

// contentIn returns the first line with something out of an email.
func contentIn(output string) string {
	for line := range strings.Lines(output) {
		if content.MatchString(line) {
			return line
		}
	}
	return ""
}

// output is what the program has printed so far.
func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

func start(t *testing.T, path string, args, env []string) *process {
	t.Helper()
	p := &process{
		t: t, cmd: exec.Command(path, args...), done: make(chan struct{}),
		addrs: map[string]string{}, heard: make(chan struct{}),
	}
	p.cmd.Env = append(os.Environ(), env...)
	output, input, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = input, input
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = input.Close()
	go p.listen(output)
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("%s printed:\n%s", filepath.Base(path), strings.Join(p.lines[max(0, len(p.lines)-15):], "\n"))
		}
	})
	return p
}

// listen reads the program's log.
func (p *process) listen(output io.ReadCloser) {
	defer func() { _ = output.Close() }()
	for scanner := bufio.NewScanner(output); scanner.Scan(); {
		var line struct{ Msg, Name, Addr string }
		_ = json.Unmarshal(scanner.Bytes(), &line) // other programs print text
		p.mu.Lock()
		p.lines = append(p.lines, scanner.Text())
		if line.Msg == "listening" {
			p.addrs[line.Name] = line.Addr
		}
		close(p.heard)
		p.heard = make(chan struct{})
		p.mu.Unlock()
	}
}

// await returns what find returns once it is not empty; find runs with the
// lock held, after each line of output.
func (p *process) await(what string, find func() string) string {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		p.mu.Lock()
		found, heard := find(), p.heard
		p.mu.Unlock()
		if found != "" {
			return found
		}
		select {
		case <-heard:
		case <-p.done:
			p.t.Fatalf("%s: the program ended: %v", what, p.err)
		case <-timeout:
			p.t.Fatalf("%s did not come", what)
		}
	}
}

// url returns the base URL of a listener.
func (p *process) url(listener string) string {
	p.t.Helper()
	return "http://" + p.await("listener "+listener, func() string { return p.addrs[listener] })
}

// kill ends the program as a crash does.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	<-p.done
}

// pause stops the program and waits until each of its threads stands: until then
// it may still hear what it is told.
func (p *process) pause() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
	eventually(p.t, "every thread stands", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil || len(threads) == 0 {
			return true // no /proc here: the signal has to do
		}
		return !slices.ContainsFunc(threads, func(path string) bool {
			state, err := os.ReadFile(path)
			_, rest, _ := strings.Cut(string(state), ") ")
			return err == nil && !strings.HasPrefix(rest, "T")
		})
	})
}

// stop asks the program to end and checks that it does, with exit code 0.
func (p *process) stop(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatal("the program did not stop")
	}
	if p.err != nil {
		p.t.Errorf("exit after a signal: %v, want 0", p.err)
	}
}
