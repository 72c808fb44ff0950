package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboxd/outboxd/internal/testdb"
)

// moduleRoot is the folder of go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// buildWorker builds the worker program as the arguments say.
func buildWorker(ctx context.Context, path string, args ...string) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	args = slices.Concat([]string{"build"}, testdb.BuildFlags(), []string{"-o", path}, args, []string{"./cmd/worker"})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the worker: %w\n%s", err, out)
	}
	return nil
}

// buildPatched builds the worker with fault points from patched sources.
func buildPatched(ctx context.Context, path string, patches ...patch) error {
	list, err := overlay(ctx, path, patches...)
	if err != nil {
		return err
	}
	return buildWorker(ctx, path, "-tags", "faults", "-overlay", list)
}

// workspace is a temporary folder that the servers' own user can reach too.
func workspace() (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp("", "outboxd-crash-")
	if err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	// The data folders inside are private.
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return dir, remove, nil
}

func workerPath(dir, name string) string { return filepath.Join(dir, "worker-"+name) }
