package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// roleVar makes the test binary play a part: the command run itself, or one
// of the commands that it runs.
const roleVar = "OUTBOXD_RUN_TEST_ROLE"

const codeTerminated = 9

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case "run":
		main()
	case "query":
		query()
	case "await-sigterm":
		awaitSigterm()
	default:
		os.Exit(m.Run())
	}
}

// child is a command to run: this binary again, in another role.
func child(role string) []string {
	return []string{"--", "/usr/bin/env", roleVar + "=" + role, os.Args[0]}
}

func query() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv(databaseURLName))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = conn.Close(ctx) // the process ends here
}

func awaitSigterm() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	fmt.Println("ready")
	<-terminated
	os.Exit(codeTerminated)
}

func TestCommandGetsADatabase(t *testing.T) {
	t.Parallel()
	if code, out := outcome(command(t, "", child("query")...)); code != 0 {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestGivenDatabaseIsKept(t *testing.T) {
	t.Parallel()
	cmd := command(t, "postgres://elsewhere/db", "--", "/bin/sh", "-c", `printf %s "$DATABASE_URL"`)
	if code, out := outcome(cmd); code != 0 || out != "postgres://elsewhere/db" {
		t.Errorf("exit code %d, output %q", code, out)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for want, args := range map[int][]string{
		0:                                     {"true"},
		7:                                     {"--", "/bin/sh", "-c", "exit 7"},
		codeSignalBase + int(syscall.SIGKILL): {"--", "/bin/sh", "-c", "kill -KILL $$"},
		codeUsage:                             {"--"},
		codeNotFound:                          {"--", "no-such-program-anywhere"},
	} {
		if code, out := outcome(command(t, "postgres://unused", args...)); code != want {
			t.Errorf("%q: exit code %d, want %d: %s", args, code, want, out)
		}
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	cmd := command(t, "postgres://unused", child("await-sigterm")...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	exit, _ := errors.AsType[*exec.ExitError](cmd.Wait())
	if exit == nil || exit.ExitCode() != codeTerminated {
		t.Errorf("got %v, want exit code %d", exit, codeTerminated)
	}
}

// command is this program with the given DATABASE_URL; empty means unset.
func command(t *testing.T, databaseURL string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, databaseURLName+"=")
	})
	cmd.Env = append(cmd.Env, roleVar+"=run")
	if databaseURL != "" {
		cmd.Env = append(cmd.Env, databaseURLName+"="+databaseURL)
	}
	return cmd
}

func outcome(cmd *exec.Cmd) (code int, output string) {
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		return -1, err.Error()
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
