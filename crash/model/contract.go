package model

// The contract: section 7 of the design, as data. Outcomes are written as
// [Outcome.String] shows them. What is listed can happen, and nothing else
// can.

// Promise is what a sender may count on.
type Promise struct {
	Drop, Hold, Retry []string
}

// Of returns the outcomes under a policy.
func (p Promise) Of(policy Policy) []string {
	return [...][]string{Retry: p.Retry, Hold: p.Hold, Drop: p.Drop}[policy]
}

// Row is one line of the table.
type Row struct {
	Name   string
	Kinds  []Kind
	Faults Faults
	// Max is how many of them may happen in one history.
	Max int
	// At, if not empty, is the one boundary where they hit.
	At      place
	Promise Promise
}

var (
	exactlyOne = Promise{
		Drop:  []string{"1 accepted, sent"},
		Hold:  []string{"1 accepted, sent"},
		Retry: []string{"1 accepted, sent"},
	}

	// twoGenerals is the limit without help from the provider: either maybe
	// none, or maybe two.
	twoGenerals = Promise{
		Drop:  []string{"0 accepted, failed(outcome_unknown)", "1 accepted, failed(outcome_unknown)", "1 accepted, sent"},
		Hold:  []string{"0 accepted, unknown", "1 accepted, sent", "1 accepted, unknown"},
		Retry: []string{"1 accepted, sent", "1 accepted, sent, flagged", "2 accepted, sent, flagged"},
	}
)

// Contract is the table of section 7.
var Contract = []Row{
	{Name: "native key, inside its window", Kinds: []Kind{Keys}, Faults: AnyFault, Max: 2, Promise: exactlyOne},
	{Name: "native key, window over", Kinds: []Kind{KeysForAWhile}, Faults: AnyFault, Max: 2, Promise: twoGenerals},
	{Name: "search, no lag, owner dead", Kinds: []Kind{SearchAtOnce}, Faults: Crash, Max: 2, Promise: exactlyOne},
	{Name: "search, no lag, owner may live", Kinds: []Kind{SearchAtOnce}, Faults: AnyFault, Max: 2, Promise: Promise{
		Drop: twoGenerals.Drop,
		// A mail that is there is found, however long that takes.
		Hold:  []string{"0 accepted, unknown", "1 accepted, sent"},
		Retry: twoGenerals.Retry,
	}},
	{Name: "search with lag", Kinds: []Kind{SearchWithLag}, Faults: AnyFault, Max: 2, Promise: twoGenerals},
	{Name: "no key, no search; SMTP after the dot", Kinds: []Kind{Neither}, Faults: AnyFault, Max: 2, Promise: twoGenerals},
	{
		Name: "crash or pause at B0 to B2", Kinds: []Kind{Keys, KeysForAWhile, SearchAtOnce, SearchWithLag, Neither},
		Faults: Crash | Pause, Max: 1, At: loaded, Promise: exactlyOne,
	},
}

// Boundaries takes the last line of the table apart, by where a worker is
// killed. It shows where the window of doubt opens and where it closes: the
// worst is a crash after the last byte, when even the truth is not settled.
// "1 accepted, sent" under retry is a webhook that came in time.
var Boundaries = []Row{
	{Name: "begun", Kinds: []Kind{Neither}, Faults: Crash, Max: 1, At: begun, Promise: nothingSent},
	{Name: "confirmed", Kinds: []Kind{Neither}, Faults: Crash, Max: 1, At: confirmed, Promise: nothingSent},
	{Name: "last byte out", Kinds: []Kind{Neither}, Faults: Crash, Max: 1, At: onWire, Promise: twoGenerals},
	{Name: "accepted", Kinds: []Kind{Neither}, Faults: Crash, Max: 1, At: replied, Promise: allAccepted},
	{Name: "reply read", Kinds: []Kind{Neither}, Faults: Crash, Max: 1, At: finishing, Promise: allAccepted},
}

var (
	nothingSent = Promise{
		Drop:  []string{"0 accepted, failed(outcome_unknown)"},
		Hold:  []string{"0 accepted, unknown"},
		Retry: []string{"1 accepted, sent, flagged"},
	}
	allAccepted = Promise{
		Drop:  []string{"1 accepted, failed(outcome_unknown)", "1 accepted, sent"},
		Hold:  []string{"1 accepted, sent", "1 accepted, unknown"},
		Retry: []string{"1 accepted, sent", "2 accepted, sent, flagged"},
	}
)

// Refusals are outcomes with a provider that may also refuse. A refusal that
// follows a doubt does not undo it: the reason stays outcome_unknown.
var Refusals = []Row{
	{
		Name: "native key, inside its window", Kinds: []Kind{Keys}, Faults: AnyFault | Refuse, Max: 2,
		Promise: refusable(exactlyOne),
	},
	{
		Name: "no key, no search", Kinds: []Kind{Neither}, Faults: AnyFault | Refuse, Max: 2,
		Promise: refusable(twoGenerals, "0 accepted, failed(outcome_unknown), flagged", "1 accepted, failed(outcome_unknown), flagged"),
	},
}

func refusable(p Promise, retry ...string) Promise {
	refused := []string{"0 accepted, failed"}
	return Promise{
		Drop:  append(refused, p.Drop...),
		Hold:  append(refused, p.Hold...),
		Retry: append(append(refused, p.Retry...), retry...),
	}
}
