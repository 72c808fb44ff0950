package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The fault points are in the program that the matrix runs, and not in the one
// that is released.
func TestReleaseHasNoFaultPoints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for tags, want := range map[string]bool{"": false, "faults": true} {
		path := filepath.Join(dir, "worker"+tags)
		if err := buildWorker(t.Context(), path, "-tags="+tags); err != nil {
			t.Fatal(err)
		}
		program, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, trace := range []string{"OUTBOXD_FAULT", "internal/fault.Point"} {
			if got := bytes.Contains(program, []byte(trace)); got != want {
				t.Errorf("tags %q: %q in the program: %v, want %v", tags, trace, got, want)
			}
		}
	}
}

// Every mutant still fits the source.
func TestMutantsApply(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(m.file)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.apply(string(text)); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if (m.cells == "") == (m.test == suiteTest{}) {
			t.Errorf("%s: cells %q and test %v, want one of them", m.name, m.cells, m.test)
		}
		if m.cells != "" && len(Select(Matrix(), m.cells)) == 0 {
			t.Errorf("%s: no cell fits %s", m.name, m.cells)
		}
	}
}

// The part of the matrix that shows all pairs: I1, I3, I4, I7, I8, I10, I11.
func TestShortMatrix(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code := run([]string{"-short", "-parallel", "6"}, &out, &out); code != 0 {
		t.Errorf("exit %d:\n%s", code, out.String())
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if code := run([]string{"-list", "-cells", "B4/sigkill/plain"}, &out, &errs); code != 0 {
		t.Errorf("exit %d: %s", code, errs.String())
	}
	want := "B4/sigkill/plain/retry\nB4/sigkill/plain/hold\nB4/sigkill/plain/drop\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if code := run([]string{"-nonsense"}, &out, &errs); code != 2 || !strings.Contains(errs.String(), "-cells") {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}
