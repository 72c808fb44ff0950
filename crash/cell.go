package main

import (
	"fmt"
	"slices"
	"strings"
)

// Boundary is a place between two steps of a delivery; the names are those of
// the design.
type Boundary string

// The boundaries, in the order of a delivery.
const (
	NotFetched  Boundary = "B0"  // committed, not fetched
	Fetched     Boundary = "B1"  // the worker has the job
	Loaded      Boundary = "B2"  // before the commit of Begin
	BeginLost   Boundary = "B3"  // Begin is committed, the reply not read
	Begun       Boundary = "B4"  // nothing is written to the provider
	HalfWritten Boundary = "B5"  // the provider has half of the body
	Written     Boundary = "B6"  // the provider has it all, and has not accepted
	Accepted    Boundary = "B7"  // the provider has accepted, the reply is not read
	Replied     Boundary = "B8"  // the reply is read, Finish not sent
	FinishLost  Boundary = "B9"  // Finish is committed, the reply not read
	Finished    Boundary = "B10" // the job is not completed
	Reported    Boundary = "B11" // the provider reports events about what it has accepted
)

// Boundaries lists them all.
var Boundaries = []Boundary{
	NotFetched, Fetched, Loaded, BeginLost, Begun, HalfWritten, Written, Accepted, Replied, FinishLost, Finished, Reported,
}

// Fault is what happens at a boundary.
type Fault string

// The faults of processes and databases hit at any boundary.
const (
	Kill      Fault = "sigkill"   // a second worker takes over
	Restart   Fault = "restart"   // the only worker is killed, then a new one starts
	Pause     Fault = "sigstop"   // a second worker takes over, then the first wakes
	Term      Fault = "sigterm"   // an orderly stop, with a short grace
	Panic     Fault = "panic"     // of the job, at a fault point
	Terminate Fault = "terminate" // all database sessions of the worker end
	Crash     Fault = "pgcrash"   // Postgres is killed and started again
	Partition Fault = "partition" // the worker and the database part, and are healed later
	Ahead     Fault = "ahead"     // sigkill, with the clocks of all workers ten minutes ahead
	Behind    Fault = "behind"    // the same, ten minutes behind
)

// The faults of providers: what the worker is told at B6, where nothing is
// accepted, or at B7, where the message is.
const (
	Timeout Fault = "timeout"
	Reset   Fault = "reset"
)

// What providers do with their reports, at B11.
const (
	Early  Fault = "early"  // they come before the worker has recorded anything, and it is killed
	Late   Fault = "late"   // the reply is lost, and they come after the policy has decided
	Copies Fault = "copies" // they come many times, shuffled and at once, before the reply
)

// providerFaults lists the faults of providers by what they speak. Numbers are
// statuses of HTTP and reply codes of SMTP.
func providerFaults(at Boundary, smtp bool) []Fault {
	switch {
	case at == Written && smtp:
		return []Fault{Timeout, Reset, "451", "554"}
	case at == Written:
		return []Fault{Timeout, Reset, "400", "409", "429", "500", "503"}
	case at == Accepted && smtp:
		return []Fault{Timeout, Reset}
	case at == Accepted:
		return []Fault{Timeout, Reset, "500", "502", "503"}
	}
	return nil
}

// Kind is what a provider offers to settle a doubt.
type Kind string

// The kinds of providers.
const (
	Key       Kind = "key"    // a native key, inside its window: the adapter resend
	Plain     Kind = "plain"  // no key and no search: the adapter sendgrid
	SMTP      Kind = "smtp"   // the same, over SMTP
	Search    Kind = "search" // no key, and a search without lag
	LagSearch Kind = "lag"    // no key, and a search with lag
)

// Kinds lists them all.
var Kinds = []Kind{Key, Plain, SMTP, Search, LagSearch}

// Policy is what the message says about a doubt that stays.
type Policy string

// The policies.
const (
	Retry Policy = "retry"
	Hold  Policy = "hold"
	Drop  Policy = "drop"
)

// Policies lists them all.
var Policies = []Policy{Retry, Hold, Drop}

// Cell is one experiment.
type Cell struct {
	At     Boundary
	Fault  Fault
	Kind   Kind
	Policy Policy
}

// String is the name by which -cells finds it.
func (c Cell) String() string {
	return fmt.Sprintf("%s/%s/%s/%s", c.At, c.Fault, c.Kind, c.Policy)
}

// byProvider reports whether the fault is what the provider does.
func (c Cell) byProvider() bool {
	return slices.Contains(providerFaults(c.At, c.Kind == SMTP), c.Fault)
}

// point reports whether the boundary is a fault point in the program.
func (c Cell) point() bool {
	return slices.Contains([]Boundary{Fetched, Loaded, Begun, Replied, Finished}, c.At)
}

