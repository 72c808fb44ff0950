package main

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// figure is a row or two of the report and how they are measured.
type figure struct {
	name string
	take func(context.Context, *lab) ([]Result, error)
}

// figures are all, in the order of the report.
var figures = []figure{
	{"submissions per second", submissionRate},
	{"latency of submissions", submissionLatency},
	{"deliveries per second", deliveryRate},
	{"submission to receipt", receiptLatency},
	{"recovery", recovery},
	{"a large database", storedRates},
	{"size", sizes},
}

// measure takes the figure until its baselines agree, as often as the scale allows.
// What is valid is never taken again.
func (f figure) measure(ctx context.Context, b *lab, each func(Result)) (results []Result, err error) {
	for range b.tries {
		if results, err = f.take(ctx, b); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		for _, r := range results {
			each(r)
		}
		if !slices.ContainsFunc(results, func(r Result) bool { return r.Verdict() == Invalid }) {
			break
		}
	}
	return results, nil
}

// Verdict is what a figure comes to.
type Verdict string

// The verdicts.
const (
	Met     Verdict = "met"     // the aim as well
	Reached Verdict = "reached" // what it must reach, not the aim
	Missed  Verdict = "MISSED"
	Invalid Verdict = "INVALID"
)

// maxDrift is how much the two baselines of a figure may differ, as a share of the
// larger one.
const maxDrift = 0.2

// Result is a figure that was measured.
type Result struct {
	Figure   string  `json:"figure"`
	Unit     string  `json:"unit"`
	Baseline string  `json:"baseline"`
	Ours     float64 `json:"ours"`
	// Before and After are the baseline; NaN: the figure stands for itself.
	Before float64 `json:"before"`
	After  float64 `json:"after"`
	// Must and Aim bound Ratio: from below where more is better, else from above.
	Must         float64 `json:"must"`
	Aim          float64 `json:"aim"`
	LessIsBetter bool    `json:"less_is_better"`
}

// Ratio is ours to the mean of the baselines, or ours where there is none.
func (r Result) Ratio() float64 {
	if r.absolute() {
		return r.Ours
	}
	return 2 * r.Ours / (r.Before + r.After)
}

func (r Result) absolute() bool { return r.Before == 0 && r.After == 0 }

// Verdict judges the figure.
func (r Result) Verdict() Verdict {
	if !r.absolute() && math.Abs(r.Before-r.After) > maxDrift*max(r.Before, r.After) {
		return Invalid
	}
	reaches := func(bound float64) bool {
		if r.LessIsBetter {
			return r.Ratio() <= bound
		}
		return r.Ratio() >= bound
	}
	switch {
	case reaches(r.Aim):
		return Met
	case reaches(r.Must):
		return Reached
	}
	return Missed
}

// String is the figure in a line, for the screen.
func (r Result) String() string {
	if r.absolute() {
		return fmt.Sprintf("%s: %.4g %s, %s", r.Figure, r.Ours, r.Unit, r.Verdict())
	}
	return fmt.Sprintf("%s: %.4g %s, baseline %.4g and %.4g, ratio %.2f, %s", r.Figure, r.Ours, r.Unit, r.Before, r.After, r.Ratio(), r.Verdict())
}

// between takes a baseline, ours, and the baseline again.
func between[T any](baseline, ours func() (T, error)) (before, own, after T, err error) {
	if before, err = baseline(); err != nil {
		return before, own, after, fmt.Errorf("baseline before: %w", err)
	}
	if own, err = ours(); err != nil {
		return before, own, after, err
	}
	if after, err = baseline(); err != nil {
		return before, own, after, fmt.Errorf("baseline after: %w", err)
	}
	return before, own, after, nil
}
