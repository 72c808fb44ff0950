package model

import (
	"fmt"
	"slices"
	"strings"
)

// Scenario is what is explored: a provider, a policy, and what may go wrong.
type Scenario struct {
	Kind   Kind
	Policy Policy
	// Faults may happen, MaxFaults of them in one history.
	Faults    Faults
	MaxFaults int
	// SecondRun lets the first process run the job twice at the same time.
	SecondRun bool
	// only, unless idle, is the one place where faults hit. Histories without
	// the faults then do not count.
	only place
	// Broken are the rules of the protocol that do not hold, and Dropped the
	// assumptions about the world that are not made.
	Broken  []Mutant
	Dropped []Assumption
}

// Outcome is how an email ends.
type Outcome struct {
	Accepted int // mails that the provider made of it
	Status   string
	Flagged  bool
}

func (o Outcome) String() string {
	s := fmt.Sprintf("%d accepted, %s", o.Accepted, o.Status)
	if o.Flagged {
		s += ", flagged"
	}
	return s
}

// Result is what an exploration found.
type Result struct {
	States int
	// Outcomes holds every reachable outcome, and a shortest way to it.
	Outcomes map[Outcome]Trace
	// Violations holds every invariant that does not hold, and a shortest way
	// to where it breaks.
	Violations map[string]Trace
}

// Trace is a history, one line per step.
type Trace []string

func (t Trace) String() string { return "  " + strings.Join(t, "\n  ") }

// Explore visits every state that can be reached, the nearest first.
func Explore(scenario Scenario) Result {
	x := newExplorer(scenario)
	x.to(nobody, "the email is committed", state{faults: uint8(scenario.MaxFaults)})
	for x.cursor = 0; x.cursor < len(x.visited); x.cursor++ {
		s := x.visited[x.cursor].state
		x.successors(s)
		x.judge(&s)
	}
	x.findTraps()
	return x.result
}

// explorer is an exploration under way.
type explorer struct {
	kind    Kind
	policy  Policy
	faults  Faults
	runs    int
	only    place
	broken  [mutants]bool
	dropped [assumptions]bool

	index   map[state]int32 // of a state in visited
	visited []node
	cursor  int // of the node whose successors are being made
	edges   []edge
	luck    bool // the steps being made may never happen
	result  Result
}

// node is a visited state and how it was reached first.
type node struct {
	state  state
	parent int
	step   step
	end    bool // at rest, or where a third attempt is wanted
	mirror bool // the step led to the mirror image
}

// edge is a step that will happen some time if nothing goes wrong.
type edge struct{ from, to int32 }

// step is one line of a trace: a run, a process or the world does something.
type step struct {
	who  int
	text string
}

const (
	nobody  = -1
	process = 10 // and the worker's number
)

func (s step) String() string {
	switch {
	case s.who == nobody:
		return "· " + s.text
	case s.who >= process:
		return fmt.Sprintf("process %c %s", 'A'+s.who-process, s.text)
	}
	return [...]string{"A", "B", "A'"}[s.who] + " " + s.text
}

func newExplorer(c Scenario) *explorer {
	x := &explorer{
		kind: c.Kind, policy: c.Policy, faults: c.Faults, runs: 2, only: c.only, cursor: -1,
		index:  map[state]int32{},
		result: Result{Outcomes: map[Outcome]Trace{}, Violations: map[string]Trace{}},
	}
	if c.SecondRun {
		x.runs = maxRuns
	}
	for _, m := range c.Broken {
		x.broken[m] = true
	}
	for _, a := range c.Dropped {
		x.dropped[a] = true
	}
	return x
}

func (x *explorer) has(m Mutant) bool         { return x.broken[m] }
func (x *explorer) without(a Assumption) bool { return x.dropped[a] }

// successors makes every state that can follow.
func (x *explorer) successors(s state) {
	for i := range s.runs {
		x.proceed(s, i)
	}
	x.providerSteps(s)
	x.timeSteps(s)
	x.luck = true
	x.evidenceSteps(s)
	x.luck = false
	x.sessionSteps(s)
	x.faultSteps(s)
}

// to takes a step to a state.
func (x *explorer) to(who int, text string, s state) {
	s.normalize()
	if !x.possible(&s) {
		return
	}
	x.check(who, text, &s)
	mirror := x.runs == workers && s.mirrored()
	if mirror {
		s.mirror()
	}
	at, known := x.index[s]
	if !known {
		at = int32(len(x.visited))
		x.index[s] = at
		x.visited = append(x.visited, node{state: s, parent: x.cursor, step: step{who, text}, mirror: mirror})
		x.result.States++
	}
	if x.cursor >= 0 && !x.luck && s.faults == x.visited[x.cursor].state.faults {
		x.edges = append(x.edges, edge{int32(x.cursor), at})
	}
}

