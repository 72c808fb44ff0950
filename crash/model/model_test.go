package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var policies = []Policy{Drop, Hold, Retry}

// What can happen is what the contract says: no more, no less.
func TestContract(t *testing.T) {
	t.Parallel()
	for _, rows := range [][]Row{Contract, Boundaries, Refusals} {
		for _, row := range rows {
			t.Run(row.Name, func(t *testing.T) {
				t.Parallel()
				row.check(t)
			})
		}
	}
}

func (row Row) check(t *testing.T) {
	t.Helper()
	for _, result := range row.checkOutcomes(t) {
		for broken, trace := range result.Violations {
			t.Errorf("%s:\n%s", broken, trace)
		}
	}
}

func (row Row) checkOutcomes(t *testing.T) (results []Result) {
	t.Helper()
	for _, kind := range row.Kinds {
		for _, policy := range policies {
			result := Explore(Scenario{
				Kind: kind, Policy: policy, Faults: row.Faults, MaxFaults: row.Max, only: row.At,
			})
			results = append(results, result)
			want := slices.Sorted(slices.Values(row.Promise.Of(policy)))
			got := names(result.Outcomes)
			t.Logf("%-38s %-18s %-5s %6d states: %s", row.Name, kind, policy, result.States, strings.Join(got, " | "))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s: outcomes (-promised +reachable):\n%s%s", kind, policy, diff, unpromised(result, want))
			}
		}
	}
	return results
}

func names(outcomes map[Outcome]Trace) []string {
	var list []string
	for o := range maps.Keys(outcomes) {
		list = append(list, o.String())
	}
	slices.Sort(list)
	return list
}

// unpromised shows the shortest way to an outcome that is not promised.
func unpromised(r Result, promised []string) string {
	var shortest Trace
	for o, trace := range r.Outcomes {
		if !slices.Contains(promised, o.String()) && (shortest == nil || len(trace) < len(shortest)) {
			shortest = trace
		}
	}
	if shortest == nil {
		return ""
	}
	return shortest.String()
}

// A process that was taken for stuck may run the same job twice at a time.
func TestSecondRunInOneProcess(t *testing.T) {
	t.Parallel()
	r := Explore(Scenario{Kind: Keys, Policy: Retry, Faults: Crash | Pause | Refuse, MaxFaults: 2, SecondRun: true})
	t.Logf("%d states: %s", r.States, strings.Join(names(r.Outcomes), " | "))
	promised := refusable(exactlyOne).Retry
	if diff := cmp.Diff(promised, names(r.Outcomes)); diff != "" {
		t.Errorf("outcomes (-promised +reachable):\n%s%s", diff, unpromised(r, promised))
	}
	for broken, trace := range r.Violations {
		t.Errorf("%s:\n%s", broken, trace)
	}
}

// kill is a rule without which the contract does not hold, and where that
// shows.
type kill struct {
	broken    Mutant
	kind      Kind
	policy    Policy
	faults    Faults
	secondRun bool
	// want is an outcome that nobody promised, or an invariant that breaks.
	want string
}

var kills = []kill{
	{broken: KeyPerTakeOver, kind: Keys, policy: Retry, faults: Crash, want: "2 accepted, sent"},
	{broken: NoOwnerFence, kind: Keys, policy: Retry, faults: Pause | Crash, want: "2 accepted, sent"},
	{broken: BeginAfterSend, kind: Neither, policy: Drop, faults: Crash, want: "2 accepted, sent"},
	{broken: DefiniteWithoutProof, kind: Neither, policy: Drop, faults: Network, want: "2 accepted, sent"},
	{broken: FailoverInDoubt, kind: Keys, policy: Retry, faults: Crash, want: "2 accepted, sent"},
	{broken: ReplayPastWindow, kind: KeysForAWhile, policy: Hold, faults: Crash, want: "2 accepted, sent"},
	{broken: NotFoundWhilePaused, kind: SearchAtOnce, policy: Drop, faults: Pause, want: "2 accepted, sent"},
	{broken: SweepTakesThePaused, kind: Neither, policy: Hold, faults: Pause, want: "2 accepted, sent"},
	{broken: NoDeadline, kind: KeysForAWhile, policy: Hold, faults: Crash | Pause, want: "2 accepted, sent"},
	{broken: NoFlag, kind: Neither, policy: Retry, faults: Crash, want: "2 accepted, sent"},
	{broken: ReplayRefusalCounts, kind: Keys, policy: Drop, faults: Crash | Refuse, want: "2 accepted, sent"},
	{broken: NoSettle, kind: Neither, policy: Drop, faults: Pause, want: "I4: a reply in hand is thrown away"},
	{broken: FenceAccepted, kind: Keys, policy: Drop, faults: Pause, want: "I4: a reply in hand is thrown away"},
	{broken: SentCanBeUndone, kind: Neither, policy: Retry, faults: Pause | Network, want: "I5: an ended email goes on"},

	{broken: NotFoundAtOnce, kind: SearchAtOnce, policy: Drop, faults: Crash, want: "2 accepted, sent"},
	{broken: NotFoundAtOnce, kind: SearchAtOnce, policy: Drop, faults: LoseSession, want: "2 accepted, sent"},
	{broken: WindowAsOfLoad, kind: KeysForAWhile, policy: Hold, faults: Crash | Pause, want: "2 accepted, sent"},
	{broken: UnderWayOnlyIfOwned, kind: Keys, policy: Retry, faults: Crash | Pause, secondRun: true, want: "2 accepted, sent"},
	{broken: RefusalHidesDoubt, kind: Neither, policy: Retry, faults: Crash | Refuse, want: "I4: failed, and there is a mail"},
	{broken: LateAcceptedOfLastOnly, kind: Neither, policy: Retry, faults: Crash, want: "I4: an attempt is known to be accepted, and the email is not sent"},
}

