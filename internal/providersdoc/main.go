// Command providersdoc turns a run of the conformance suite into the tables of
// docs/providers.md:
//
//	go test -json -run '^TestConformance$' ./providers/... | providersdoc docs/providers.md
//
// It fails when a check has failed; the tables are written all the same.
package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/outboxd/outboxd/providers/providertest"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json ... | providersdoc FILE")
		os.Exit(2)
	}
	if err := run(os.Stdin, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "providersdoc:", err)
		os.Exit(1)
	}
}

func run(results io.Reader, path string) error {
	adapters, err := read(results)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text := string(old)
	for name, table := range map[string]string{
		"adapters":    capabilities(adapters),
		"conformance": conformance(adapters, providertest.Checks()),
	} {
		if text, err = replace(text, name, table); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	return failures(adapters)
}

// replace puts table between the markers of that name.
func replace(text, name, table string) (string, error) {
	begin, end := "<!-- "+name+": written by `make providers` -->\n", "<!-- /"+name+" -->\n"
	before, rest, found := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", fmt.Errorf("the markers are missing: %s%s", begin, end)
	}
	return before + begin + "\n" + table + "\n" + end + after, nil
}

// failures returns an error that lists what has failed.
func failures(adapters []*adapter) error {
	var failed []error
	for _, a := range adapters {
		for _, test := range slices.Sorted(maps.Keys(a.results)) {
			if a.results[test] == "fail" {
				failed = append(failed, fmt.Errorf("%s: %s failed", a.name(), test))
			}
		}
	}
	if len(adapters) == 0 {
		return errors.New("no adapter ran the suite")
	}
	return errors.Join(failed...)
}
