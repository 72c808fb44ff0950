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
two differ by more than 20 % the figure is INVALID, for the machine was busy with something else, and is taken again, up
to three times in all. "met" reaches the aim too, "reached" what it must.

| figure | ours | baseline | before | after | ratio | must | aim | verdict |
|---|---|---|---|---|---|---|---|---|
`)
	for _, result := range r.Results {
		text.WriteString(result.row())
	}
	fmt.Fprintf(&text, explanation, clients, deliveriesAtOnce)
	return text.String()
}

// explanation says what the figures are of.
const explanation = `
## What is compared

- **Ours**: the released programs in their default configuration, without a rate limit, against a provider that answers
  at once in the form of Resend's API.
- **pgbench**: %d clients, prepared statements, what a submission stores (key, email, content, search term, job) in one
  transaction per email, in the same tables.
- **The naive worker**: what one writes first, a River job with the settings of our worker (%d at a time), which loads the
  message, makes the same call and marks the email as sent. It records nothing before the call, so what a crash
  interrupts is lost or sent twice, and nobody knows.
- **Latencies** are counted from when a request was due, whether those before it were done or not. That of submissions is
  taken at a quarter of the slower rate, pgbench's: at a quarter of ours pgbench is near its limit.
- **SIGKILL**: of two workers the one that has more emails with the provider is killed before the provider answers. The
  sweep, which finds the dead, runs twice a second.
- **Bytes**: of the second of two rounds, after River has removed the jobs that are done, which it does after an hour, and
  after a vacuum.

## For long

**make soak** submits for half an hour at half of the rate that goes through from end to end, kills a worker every 30 s and
restarts Postgres every 5 minutes. It fails if an email is lost, or comes to the provider under two keys. What grows
meanwhile, memory and dead rows, is in [soak.png](soak.png).
`

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
