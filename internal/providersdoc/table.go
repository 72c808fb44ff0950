package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

// suiteTest is the test that calls providertest.Run, in every adapter.
const suiteTest = "TestConformance"

// maxLine bounds a line of `go test -json`.
const maxLine = 16 << 20

// adapter is a package that ran the suite.
type adapter struct {
	pkg string
	// attrs are the attributes of the test, results pass, fail or skip by the
	// path below it.
	attrs   map[string]string
	results map[string]string
}

// name is the provider's own name, or that of the package.
func (a *adapter) name() string {
	return cmp.Or(a.attrs[providertest.AttrName], path.Base(a.pkg))
}

// example says that the adapter is no part of outboxd.
func (a *adapter) example() bool { return strings.Contains(a.pkg, "/examples/") }

// read reads the output of `go test -json`. Adapters come in the order of their
// names, those of examples last.
func read(r io.Reader) ([]*adapter, error) {
	byPackage := map[string]*adapter{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e struct{ Action, Package, Test, Key, Value string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("not the output of go test -json: %w", err)
		}
		name, below := strings.CutPrefix(e.Test, suiteTest+"/")
		if e.Test != suiteTest && !below {
			continue
		}
		a := byPackage[e.Package]
		if a == nil {
			a = &adapter{pkg: e.Package, attrs: map[string]string{}, results: map[string]string{}}
			byPackage[e.Package] = a
		}
		switch e.Action {
		case "attr":
			a.attrs[e.Key] = e.Value
		case "pass", "fail", "skip":
			a.results[name] = e.Action
		}
	}
	adapters := make([]*adapter, 0, len(byPackage))
	for _, a := range byPackage {
		adapters = append(adapters, a)
	}
	slices.SortFunc(adapters, func(a, b *adapter) int {
		if a.example() != b.example() {
			if b.example() {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name(), b.name())
	})
	return adapters, lines.Err()
}

// result is what became of a check, as a cell of the table.
func (a *adapter) result(check string) string {
	test := strings.ReplaceAll(check, " ", "_")
	// A whole group may have been left out.
	for parent := test; parent != "."; parent = path.Dir(parent) {
		switch a.results[parent] {
		case "fail":
			return "**✗**"
		case "skip":
			return "–"
		case "pass":
			if parent != test {
				return "?"
			}
			if a.partly(test) {
				return "(✓)"
			}
			return "✓"
		}
	}
	return "?"
}

// partly reports whether a part of a check was left out.
func (a *adapter) partly(test string) bool {
	for name, r := range a.results {
		if r == "skip" && strings.HasPrefix(name, test+"/") {
			return true
		}
	}
	return false
}

// conformance returns the table of checks by adapters.
func conformance(adapters []*adapter, checks []string) string {
	header := []string{"check"}
	for _, a := range adapters {
		header = append(header, a.name())
	}
	rows := [][]string{header}
	for _, check := range checks {
		row := []string{strings.ReplaceAll(check, "/", ": ")}
		for _, a := range adapters {
			row = append(row, a.result(check))
		}
		rows = append(rows, row)
	}
	return markdown(rows)
}

// capabilities returns the table of what adapters say of themselves.
func capabilities(adapters []*adapter) string {
	rows := [][]string{{"adapter", "key window", "search", "prepares", "largest message", "recipients", "UTF-8 local part", "definite by status or reply alone"}}
	for _, a := range adapters {
		rows = append(rows, []string{
			"`" + a.name() + "`",
			hours(a.attrs[providertest.AttrKeyWindow]),
			yes(a.attrs[providertest.AttrFinder]),
			yes(a.attrs[providertest.AttrPreparer]),
			megabytes(a.attrs[providertest.AttrMaxBytes]),
			limit(a.attrs[providertest.AttrMaxRecipients]),
			yes(a.attrs[providertest.AttrUTF8]),
			a.attrs[providertest.AttrDefinite],
		})
	}
	return markdown(rows)
}

func hours(text string) string {
	d, err := time.ParseDuration(text)
	if err != nil || d == 0 {
		return "none"
	}
	return strconv.FormatFloat(d.Hours(), 'f', -1, 64) + " h"
}

func yes(text string) string {
	if text == "true" {
		return "yes"
	}
	return "no"
}

func megabytes(text string) string {
	n, err := strconv.Atoi(text)
	if err != nil || n == 0 {
		return "no known bound"
	}
	return strconv.FormatFloat(float64(n)/(1<<20), 'f', -1, 64) + " MiB"
}

func limit(text string) string {
	if text == "0" {
		return "no known bound"
	}
	return text
}

// markdown returns rows as a table, the first as its head.
func markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	return b.String()
}
