package outbox_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// A kind of job that is not listed would be taken for a foreign one.
func TestJobKindsAreAll(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	kind := regexp.MustCompile(`(?m)^func \((?:\w+ )?\w+\) Kind\(\) string \{ return "(\w+)" \}`)
	var written []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range kind.FindAllStringSubmatch(string(text), -1) {
			written = append(written, match[1])
		}
	}
	listed := outbox.JobKinds()
	slices.Sort(written)
	slices.Sort(listed)
	if len(written) == 0 || !slices.Equal(written, listed) {
		t.Errorf("in the source: %v\nlisted: %v", written, listed)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	p := newSendGrid(t, "http://127.0.0.1")
	got, err := outbox.WorkerConfig{Providers: []providers.Provider{p}}.Times()
	want := outbox.Times{Send: 30 * time.Second, SoftStop: 35 * time.Second, Job: 2 * time.Minute, Rescue: time.Hour}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := (outbox.WorkerConfig{}).Times(); err == nil {
		t.Error("times without a provider")
	}
}

// A session is tried as a worker opens it: behind a pooler in transaction mode it is
// refused, and it leaves nothing.
func TestTrySession(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	for _, transactional := range []bool{false, true} {
		pool := startPooler(t, url, transactional)
		_, err := outbox.TrySession(t.Context(), pool)
		if refused := err != nil && strings.Contains(err.Error(), "pooler in transaction mode"); refused != transactional {
			t.Errorf("transaction mode %v: %v", transactional, err)
		}
	}
	pool := testdb.New(t)
	if lost, err := outbox.TrySession(t.Context(), pool); err != nil || len(lost) != 0 {
		t.Errorf("a direct connection: %v, %v", lost, err)
	}
	if n := count(t, pool, "SELECT count(*) FROM outbox.workers"); n != 0 {
		t.Errorf("%d workers are registered", n)
	}
}
