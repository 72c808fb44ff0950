// Package e2e_test runs the real programs as processes of their own, against
// real peers, and kills them.
package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/outboxd/outboxd/internal/testdb"
)

// binDir holds the programs under test.
var binDir string

func TestMain(m *testing.M) {
	dir, err := buildPrograms()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	binDir = dir
	// Most of these tests wait most of the time, for processes and deadlines.
	// -parallel on the command line still counts: it is parsed later.
	if err := flag.Set("test.parallel", strconv.Itoa(runtime.GOMAXPROCS(0)*2)); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	testdb.Main(removing{m, dir})
}

// removing is a [testing.M] that removes a folder after the tests.
type removing struct {
	*testing.M
	dir string
}

func (r removing) Run() int {
	defer func() { _ = os.RemoveAll(r.dir) }()
	return r.M.Run()
}

func buildPrograms() (string, error) {
	dir, err := os.MkdirTemp("", "outboxd-e2e-")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", slices.Concat([]string{"build"}, testdb.BuildFlags(), []string{
		"-o", dir + string(filepath.Separator), "./cmd/api", "./cmd/worker", "./cmd/outboxctl", "./examples/go-order",
	})...)
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return dir, nil
}

// outboxctl runs the command and returns what it printed.
func outboxctl(t *testing.T, databaseURL string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), filepath.Join(binDir, "outboxctl"), args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+databaseURL)
	out, err := cmd.Output()
	if err != nil {
		stderr := ""
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			stderr = string(exit.Stderr)
		}
		t.Fatalf("outboxctl %v: %v\n%s", args, err, stderr)
	}
	return string(out)
}
