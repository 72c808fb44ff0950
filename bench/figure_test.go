package main

import "testing"

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
