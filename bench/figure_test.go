package main

import (
	"context"
	"testing"
)

// A figure counts only if its baselines agree, and is judged in the direction that is
// better.
func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		result Result
		want   Verdict
	}{
		{"more", Result{Ours: 200, Before: 100, After: 90, Must: 1, Aim: 2}, Met},
		{"enough", Result{Ours: 120, Before: 100, After: 100, Must: 1, Aim: 2}, Reached},
		{"too few", Result{Ours: 99, Before: 100, After: 100, Must: 1, Aim: 2}, Missed},
		{"a busy machine", Result{Ours: 200, Before: 100, After: 79, Must: 1, Aim: 2}, Invalid},
		{"quick", Result{Ours: 15, Before: 10, After: 10, Must: 3, Aim: 1.5, LessIsBetter: true}, Met},
		{"slow", Result{Ours: 31, Before: 10, After: 10, Must: 3, Aim: 1.5, LessIsBetter: true}, Missed},
		{"by itself", Result{Ours: 100, Must: 150, Aim: 80, LessIsBetter: true}, Reached},
	} {
		if got := test.result.Verdict(); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// A figure that is INVALID is taken again until it is not, and not for ever; one that
// is missed stands.
func TestInvalidFigureIsTakenAgain(t *testing.T) {
	t.Parallel()
	missed := Result{Ours: 1, Before: 100, After: 100, Must: 1, Aim: 2}
	invalid := Result{Ours: 200, Before: 100, After: 10, Must: 1, Aim: 2}
	for _, test := range []struct {
		name string
		runs []Result // the last one goes on
		want Verdict
		took int
	}{
		{"valid", []Result{missed}, Missed, 1},
		{"busy at first", []Result{invalid, missed}, Missed, 2},
		{"always busy", []Result{invalid}, Invalid, 3},
	} {
		took, shown := 0, 0
		f := figure{"a figure", func(context.Context, *lab) ([]Result, error) {
			r := test.runs[min(took, len(test.runs)-1)]
			took++
			return []Result{r}, nil
		}}
		results, err := f.measure(t.Context(), &lab{scale: options{}.scale()}, func(Result) { shown++ })
		if err != nil || len(results) != 1 || results[0].Verdict() != test.want {
			t.Errorf("%s: %v, %v, want one that is %s", test.name, results, err, test.want)
		}
		if took != test.took || shown != took {
			t.Errorf("%s: taken %d times, shown %d, want %d", test.name, took, shown, test.took)
		}
	}
}
