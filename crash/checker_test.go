package main

import (
	"strings"
	"testing"
	"time"
)

// good is a history that breaks no rule: a worker was killed after the provider
// had accepted, and the message was sent again.
func good() *History {
	yes := true
	return &History{
		Cell:    Cell{Accepted, Kill, Plain, Retry},
		Reached: true, Settled: true, Drained: true,
		Requests: []Request{{Key: "k1", SHA256: "a", Recorded: &yes}, {Key: "k2", SHA256: "b", Recorded: &yes}},
		Accepted: []Acceptance{{Key: "k1", SHA256: "a"}, {Key: "k2", SHA256: "b"}},
		Email:    Email{Status: "sent", Flagged: true, Attempts: 2},
		Attempts: []Attempt{
			{Number: 1, Key: "k1", SHA256: "a", Stage: "unknown", Unknown: true},
			{Number: 2, Key: "k2", SHA256: "b", Stage: "accepted", Flagged: true},
		},
	}
}

func TestGoodHistoryIsGreen(t *testing.T) {
	t.Parallel()
	if verdict, wrong := Judge(good()); verdict != Green {
		t.Errorf("%s: %v", verdict, wrong)
	}
}

// A cell whose fault did not hit has shown nothing, however well it went.
func TestCellThatWasNotHitIsInvalid(t *testing.T) {
	t.Parallel()
	h := good()
	h.Reached = false
	if verdict, _ := Judge(h); verdict != Invalid {
		t.Errorf("verdict %s, want %s", verdict, Invalid)
	}
}

// Each rule turns red on the history that it is there for.
func TestBadHistories(t *testing.T) {
	t.Parallel()
	no := false
	for _, bad := range []struct {
		name, rule string
		spoil      func(*History)
	}{
		{"lost", "I1", func(h *History) { h.Email.Status = "sending" }},
		{"too late", "I1", func(h *History) { h.Settled = false }},
		{"unknown without hold", "I1", func(h *History) { h.Email.Status = "unknown" }},
		{"phantom", "I2", func(h *History) { h.Accepted[1].Key = "k3" }},
		{"sent twice with a key", "I3", func(h *History) { h.Cell.Kind = Key }},
		{"the window was missed", "I3", func(h *History) { h.Accepted = h.Accepted[:1] }},
		{"dropped and sent all the same", "I3", func(h *History) { h.Cell.Policy = Drop }},
		{"sent and none accepted", "I4 truth", func(h *History) { h.Accepted = nil }},
		{"failed and accepted", "I4 truth", func(h *History) { h.Email.Status, h.Email.Reason = "failed", "rejected" }},
		{"resend not flagged", "I4 flag", func(h *History) { h.Email.Flagged = false }},
		{"attempt not flagged", "I4 flag", func(h *History) { h.Attempts[1].Flagged = false }},
		{"flagged without a doubt", "I4 flag", func(h *History) { h.Attempts[0].Unknown = false }},
		{"two without any flag", "I4 flag", func(h *History) {
			h.Attempts[0].Unknown, h.Attempts[1].Flagged, h.Email.Flagged = false, false, false
		}},
		{"attempts miscounted", "I5", func(h *History) { h.Email.Attempts = 1 }},
		{"attempt missing", "I5", func(h *History) { h.Attempts[1].Number = 3 }},
		{"sent before it was recorded", "I7", func(h *History) { h.Requests[0].Recorded = &no }},
		{"never recorded", "I7", func(h *History) { h.Requests[0] = Request{Key: "k3"} }},
		{"other bytes under a key", "I8", func(h *History) { h.Requests = append(h.Requests, Request{Key: "k1", SHA256: "c"}) }},
		{"other bytes than recorded", "I8", func(h *History) { h.Attempts[0].SHA256 = "c" }},
		{"other bytes accepted", "I8", func(h *History) { h.Accepted[1].SHA256 = "c" }},
		{"job left running", "I11", func(h *History) { h.Residue.RunningJobs = 1 }},
		{"idle transaction", "I11", func(h *History) { h.Residue.IdleTransactions = 1 }},
		{"lock of the dead", "I11", func(h *History) { h.Residue.AdvisoryLocks = 1 }},
		{"open attempt of a sent email", "I11", func(h *History) { h.Residue.OpenAttempts = 1 }},
		{"subject in a log", "no leak", func(h *History) { h.Leaks = []string{"worker 1 printed canary"} }},
		{"process that does not stop", "I11", func(h *History) { h.Drained = false }},
	} {
		t.Run(bad.name, func(t *testing.T) {
			t.Parallel()
			h := good()
			bad.spoil(h)
			verdict, wrong := Judge(h)
			if verdict != Red || !strings.Contains(strings.Join(wrong, "\n"), bad.rule) {
				t.Errorf("%s %q, want red by %s", verdict, wrong, bad.rule)
			}
		})
	}
}

