package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// childStopTimeout is longer than a worker needs to let its sends end.
const childStopTimeout = time.Minute

// children are the programs that dev runs.
type children struct {
	// ended gets the first part that ended without being asked to.
	ended chan error

	mu       sync.Mutex
	stopping bool
	running  []*child
}

type child struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // read after done
}

func newChildren() *children { return &children{ended: make(chan error, 1)} }

// start runs the program that stands beside this one.
func (c *children) start(name string, env []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p := &child{name: name, done: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(filepath.Dir(self), name))
	p.cmd.Env = append(os.Environ(), env...)
	output := &prefixWriter{prefix: fmt.Sprintf("%-6s | ", name), to: os.Stderr}
	p.cmd.Stdout, p.cmd.Stderr = output, output
	// A group of its own: Ctrl-C in the terminal comes to us alone, and we stop
	// the parts in order.
	p.cmd.SysProcAttr = childAttributes()
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s, which `make build` puts beside outboxctl: %w", name, err)
	}
	c.mu.Lock()
	c.running = append(c.running, p)
	c.mu.Unlock()
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
		c.report(name, p.err)
	}()
	return nil
}

// report tells that a part ended, unless it was asked to.
func (c *children) report(name string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping || errors.Is(err, http.ErrServerClosed) {
		return
	}
	if err == nil {
		err = errors.New("it exited")
	}
	select {
	case c.ended <- fmt.Errorf("%s stopped: %w", name, err):
	default:
	}
}

// stop ends the programs gracefully, and by force when that takes too long.
func (c *children) stop() error {
	c.mu.Lock()
	c.stopping = true
	running := c.running
	c.mu.Unlock()
	var errs []error
	for _, p := range running {
		// It may have ended by itself; then there is nothing to signal.
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, p := range running {
		errs = append(errs, p.await(childStopTimeout))
	}
	return errors.Join(errs...)
}

func (p *child) await(timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not stop within %v and was killed", p.name, timeout)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.name, p.err)
	}
	return nil
}

// prefixWriter marks each line with the program that wrote it.
type prefixWriter struct {
	prefix string
	to     io.Writer
	mu     sync.Mutex
	part   []byte
}

// Write passes on whole lines.
func (w *prefixWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.part = append(w.part, p...)
	for {
		line, rest, found := bytes.Cut(w.part, []byte{'\n'})
		if !found {
			return len(p), nil
		}
		if _, err := fmt.Fprintf(w.to, "%s%s\n", w.prefix, line); err != nil {
			return 0, err
		}
		w.part = append([]byte{}, rest...)
	}
}