// Matrix lists all cells.
func Matrix() []Cell {
	var all []Cell
	for i, at := range Boundaries {
		for j, kind := range Kinds {
			for k, fault := range faultsAt(at, kind) {
				for n, policy := range Policies {
					c := Cell{at, fault, kind, policy}
					if c.skipped(i, j) {
						continue
					}
					if c.everyPolicy() || n == (i+j+k)%len(Policies) {
						all = append(all, c)
					}
				}
			}
		}
	}
	return all
}

// skipped reports whether a cell would show nothing that others do not: a search
// is asked only about an attempt that is open, and for some faults the kinds
// take turns as well.
func (c Cell) skipped(boundary, kind int) bool {
	switch c.class() {
	case BeforeBegin, AfterRecords:
		return c.Kind == Search || c.Kind == LagSearch
	}
	return slices.Contains([]Fault{Restart, Term, Ahead, Behind}, c.Fault) && (boundary+kind)%2 == 0
}

// everyPolicy reports whether a cell is run under each policy. Where there is no
// doubt that a policy could decide, and for faults that differ from others only
// in how the process ends or comes back, the policies take turns; so they do
// where the provider helps as much as it can, or hides what it knows.
func (c Cell) everyPolicy() bool {
	if class := c.class(); class == BeforeBegin || class == AfterRecords || c.Kind == Search || c.Kind == LagSearch {
		return false
	}
	return c.At == Reported || slices.Contains([]Fault{Kill, Pause, Timeout, Reset}, c.Fault)
}

func faultsAt(at Boundary, kind Kind) []Fault {
	switch {
	case at == Reported && (kind == Plain || kind == Key):
		return []Fault{Early, Late, Copies}
	case at == Reported:
		return nil
	}
	faults := []Fault{Kill, Restart, Pause, Term, Terminate, Crash, Partition, Ahead, Behind}
	if (Cell{At: at}).point() {
		faults = append(faults, Panic)
	}
	return append(faults, providerFaults(at, kind == SMTP)...)
}

// Select returns the cells that one of the comma-separated patterns fits. Each
// of the four parts of a pattern is a name or *; missing parts fit all.
func Select(cells []Cell, patterns string) []Cell {
	if patterns == "" {
		return cells
	}
	var chosen []Cell
	for _, c := range cells {
		if slices.ContainsFunc(strings.Split(patterns, ","), c.fits) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

func (c Cell) fits(pattern string) bool {
	name := strings.Split(c.String(), "/")
	for i, part := range strings.Split(pattern, "/") {
		if i >= len(name) || (part != "*" && part != name[i]) {
			return false
		}
	}
	return true
}

// AllPairs picks few cells such that what belongs together meets: each sort of
// faults with each class of boundaries, each kind of provider and each policy;
// each kind of provider with each policy; and each boundary and each fault once.
func AllPairs(cells []Cell) []Cell {
	missing := map[[2]string]bool{}
	for _, c := range cells {
		for _, p := range c.pairs() {
			missing[p] = true
		}
	}
	var chosen []Cell
	for len(missing) > 0 {
		best, gain := Cell{}, 0
		for _, c := range cells {
			n := 0
			for _, p := range c.pairs() {
				if missing[p] {
					n++
				}
			}
			if n > gain {
				best, gain = c, n
			}
		}
		for _, p := range best.pairs() {
			delete(missing, p)
		}
		chosen = append(chosen, best)
	}
	return chosen
}

func (c Cell) pairs() [][2]string {
	class, sort, kind, policy := string(c.class()), c.sort(), string(c.Kind), string(c.Policy)
	fault := string(c.Fault)
	if c.byProvider() {
		fault = sort
	}
	return [][2]string{{class, sort}, {sort, kind}, {sort, policy}, {kind, policy}, {string(c.At)}, {fault}}
}

// sort is the sort of fault.
func (c Cell) sort() string {
	switch {
	case c.byProvider():
		return "provider"
	case slices.Contains(dies, c.Fault):
		return "dies"
	case slices.Contains(survives, c.Fault):
		return "survives"
	}
	return string(c.Fault)
}

// cheap reports whether a cell belongs into a short run: neither a pause, which
// lasts until a deadline and its margin are over, nor a server of its own, nor a
// standard library of its own.
func (c Cell) cheap() bool {
	return c.Fault != Pause && c.Fault != Crash && c.Fault != Late && clockShifts[c.Fault] == ""
}

// Short is the part of the matrix that the test suite runs: all pairs of the
// cheap faults, and some of the others.
func Short() []Cell {
	cells := Matrix()
	var cheap []Cell
	for _, c := range cells {
		if c.cheap() {
			cheap = append(cheap, c)
		}
	}
	return append(AllPairs(cheap), Select(cells,
		"B4/sigstop/plain/retry,B7/sigstop/key/retry,B6/pgcrash/key/retry,B8/pgcrash/plain/drop")...)
}