// Without any one of its rules the protocol does not keep the contract. (That
// with them it does in the same scenarios is TestContract.)
func TestMutants(t *testing.T) {
	t.Parallel()
	killed := map[Mutant]bool{}
	table := make([]string, len(kills))
	t.Cleanup(func() { t.Logf("the kill table:\n%s", strings.Join(table, "\n")) })
	for i, k := range kills {
		killed[k.broken] = true
		t.Run(k.broken.String(), func(t *testing.T) {
			t.Parallel()
			scenario := Scenario{Kind: k.kind, Policy: k.policy, Faults: k.faults, MaxFaults: 2, SecondRun: k.secondRun}
			scenario.Broken = []Mutant{k.broken}
			mutated := Explore(scenario)
			trace := found(mutated, k.want)
			if trace == nil {
				t.Fatalf("survives: %q is not reachable, but %v and %v are", k.want,
					names(mutated.Outcomes), slices.Sorted(maps.Keys(mutated.Violations)))
			}
			t.Logf("killed by %s, %s: %s\n%s", k.kind, k.policy, k.want, trace)
			table[i] = fmt.Sprintf("%-44s %-18s %-5s %s", k.broken, k.kind, k.policy, k.want)
		})
	}
	for m := range Mutant(mutants) {
		if !killed[m] {
			t.Errorf("no kill for %q", m)
		}
	}
}

// found returns the way to an outcome or to a broken invariant; nil: none.
func found(r Result, what string) Trace {
	for o, trace := range r.Outcomes {
		if o.String() == what {
			return trace
		}
	}
	return r.Violations[what]
}

// The assumptions are needed: without them two mails without a flag are
// possible. A provider without keys and search needs none.
func TestAssumptions(t *testing.T) {
	t.Parallel()
	tests := []struct {
		dropped Assumption
		kind    Kind
		faults  Faults
		needed  bool
	}{
		{PromptProvider, SearchAtOnce, Crash, true},
		{ShortGap, SearchAtOnce, Pause | LoseSession, true},
		{ShortGap, KeysForAWhile, Crash | Pause, true},
		{PromptProvider, Neither, AnyFault, false},
		{ShortGap, Neither, AnyFault, false},
		{PromptProvider, Keys, AnyFault, false},
		{ShortGap, Keys, AnyFault, false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s, %s", tt.dropped, tt.kind), func(t *testing.T) {
			t.Parallel()
			r := Explore(Scenario{
				Kind: tt.kind, Policy: Drop, Faults: tt.faults, MaxFaults: 2, Dropped: []Assumption{tt.dropped},
			})
			trace := found(r, "2 accepted, sent")
			if needed := trace != nil; needed != tt.needed {
				t.Errorf("needed %v, want %v\n%s", needed, tt.needed, trace)
			}
			if trace != nil {
				t.Logf("without it:\n%s", trace)
			}
		})
	}
}

// The checker finds what is wrong in states and steps that are.
func TestChecker(t *testing.T) {
	t.Parallel()
	one := state{email: email{status: sent, attempts: 1}, attempts: [maxAttempts]attempt{{stage: accepted, accepted: 1}}}
	two := one
	two.email.attempts, two.email.flagged = 2, true
	two.attempts = [maxAttempts]attempt{{stage: unknown, accepted: 1}, {stage: accepted, accepted: 1}}
	if broken := slices.Concat(brokenIn(&one), brokenIn(&two), brokenByStep(nobody, &one, &one)); len(broken) > 0 {
		t.Errorf("nothing is wrong with these, but: %q", broken)
	}
	tests := []struct {
		want  string
		spoil func(from, to *state)
	}{
		{"I3: more than one mail and no flag", func(_, to *state) { to.email.flagged = false }},
		{"I3: more mails than attempts", func(_, to *state) { to.attempts[0].accepted = 2 }},
		{"I4: sent, and no mail", func(_, to *state) { to.attempts[0].accepted, to.attempts[1].accepted = 0, 0 }},
		{"I4: failed, and there is a mail", func(_, to *state) { to.email.status = failedRefused }},
		{
			"I4: an attempt is known to be accepted, and the email is not sent",
			func(_, to *state) { to.email.status = doubtful },
		},
		{"I7: bytes at the provider and no attempt", func(_, to *state) { to.runs[0] = run{at: onWire, number: 3} }},
		{"I5: an ended email goes on", func(_, to *state) { to.email.status = queued }},
		{"I5: an attempt is gone", func(_, to *state) { to.email.attempts = 1 }},
		{"I5: a closed attempt changes", func(_, to *state) { to.attempts[1].stage = unknown }},
		{"I4: the flag changes without a resend", func(from, _ *state) { from.email.flagged = false }},
		{
			"I4: the flag is not that a resend followed a doubt",
			func(from, to *state) { from.email.attempts, to.email.flagged = 1, false },
		},
		{
			"I4: a reply in hand is thrown away",
			func(from, _ *state) { from.runs[0] = run{at: settling, number: 1, result: wasAccepted} },
		},
	}
	for _, tt := range tests {
		from, to := two, two
		tt.spoil(&from, &to)
		if broken := append(brokenIn(&to), brokenByStep(0, &from, &to)...); !slices.Contains(broken, tt.want) {
			t.Errorf("found %q, want %q", broken, tt.want)
		}
	}
}
