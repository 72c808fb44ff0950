package localpg

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Not parallel: it runs scripts that it has just written, and a process that
// another test forks meanwhile would hold them open ("text file busy").
//
//nolint:paralleltest // for the reason above
func TestFindPrefersPgConfigThenPathThenHighestVersion(t *testing.T) {
	root := t.TempDir()
	install := func(dir string, programs ...string) string {
		dir = filepath.Join(root, dir)
		for _, program := range programs {
			writeProgram(t, filepath.Join(dir, program), "")
		}
		return dir
	}
	fromConfig := install("custom", "initdb", "postgres")
	inPath := install("path", "initdb", "postgres")
	clientOnly := install("client", "psql")
	install("lib/9/bin", "initdb", "postgres")
	highest := install("lib/17/bin", "initdb", "postgres")
	install("lib/18/bin", "initdb") // half of a server
	writeProgram(t, filepath.Join(root, "good", "pg_config"), "echo "+fromConfig)
	writeProgram(t, filepath.Join(root, "bad", "pg_config"), "echo "+clientOnly)

	good, bad := filepath.Join(root, "good"), filepath.Join(root, "bad")
	patterns := []string{filepath.Join(root, "lib/*/bin")}
	for _, test := range []struct {
		name, path string
		patterns   []string
		want       string
	}{
		{"pg_config", good + ":" + inPath, patterns, fromConfig},
		{"pg_config without a server", bad + ":" + inPath, patterns, inPath},
		{"install folder", bad, patterns, highest},
		{"none", bad, nil, ""},
	} {
		got, err := find(test.path, test.patterns)
		if got != test.want || (test.want == "") != errors.Is(err, ErrNotFound) {
			t.Errorf("%s: got %q, %v, want %q", test.name, got, err, test.want)
		}
	}
}

func TestFindFollowsLinks(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home, links := filepath.Join(root, "home"), filepath.Join(root, "links")
	if err := os.Mkdir(links, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"initdb", "postgres"} {
		writeProgram(t, filepath.Join(home, program), "")
		if err := os.Symlink(filepath.Join(home, program), filepath.Join(links, program)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := find(links, nil); got != home || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, home)
	}
}

func TestFailedDownloadSaysWhatToType(t *testing.T) {
	t.Parallel()
	repository := httptest.NewServer(http.NotFoundHandler())
	defer repository.Close()
	home := filepath.Join(t.TempDir(), "outboxd", "postgres")
	err := fetch(repository.URL, home)
	if err == nil {
		t.Fatal("fetch: no error")
	}
	err = downloadError(err)
	if text := err.Error(); strings.Contains(text, "\n") ||
		!strings.Contains(text, "apt-get install postgresql") || !strings.Contains(text, "DATABASE_URL") {
		t.Errorf("not one line that says what to type: %q", text)
	}
	leftovers, err := os.ReadDir(filepath.Dir(home))
	if err != nil {
		t.Fatal(err)
	}
	if len(leftovers) != 0 {
		t.Errorf("left behind: %v", leftovers)
	}
}

func writeProgram(t *testing.T, path, script string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}
