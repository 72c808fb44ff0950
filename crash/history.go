package main

import (
	"fmt"
	"time"
)

// History is what is known about a cell when it is over: what the harness did,
// what the provider saw, and what the database holds.
type History struct {
	Cell Cell
	// Reached says that the fault hit at its boundary.
	Reached bool
	// Settled says that the email came to its end in bounded time.
	Settled bool
	// Drained says that all processes ended when asked to.
	Drained bool

	Requests []Request
	Accepted []Acceptance
	Email    Email
	Attempts []Attempt
	// Events is how many events are kept.
	Events  int
	Residue Residue
	// Leaks are where content of the email is that nobody should see.
	Leaks []string
	Took  time.Duration
}

// Request is a complete hand-over that reached the provider.
type Request struct {
	Key string
	// SHA256 of the body; empty where the protocol does not show it.
	SHA256 string
	// Recorded says whether the attempt was committed at that moment; nil: the
	// database was away and could not be asked.
	Recorded *bool
}

// Acceptance is a message for which the provider took responsibility, as the
// log on disk has it.
type Acceptance struct {
	Cell   string `json:"cell"`
	Key    string `json:"key"`
	SHA256 string `json:"sha256"`
}

// Email is its row.
type Email struct {
	ID       string
	Status   string
	Reason   string
	Flagged  bool
	Attempts int
}

// Attempt is a row of the attempts, by number.
type Attempt struct {
	Number  int
	Key     string
	Stage   string
	SHA256  string
	Flagged bool
	// Unknown says that the attempt was closed without knowledge at some time,
	// also where evidence has settled it since.
	Unknown bool
}

// Residue is what must not be left after a drain.
type Residue struct {
	RunningJobs, IdleTransactions, AdvisoryLocks, OpenAttempts int
}

// Outcome is the history in the words of the contract.
func (h *History) Outcome() string {
	text := fmt.Sprintf("%d accepted, %s", len(h.Accepted), h.Email.Status)
	if h.Email.Status == "failed" {
		text += "(" + h.Email.Reason + ")"
	}
	if h.Email.Flagged {
		text += ", flagged"
	}
	return text
}
