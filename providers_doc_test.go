package outboxd_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers/providertest"
)

// tableRows returns the cells of the table between the markers of that name in
// docs/providers.md, its head first.
func tableRows(t *testing.T, name string) [][]string {
	t.Helper()
	block := regexp.MustCompile("(?s)<!-- " + name + ": written by `make providers` -->\n(.*?)<!-- /" + name + " -->")
	match := block.FindStringSubmatch(read(t, "docs/providers.md"))
	if match == nil {
		t.Fatalf("docs/providers.md has no table %q", name)
	}
	var rows [][]string
	for line := range strings.Lines(match[1]) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	if len(rows) == 0 {
		t.Fatalf("the table %q is empty", name)
	}
	return rows
}

// adapters are the packages that run the conformance suite, those of outboxd
// first.
func adapters(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, pattern := range []string{"providers/*/conformance_test.go", "examples/*/conformance_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(files)
		for _, file := range files {
			names = append(names, filepath.Base(filepath.Dir(file)))
		}
	}
	return names
}

// The tables of docs/providers.md are of the checks and the adapters that there
// are, and nothing in them has failed.
func TestProvidersDocIsCurrent(t *testing.T) {
	t.Parallel()
	const mend = "run `make providers`"

	rows := tableRows(t, "conformance")
	if got, want := rows[0][1:], adapters(t); !slices.Equal(got, want) {
		t.Errorf("the table is of the adapters %q, and there are %q: %s", got, want, mend)
	}
	var checks []string
	for _, row := range rows[1:] {
		checks = append(checks, row[0])
		for i, cell := range row[1:] {
			if !slices.Contains([]string{"✓", "(✓)", "–"}, cell) {
				t.Errorf("%s, %s: %q: %s", row[0], rows[0][i+1], cell, mend)
			}
		}
	}
	want := slices.Clone(providertest.Checks())
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], "/", ": ")
	}
	if !slices.Equal(checks, want) {
		t.Errorf("the table is of the checks\n%q, and there are\n%q: %s", checks, want, mend)
	}

	var described []string
	for _, row := range tableRows(t, "adapters")[1:] {
		described = append(described, strings.Trim(row[0], "`"))
	}
	if want := adapters(t); !slices.Equal(described, want) {
		t.Errorf("described are %q, and there are %q: %s", described, want, mend)
	}
}

// Each adapter of outboxd has a section of its own.
func TestProvidersDocDescribesAll(t *testing.T) {
	t.Parallel()
	text := read(t, "docs/providers.md")
	for _, name := range adapters(t) {
		if !strings.Contains(text, "\n### `"+name+"`\n") {
			t.Errorf("docs/providers.md has no section on %s", name)
		}
	}
}
