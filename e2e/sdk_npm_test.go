package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

func runScenario(t *testing.T, script string, args []string, env ...string) nodeSDK {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("the scenario: %v\n%s", err, &stderr)
	}
	sdk := nodeSDK{t: t}
	if err := json.Unmarshal(stdout.Bytes(), &sdk.results); err != nil {
		t.Fatalf("the scenario printed %v: %s", err, &stdout)
	}
	return sdk
}

// nodeScenario returns the script's path, with the SDK beside it.
func nodeScenario(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"npm", "node"} {
		if _, err := exec.LookPath(tool); err == nil {
			continue
		}
		if os.Getenv("CI") == "true" {
			t.Fatal(tool + " is missing: .ci/run installs it")
		}
		t.Skip(tool + " is missing: see .ci/left-out")
	}
	folder, err := installScenario()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(folder, "scenario.mjs")
}

// installScenario makes a folder of the scenario and the packages that its
// lock file names. The folder is named after the files that it is made from, so
// it is made once, and appears complete or not at all.
var installScenario = sync.OnceValues(func() (string, error) {
	source := os.DirFS(filepath.Join("testdata", "resend-node"))
	sum, err := hashOf(source)
	if err != nil {
		return "", err
	}
	cache := filepath.Join("..", ".cache")
	folder := filepath.Join(cache, "resend-node-"+sum)
	if _, err := os.Stat(folder); err == nil {
		return folder, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	building, err := os.MkdirTemp(cache, "resend-node-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(building) }()
	if err := os.CopyFS(building, source); err != nil {
		return "", err
	}
	npm := exec.Command("npm", "ci")
	npm.Dir = building
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	// Where another process was faster, its folder is as good.
	if err := os.Rename(building, folder); err != nil && !isDir(folder) {
		return "", err
	}
	return folder, nil
})

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// hashOf names the content of all files.
func hashOf(files fs.FS) (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(hash, "%q %d %s\n", path, len(content), content)
		return err
	})
	return fmt.Sprintf("%.8x", hash.Sum(nil)), err
}