// Every cell has a row and a promise, and every row has a cell.
func TestContractCoversTheMatrix(t *testing.T) {
	t.Parallel()
	used := map[string]int{}
	for _, c := range Matrix() {
		row := RowOf(c)
		if row == nil || len(row.Promise[c.Policy]) == 0 {
			t.Fatalf("%s: no promise", c)
		}
		used[row.Name]++
	}
	for _, row := range Contract {
		if used[row.Name] == 0 {
			t.Errorf("no cell comes to the row %q", row.Name)
		}
	}
}

// The contract never allows what the design's table forbids.
func TestContractKeepsTheDesign(t *testing.T) {
	t.Parallel()
	for _, row := range Contract {
		for policy, outcomes := range row.Promise {
			for _, o := range outcomes {
				twice := strings.HasPrefix(o, "2")
				if twice && (policy != Retry || !strings.Contains(o, "flagged")) {
					t.Errorf("%q allows %q under %s", row.Name, o, policy)
				}
				if strings.HasSuffix(o, "unknown") && policy != Hold {
					t.Errorf("%q leaves a doubt open under %s", row.Name, policy)
				}
			}
		}
	}
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	cells := Matrix()
	if len(cells) < 300 {
		t.Errorf("%d cells, want at least 300", len(cells))
	}
	seen := map[string]bool{}
	for _, c := range cells {
		if seen[c.String()] {
			t.Errorf("%s is there twice", c)
		}
		seen[c.String()] = true
	}
	for pattern, want := range map[string]int{"B4/sigkill/plain/retry": 1, "B4/sigkill/plain": 3, "*/panic/*/*,B99": 0} {
		if n := len(Select(cells, pattern)); n != want && want > 0 || (want == 0 && n < 10) {
			t.Errorf("%s fits %d cells", pattern, n)
		}
	}
	pairs := map[[2]string]bool{}
	short := Short()
	for _, c := range short {
		for _, p := range c.pairs() {
			pairs[p] = true
		}
	}
	for _, c := range cells {
		for _, p := range c.pairs() {
			if c.cheap() && !pairs[p] {
				t.Errorf("the short part misses %v", p)
			}
		}
	}
	t.Logf("%d cells, %d in the short part", len(cells), len(short))
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := &report{options: options{seed: 7, parallel: 2}, took: time.Minute, results: []Result{
		{Cell: good().Cell, Verdict: Green, Outcome: good().Outcome(), Took: time.Second},
		{Cell: Cell{Begun, Kill, Key, Drop}, Verdict: Red, Outcome: "2 accepted, sent", Wrong: []string{"I3"}, Took: time.Second},
	}, kills: []kill{{mutant: "tame", tried: "3 cells"}}}
	if r.good() {
		t.Error("a run with a red cell is good")
	}
	text := r.markdown()
	for _, want := range []string{
		"2 cells in 1m0s: 1 green, 1 RED, 0 INVALID", "Seed 7", "**1 of 1 bad**", "B4/sigkill/key/drop", "LIVES through 3 cells",
		"2 accepted, sent, flagged", "## Limits",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, text)
		}
	}
}
