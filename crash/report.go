package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is what a run has shown.
type report struct {
	options options
	results []Result
	resumed int // results that were taken from an earlier run
	took    time.Duration
	kills   []kill
}

// good reports whether nothing is red or invalid and no mutant lives.
func (r *report) good() bool {
	n := r.count()
	return n[Red]+n[Invalid] == 0 && !slices.ContainsFunc(r.kills, func(k kill) bool { return k.by == "" })
}

func (r *report) count() map[Verdict]int {
	n := map[Verdict]int{}
	for _, x := range r.results {
		n[x.Verdict]++
	}
	return n
}

func (r *report) summary() string {
	n := r.count()
	took := fmt.Sprintf("in %v", r.took.Round(time.Second))
	if r.resumed > 0 {
		took = fmt.Sprintf("(%d of them in an earlier run)", r.resumed)
	}
	return fmt.Sprintf("%d cells %s: %d green, %d RED, %d INVALID", len(r.results), took, n[Green], n[Red], n[Invalid])
}

// preface and limits are the parts of the report that no run changes.
var (
	//go:embed preface.md
	preface string
	//go:embed limits.md
	limits string
)

func (r *report) markdown() string {
	var b strings.Builder
	b.WriteString(preface)
	b.WriteString("\n## Contract\n\n")
	b.WriteString(contractTable())
	fmt.Fprintf(&b, "\n## Results\n\n**%s.** Seed %d, %d cells at a time, %d CPUs, %s/%s, %s.\n\n",
		r.summary(), r.options.seed, r.options.parallel, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	b.WriteString("Cells by boundary and fault, over all kinds and policies; a number alone is green.\n\n")
	b.WriteString(crossTable(r.results, Boundaries, func(c Cell) Boundary { return c.At }, func(c Cell) string { return string(c.Fault) }))
	b.WriteString("\nBy kind and policy:\n\n")
	b.WriteString(crossTable(r.results, Kinds, func(c Cell) Kind { return c.Kind }, func(c Cell) string { return string(c.Policy) }))
	b.WriteString("\nOutcomes by kind of provider. That mails are doubled or stay unknown where there is no help from the " +
		"provider is the limit that two generals set: a matrix without such cells would not have hit the window.\n\n")
	b.WriteString(crossTable(r.results, Kinds, func(c Cell) Kind { return c.Kind }, nil))
	b.WriteString(r.durations())
	b.WriteString(r.failures())
	b.WriteString(r.killTable())
	b.WriteString("\n" + limits)
	return b.String()
}

func contractTable() string {
	var b strings.Builder
	b.WriteString("| row | kinds | boundaries | faults | `retry` | `hold` | `drop` |\n|---|---|---|---|---|---|---|\n")
	for _, row := range Contract {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", row.Name,
			listOf(row.Kinds), listOf(row.Classes), listOf(row.Faults),
			strings.Join(row.Promise[Retry], "; "), strings.Join(row.Promise[Hold], "; "), strings.Join(row.Promise[Drop], "; "))
	}
	return b.String()
}

func listOf[T ~string](items []T) string {
	if len(items) == 0 {
		return "any"
	}
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = string(item)
	}
	return strings.Join(texts, ", ")
}

// crossTable counts cells by two of their properties. Without a function for
// the columns they are the outcomes.
func crossTable[T ~string](results []Result, rows []T, row func(Cell) T, column func(Cell) string) string {
	of := func(r Result) string {
		if column == nil {
			return r.Outcome
		}
		return column(r.Cell)
	}
	var columns []string
	for _, r := range results {
		if c := of(r); !slices.Contains(columns, c) {
			columns = append(columns, c)
		}
	}
	slices.Sort(columns)
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, name := range rows {
		fmt.Fprintf(&b, "| %s |", string(name))
		for _, c := range columns {
			b.WriteString(" " + tally(results, func(r Result) bool { return row(r.Cell) == name && of(r) == c }) + " |")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func tally(results []Result, counts func(Result) bool) string {
	all, bad := 0, 0
	for _, r := range results {
		if !counts(r) {
			continue
		}
		all++
		if r.Verdict != Green {
			bad++
		}
	}
	switch {
	case all == 0:
		return ""
	case bad > 0:
		return fmt.Sprintf("**%d of %d bad**", bad, all)
	}
	return fmt.Sprint(all)
}

func (r *report) durations() string {
	if len(r.results) == 0 {
		return ""
	}
	took := make([]time.Duration, len(r.results))
	for i, x := range r.results {
		took[i] = x.Took
	}
	slices.Sort(took)
	at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))].Round(100 * time.Millisecond) }
	return fmt.Sprintf("\nA cell took %v at the median, %v at p95 and %v at most, with %d at a time.\n",
		at(0.5), at(0.95), at(1), r.options.parallel)
}

func (r *report) failures() string {
	var b strings.Builder
	for _, x := range r.results {
		if x.Verdict != Green {
			fmt.Fprintf(&b, "- %s `%s` (%s): %s\n", x.Verdict, x.Cell, x.Outcome, strings.Join(x.Wrong, "; "))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n### Not green\n\n" + b.String()
}

func (r *report) killTable() string {
	if len(r.kills) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n## Mutants\n\nBugs that somebody could put in, each built into a worker of its own; the cells or, for what " +
		"no cell has, the test named in `crash/mutant.go` must find it.\n\n| mutant | | what the checker said |\n|---|---|---|\n")
	for _, k := range r.kills {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", k.mutant, k.verdict(), cmp.Or(strings.ReplaceAll(k.wrong, "|", "\\|"), "nothing"))
	}
	return b.String()
}