// check looks at a step that is about to be taken.
func (x *explorer) check(who int, text string, to *state) {
	if x.cursor < 0 {
		return
	}
	for _, broken := range brokenByStep(who, &x.visited[x.cursor].state, to) {
		x.violated(broken, step{who, text})
	}
}

// normalize forgets what no longer matters, so that states which differ in
// nothing else are one.
func (s *state) normalize() {
	for i := range s.attempts {
		if a := &s.attempts[i]; a.stage != open {
			a.owner, a.inDoubt, a.waited, a.overdue = 0, false, false, false
		}
	}
}

// judge checks the state at the cursor.
func (x *explorer) judge(s *state) {
	for _, broken := range brokenIn(s) {
		x.violated(broken, step{nobody, "which is wrong"})
	}
	x.visited[x.cursor].end = s.cut()
	if !x.atRest(s) {
		return
	}
	x.visited[x.cursor].end = true
	if x.only != idle && s.faults > 0 {
		return
	}
	o := outcomeOf(s)
	if _, known := x.result.Outcomes[o]; !known {
		x.result.Outcomes[o] = x.trace(step{nobody, "the end: " + o.String()})
	}
}

// findTraps looks for states from which no end can be reached without luck.
func (x *explorer) findTraps() {
	into := newEdgeIndex(x.edges, len(x.visited))
	var todo []int32
	for i, n := range x.visited {
		if n.end {
			todo = append(todo, int32(i))
		}
	}
	for len(todo) > 0 {
		to := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, from := range into.of(to) {
			if n := &x.visited[from]; !n.end {
				n.end = true
				todo = append(todo, from)
			}
		}
	}
	for i, n := range x.visited {
		if !n.end {
			x.cursor = i
			x.violated("I1: an email never ends", step{nobody, "from here there is no end"})
			return
		}
	}
}

// edgeIndex finds the edges into a node.
type edgeIndex struct {
	first []int32 // of each node, in from
	from  []int32
}

func newEdgeIndex(edges []edge, nodes int) edgeIndex {
	x := edgeIndex{first: make([]int32, nodes+1), from: make([]int32, len(edges))}
	for _, e := range edges {
		x.first[e.to+1]++
	}
	for i := range nodes {
		x.first[i+1] += x.first[i]
	}
	next := slices.Clone(x.first)
	for _, e := range edges {
		x.from[next[e.to]] = e.from
		next[e.to]++
	}
	return x
}

func (x edgeIndex) of(node int32) []int32 { return x.from[x.first[node]:x.first[node+1]] }

func (x *explorer) violated(what string, last step) {
	if _, known := x.result.Violations[what]; !known {
		x.result.Violations[what] = x.trace(last)
	}
}

// trace is the way to the state at the cursor, and one more step.
func (x *explorer) trace(last step) (t Trace) {
	var way []node
	for at := x.cursor; at >= 0; at = x.visited[at].parent {
		way = append(way, x.visited[at])
	}
	mirror := false
	for _, n := range slices.Backward(way) {
		t = append(t, n.step.seenIn(mirror).String())
		mirror = mirror != n.mirror
	}
	return append(t, last.seenIn(mirror).String())
}

// seenIn names the process of a step as it was named at the start.
func (s step) seenIn(mirror bool) step {
	if mirror && s.who != nobody {
		s.who += 1 - 2*(s.who%2) // process is even
	}
	return s
}

// atRest says that the email has ended, or waits for a person, with nothing
// under way. Evidence may still come.
func (x *explorer) atRest(s *state) bool {
	for i, r := range s.runs {
		if r.at != idle || i < maxAttempts && s.attempts[i].orphans > 0 {
			return false
		}
	}
	if s.email.status.ended() {
		return true
	}
	if x.policy != Hold || s.email.status != doubtful {
		return false
	}
	a := s.attempts[s.email.attempts-1]
	replays := x.kind.honoursKeys() && !a.forgotten
	searchSettles := x.kind.searchIsComplete() && (a.accepted > 0 || a.owner == gone)
	return a.waited && !replays && !searchSettles
}

func outcomeOf(s *state) Outcome {
	return Outcome{Accepted: s.accepted(), Status: s.email.status.String(), Flagged: s.email.flagged}
}

func (s *state) accepted() int {
	n := 0
	for _, a := range s.attempts {
		n += int(a.accepted)
	}
	return n
}
