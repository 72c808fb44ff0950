// Command run runs another command with DATABASE_URL set to a throw-away
// PostgreSQL server, which it stops afterwards:
//
//	go run ./internal/localpg/run -- go test ./...
//
// When DATABASE_URL is set already, it runs the command as it is. It exits
// with the command's exit code. (`go run` itself turns every code but 0 into
// 1; a built binary passes it on.)
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/outboxd/outboxd/internal/localpg"
)

// Exit codes that shells use as well.
const (
	codeFailed      = 1
	codeUsage       = 2
	codeNotFound    = 127
	codeSignalBase  = 128
	databaseURLName = "DATABASE_URL"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	os.Exit(run(os.Args[1:], signals))
}

// run returns the exit code of the command in args, or our own.
func run(args []string, signals <-chan os.Signal) (code int) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return complain(codeUsage, errors.New("usage: run -- command [argument ...]"))
	}
	env := os.Environ()
	if os.Getenv(databaseURLName) == "" {
		server, err := startServer(signals)
		if err != nil {
			return complain(codeFailed, err)
		}
		defer func() {
			if err := server.Stop(); err != nil {
				code = max(code, complain(codeFailed, err))
			}
		}()
		env = append(env, databaseURLName+"="+server.URL(), localpg.SuperuserURLEnv+"="+server.SuperuserURL())
	}
	return runCommand(args, env, signals)
}

// startServer starts the server, unless a signal comes first.
func startServer(signals <-chan os.Signal) (*localpg.Server, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	started := make(chan struct{})
	defer close(started)
	go func() {
		select {
		case sig := <-signals:
			cancel(fmt.Errorf("interrupted: %s", sig))
		case <-started:
		}
	}()
	return localpg.Start(ctx, localpg.Options{Ephemeral: true})
}

// runCommand runs the command to its end and passes signals on to it. On a
// terminal Ctrl-C reaches the command without us too: programs take a second
// one in their stride, and a signal from elsewhere must not be lost.
func runCommand(args, env []string, signals <-chan os.Signal) (code int) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return complain(codeNotFound, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			_ = cmd.Process.Signal(sig) // fails only when it has just ended
		case err := <-ended:
			return exitCode(err)
		}
	}
}

// exitCode is the code that a shell would report for a command's end.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return complain(codeFailed, err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return codeSignalBase + int(status.Signal())
	}
	return exit.ExitCode()
}

func complain(code int, err error) int {
	fmt.Fprintln(os.Stderr, "run:", err)
	return code
}
