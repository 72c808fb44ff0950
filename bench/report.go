package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// report is what a run has measured.
type report struct {
	Quick   bool     `json:"quick"`
	Machine string   `json:"machine"`
	Results []Result `json:"results"`
}

// missed reports whether a valid figure misses what it must reach.
func (r *report) missed() bool {
	return slices.ContainsFunc(r.Results, func(result Result) bool { return result.Verdict() == Missed })
}

func (r *report) write(o options, stdout io.Writer) error {
	if o.json != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if o.report == "-" {
		_, err := io.WriteString(stdout, r.markdown())
		return err
	}
	return os.WriteFile(o.report, []byte(r.markdown()), 0o644)
}

func (r *report) markdown() string {
	var text strings.Builder
	text.WriteString("# Benchmarks\n\n<!-- Written by `make bench`. -->\n\n" + r.Machine + ".\n\n")
	if r.Quick {
		text.WriteString("**A quick look:** seconds instead of minutes. Do not quote these figures.\n\n")
	}
	text.WriteString(`Each figure is a ratio to a baseline in the same run, the mean of one taken just before it and one just after. If the
two differ by more than 20 % the figure is INVALID: the machine was busy with something else. "met" reaches the aim too,
"reached" what it must.

| figure | ours | baseline | before | after | ratio | must | aim | verdict |
|---|---|---|---|---|---|---|---|---|
`)
	for _, result := range r.Results {
		text.WriteString(result.row())
	}
	return text.String()
}

func (r Result) row() string {
	sign := "≥"
	if r.LessIsBetter {
		sign = "≤"
	}
	before, after, ratio, baseline := fmt.Sprintf("%.4g", r.Before), fmt.Sprintf("%.4g", r.After), fmt.Sprintf("%.2f", r.Ratio()), r.Baseline
	if r.absolute() {
		before, after, ratio, baseline = "", "", "", "itself"
	}
	return fmt.Sprintf("| %s | %.4g %s | %s | %s | %s | %s | %s %.4g | %s %.4g | %s |\n",
		r.Figure, r.Ours, r.Unit, baseline, before, after, ratio, sign, r.Must, sign, r.Aim, r.Verdict())
}
