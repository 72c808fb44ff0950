package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// need skips the test on a machine that lacks a tool. In CI none may be missing.
func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err == nil {
			continue
		}
		if os.Getenv("CI") == "true" {
			t.Fatal(tool + " is missing: .ci/run installs it")
		}
		t.Skip(tool + " is missing: see .ci/left-out")
	}
}

// npmInstall returns a copy of a folder with the packages beside it that its
// lock file names.
func npmInstall(t *testing.T, source string) string {
	t.Helper()
	need(t, "npm", "node")
	folder, err := npmFolder(source)
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// npmFolder names the copy after the files that it is made from, so it is made
// once, and it appears complete or not at all.
func npmFolder(source string) (string, error) {
	files, sum, err := packageFiles(source)
	if err != nil {
		return "", err
	}
	cache := filepath.Join("..", ".cache", "npm")
	folder := filepath.Join(cache, filepath.Base(source)+"-"+sum)
	if isDir(folder) {
		return folder, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	building, err := os.MkdirTemp(cache, "building-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(building) }()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(building, name), content, 0o644); err != nil {
			return "", err
		}
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
}

// packageFiles reads the files of a folder and names their content. A folder in
// it is what npm installed there for somebody who tried the example.
func packageFiles(source string) (files map[string][]byte, sum string, err error) {
	entries, err := os.ReadDir(source)
	if err != nil {
		return nil, "", err
	}
	files, hash := map[string][]byte{}, sha256.New()
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(source, entry.Name()))
		if err != nil {
			return nil, "", err
		}
		files[entry.Name()] = content
		fmt.Fprintf(hash, "%q %d %s\n", entry.Name(), len(content), content)
	}
	return files, fmt.Sprintf("%.8x", hash.Sum(nil)), nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
