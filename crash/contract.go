package main

import "slices"

// The contract: section 7 of the design, as data. An outcome is written as
// [History.Outcome] shows it. What is listed may happen, and nothing else. The
// first row that fits a cell is the one that counts.

// Class is where a boundary lies with respect to the doubt.
type Class string

// The classes of boundaries.
const (
	BeforeBegin  Class = "before Begin"  // B0 to B2: no attempt is recorded
	BeforeOffer  Class = "before offer"  // B3, B4: the provider cannot have accepted
	HalfOffered  Class = "half offered"  // B5: neither can it; the sockets may hold the other half
	InWindow     Class = "in the window" // B6: the provider decides
	AfterAccept  Class = "accepted"      // B7, B8: the provider has accepted, nothing is recorded
	AfterRecords Class = "recorded"      // B9, B10
	Reports      Class = "reported"      // B11: the provider has accepted, and says so by its events
)

func (c Cell) class() Class {
	switch c.At {
	case NotFetched, Fetched, Loaded:
		return BeforeBegin
	case BeginLost, Begun:
		return BeforeOffer
	case HalfWritten:
		return HalfOffered
	case Written:
		return InWindow
	case Accepted, Replied:
		return AfterAccept
	case Reported:
		return Reports
	}
	return AfterRecords
}

// Promise is the outcomes that a sender has to reckon with, by policy.
type Promise map[Policy][]string

// Row is one line of the contract. A list that is empty fits all.
type Row struct {
	Name    string
	Kinds   []Kind
	Classes []Class
	Faults  []Fault
	Promise Promise
}

const (
	once      = "1 accepted, sent"
	onceMaybe = "1 accepted, sent, flagged"
	twice     = "2 accepted, sent, flagged"
	refused   = "0 accepted, failed(rejected)"
	lost      = "0 accepted, failed(outcome_unknown)"
	dropped   = "1 accepted, failed(outcome_unknown)"
	heldBack  = "0 accepted, unknown"
	held      = "1 accepted, unknown"
)

var (
	exactlyOne = always(once)

	// nothingSent: the provider cannot have it, and nobody can know.
	nothingSent = Promise{Retry: {onceMaybe}, Hold: {heldBack}, Drop: {lost}}
	// refusedToSend is what a worker says when it wakes after its deadline; the
	// policies other than hold have decided by then.
	refusedToSend = Promise{Retry: {onceMaybe}, Hold: {once}, Drop: {lost}}
	// allSent: the provider has it, and nobody can know.
	allSent = Promise{Retry: {twice}, Hold: {held}, Drop: {dropped}}
	// twoGenerals is the limit without help from the provider: maybe none, or
	// maybe two.
	twoGenerals = Promise{
		Retry: {once, onceMaybe, twice}, Hold: {once, heldBack, held}, Drop: {once, lost, dropped},
	}
)

func always(outcomes ...string) Promise {
	return Promise{Retry: outcomes, Hold: outcomes, Drop: outcomes}
}

var (
	dies     = []Fault{Kill, Restart, Ahead, Behind}
	forgets  = slices.Concat(dies, []Fault{Panic})
	survives = []Fault{Term, Panic, Terminate, Crash}
	refusals = []Fault{"400", "554"}
	deferred = []Fault{"429", "451"}
	noHelp   = []Kind{Plain, SMTP}
)

// Contract is the table.
var Contract = []Row{
	{Name: "refused for good", Faults: refusals, Promise: always(refused)},
	{Name: "refused for now", Faults: deferred, Promise: exactlyOne},
	{Name: "before Begin, every kind", Classes: []Class{BeforeBegin}, Promise: exactlyOne},
	{Name: "recorded, every kind", Classes: []Class{AfterRecords}, Promise: exactlyOne},
	{Name: "events before the policy decides", Classes: []Class{Reports}, Faults: []Fault{Early, Copies}, Promise: exactlyOne},
	{
		Name: "no help, events after the policy has decided", Kinds: noHelp, Classes: []Class{Reports},
		Promise: Promise{Retry: {twice}, Hold: {once}, Drop: {once}},
	},
	{Name: "native key, inside its window", Kinds: []Kind{Key}, Promise: exactlyOne},
	{
		Name: "search, no lag, owner dead", Kinds: []Kind{Search}, Faults: dies,
		Classes: []Class{BeforeOffer, HalfOffered, AfterAccept}, Promise: exactlyOne,
	},
	{
		Name: "search, no lag, accepted: it is found", Kinds: []Kind{Search},
		Classes: []Class{AfterAccept}, Promise: exactlyOne,
	},
	{Name: "search, no lag, otherwise", Kinds: []Kind{Search}, Promise: twoGenerals},
	{
		Name: "no help, owner dead or panicked, nothing offered", Kinds: noHelp, Faults: forgets,
		Classes: []Class{BeforeOffer, HalfOffered}, Promise: nothingSent,
	},
	{
		Name: "no help, owner dead or panicked, accepted", Kinds: noHelp, Faults: forgets,
		Classes: []Class{AfterAccept}, Promise: allSent,
	},
	{
		Name: "no help, owner paused, nothing offered", Kinds: noHelp, Faults: []Fault{Pause},
		Classes: []Class{BeforeOffer}, Promise: refusedToSend,
	},
	{Name: "no help, otherwise", Kinds: noHelp, Promise: twoGenerals},
	{Name: "search with lag", Kinds: []Kind{LagSearch}, Promise: twoGenerals},
}

// RowOf returns the row that counts for a cell, or nil.
func RowOf(c Cell) *Row {
	for i := range Contract {
		r := &Contract[i]
		if fitsList(r.Kinds, c.Kind) && fitsList(r.Classes, c.class()) && fitsList(r.Faults, c.Fault) {
			return r
		}
	}
	return nil
}

func fitsList[T comparable](list []T, item T) bool {
	return len(list) == 0 || slices.Contains(list, item)
}
