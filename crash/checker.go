package main

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict is what the checker says about a history.
type Verdict string

// The verdicts. Invalid is not green: the fault did not hit, so nothing was
// shown.
const (
	Green   Verdict = "green"
	Red     Verdict = "RED"
	Invalid Verdict = "INVALID"
)

// rules are the invariants by the names that package outbox gives them. Each
// returns what is wrong, or nothing.
var rules = []struct {
	name  string
	check func(*History) string
}{
	{"I1 no loss", checkNoLoss},
	{"I2 no phantom", checkNoPhantom},
	{"I3 contract", checkContract},
	{"I4 truth", checkTruth},
	{"I4 flag", checkFlag},
	{"I5 attempts", checkAttempts},
	{"I7 recorded first", checkRecordedFirst},
	{"I8 same bytes", checkSameBytes},
	{"I11 residue", checkResidue},
	{"events once", checkEvents},
	{"no leak", checkLeaks},
}

// Judge returns the verdict and all that is wrong.
func Judge(h *History) (Verdict, []string) {
	if !h.Reached {
		return Invalid, []string{"the fault did not hit"}
	}
	var wrong []string
	for _, r := range rules {
		if text := r.check(h); text != "" {
			wrong = append(wrong, r.name+": "+text)
		}
	}
	if len(wrong) > 0 {
		return Red, wrong
	}
	return Green, nil
}

func checkNoLoss(h *History) string {
	ended := slices.Contains([]string{"sent", "failed"}, h.Email.Status) ||
		(h.Email.Status == "unknown" && h.Cell.Policy == Hold)
	if !h.Settled || !ended {
		return "the email stayed " + h.Email.Status
	}
	return ""
}

// checkNoPhantom: each cell has a database and a provider of its own, so
// whatever a provider got must be an attempt of the one email.
func checkNoPhantom(h *History) string {
	for _, a := range h.Accepted {
		if !h.knows(a.Key) {
			return fmt.Sprintf("accepted under key %s, which no attempt has", a.Key)
		}
	}
	return ""
}

func (h *History) knows(key string) bool {
	return slices.ContainsFunc(h.Attempts, func(a Attempt) bool { return a.Key == key })
}

func checkContract(h *History) string {
	row := RowOf(h.Cell)
	if row == nil {
		return "the contract has no row for this cell"
	}
	allowed := row.Promise[h.Cell.Policy]
	if !slices.Contains(allowed, h.Outcome()) {
		return fmt.Sprintf("%q, but %q allows %q", h.Outcome(), row.Name, strings.Join(allowed, "; "))
	}
	return ""
}

func checkTruth(h *History) string {
	switch e := h.Email; {
	case e.Status == "sent" && len(h.Accepted) == 0:
		return "sent, and nothing was accepted"
	case e.Status == "failed" && e.Reason != "outcome_unknown" && len(h.Accepted) > 0:
		return "failed for a reason that says not accepted, and it was"
	}
	return ""
}

// checkFlag: possible_duplicate exactly when a resend followed a doubt.
func checkFlag(h *History) string {
	doubt, resent := false, false
	for _, a := range h.Attempts {
		resent = resent || doubt
		if a.Flagged != doubt {
			return fmt.Sprintf("attempt %d: flagged %v after a doubt %v", a.Number, a.Flagged, doubt)
		}
		doubt = doubt || a.Unknown
	}
	if h.Email.Flagged != resent {
		return fmt.Sprintf("the email is flagged %v, resent after a doubt %v", h.Email.Flagged, resent)
	}
	if len(h.Accepted) > 1 && !h.Email.Flagged {
		return "two were accepted without a flag"
	}
	return ""
}

// checkEvents: what a provider reports is kept, each event once.
func checkEvents(h *History) string {
	want := 0
	if h.Cell.At == Reported {
		want = len(reports)
	}
	if h.Events != want {
		return fmt.Sprintf("%d events are kept, of %d", h.Events, want)
	}
	return ""
}

func checkLeaks(h *History) string { return strings.Join(h.Leaks, "\n") }

func checkAttempts(h *History) string {
	if h.Email.Attempts != len(h.Attempts) {
		return fmt.Sprintf("the email counts %d attempts, there are %d", h.Email.Attempts, len(h.Attempts))
	}
	for i, a := range h.Attempts {
		if a.Number != i+1 {
			return fmt.Sprintf("attempt %d comes after %d", a.Number, i)
		}
	}
	return ""
}

func checkRecordedFirst(h *History) string {
	for i, r := range h.Requests {
		if (r.Recorded != nil && !*r.Recorded) || !h.knows(r.Key) {
			return fmt.Sprintf("request %d had no attempt when it came", i+1)
		}
	}
	return ""
}

// checkSameBytes compares all bytes under a key with each other, and those of
// HTTP with what the attempt says.
func checkSameBytes(h *History) string {
	seen := map[string]string{}
	compare := func(key, sum string) string {
		if before, ok := seen[key]; ok && before != sum {
			return "other bytes under key " + key
		}
		seen[key] = sum
		return ""
	}
	if h.Cell.Kind != SMTP {
		for _, a := range h.Attempts {
			seen[a.Key] = a.SHA256
		}
	}
	for _, r := range h.Requests {
		if r.SHA256 == "" {
			continue
		}
		if text := compare(r.Key, r.SHA256); text != "" {
			return text
		}
	}
	for _, a := range h.Accepted {
		if text := compare(a.Key, a.SHA256); text != "" {
			return text
		}
	}
	return ""
}

func checkResidue(h *History) string {
	r := h.Residue
	if h.Email.Status == "unknown" {
		r.OpenAttempts-- // the doubt itself
	}
	switch {
	case !h.Drained:
		return "a process did not end when asked to"
	case r != Residue{}:
		return fmt.Sprintf("left after the drain: %+v", r)
	}
	return ""
}
