package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// worker is a running worker process.
type worker struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu      sync.Mutex
	lines   []string
	started chan struct{} // closed when it says that it has started
	up      bool
}

// startWorker starts the program and returns when it works.
func startWorker(ctx context.Context, path string, env []string) (*worker, error) {
	w := &worker{cmd: exec.Command(path), done: make(chan struct{}), started: make(chan struct{})}
	w.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, env...)
	output, input, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	w.cmd.Stdout, w.cmd.Stderr = input, input
	err = w.cmd.Start()
	_ = input.Close()
	if err != nil {
		_ = output.Close()
		return nil, err
	}
	go w.listen(output)
	go func() {
		_ = w.cmd.Wait()
		close(w.done)
	}()
	select {
	case <-w.started:
		return w, nil
	case <-w.done:
		return nil, fmt.Errorf("the worker ended:\n%s", w.tail())
	case <-ctx.Done():
		w.kill()
		return nil, fmt.Errorf("the worker did not start: %w\n%s", ctx.Err(), w.tail())
	}
}

// listen reads the worker's log.
func (w *worker) listen(output io.ReadCloser) {
	defer func() { _ = output.Close() }()
	for scanner := bufio.NewScanner(output); scanner.Scan(); {
		var line struct{ Msg string }
		_ = json.Unmarshal(scanner.Bytes(), &line)
		w.mu.Lock()
		w.lines = append(w.lines, scanner.Text())
		if line.Msg == "worker started" && !w.up {
			w.up = true
			close(w.started)
		}
		w.mu.Unlock()
	}
}

// printed is the log so far.
func (w *worker) printed() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines)
}

// tail is the end of the log.
func (w *worker) tail() string {
	lines := w.printed()
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

func (w *worker) signal(sig syscall.Signal) error {
	err := w.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// kill ends the process as a crash does.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill()
	<-w.done
}

// pause stops the process and waits until each of its threads stands.
func (w *worker) pause(ctx context.Context) error {
	if err := w.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return until(ctx, func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", w.cmd.Process.Pid))
		if err != nil || len(threads) == 0 {
			return true // no /proc here: the signal has to do
		}
		return !slices.ContainsFunc(threads, isRunning)
	})
}

// isRunning reports whether a thread, by its file in /proc, has not stopped.
func isRunning(path string) bool {
	state, err := os.ReadFile(path)
	_, rest, _ := strings.Cut(string(state), ") ")
	return err == nil && !strings.HasPrefix(rest, "T")
}

// wait reports whether the process ended in time.
func (w *worker) wait(grace time.Duration) bool {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-w.done:
		return true
	case <-timer.C:
		return false
	}
}

// until waits for a condition that nobody announces. It asks rarely: many cells
// ask at a time.
func until(ctx context.Context, holds func() bool) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
