package outboxd_test

import (
	"regexp"
	"strings"
	"testing"
)

// The README's Go is part of an example that runs, line for line. The example
// is inside a function, so it may be indented more.
func TestReadmeShowsATestedExample(t *testing.T) {
	t.Parallel()
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(snippets) == 0 {
		t.Fatal("README.md shows no Go")
	}
	indentation := regexp.MustCompile(`(?m)^[ \t]+`)
	tested := indentation.ReplaceAllString(read(t, "outbox/example_test.go"), "")
	for _, snippet := range snippets {
		if !strings.Contains(tested, indentation.ReplaceAllString(snippet[1], "")) {
			t.Errorf("outbox/example_test.go has no such lines in a row:\n%s", snippet[1])
		}
	}
}

// Whoever reads it wants to know what it is, how to start and where to look.
func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	if lines := strings.Count(read(t, "README.md"), "\n"); lines > 200 {
		t.Errorf("README.md has %d lines, want at most 200: the detail belongs into docs", lines)
	}
}
