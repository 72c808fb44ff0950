package model

import "strconv"

// Mutant is a rule of the protocol that does not hold.
type Mutant int

// The mutants.
const (
	// KeyPerTakeOver replays under a new key.
	KeyPerTakeOver Mutant = iota
	// NoOwnerFence lets a former owner's "not accepted" count.
	NoOwnerFence
	// BeginAfterSend records an attempt with its outcome.
	BeginAfterSend
	// DefiniteWithoutProof takes a 503 for "not accepted".
	DefiniteWithoutProof
	// FailoverInDoubt moves on to another provider.
	FailoverInDoubt
	// ReplayPastWindow replays whatever the attempt's age.
	ReplayPastWindow
	// NotFoundWhilePaused takes "not found" for proof though the owner lives.
	NotFoundWhilePaused
	// SweepTakesThePaused takes jobs from live owners and sends afresh.
	SweepTakesThePaused
	// NoDeadline lets the last look pass after the deadline.
	NoDeadline
	// NoFlag does not mark a resend after a doubt.
	NoFlag
	// ReplayRefusalCounts closes an attempt because its replay was refused.
	ReplayRefusalCounts
	// NoSettle ignores an "accepted" for a closed attempt.
	NoSettle
	// FenceAccepted ignores an "accepted" of a former owner.
	FenceAccepted
	// SentCanBeUndone lets the outcome of one attempt overwrite that another
	// was accepted.
	SentCanBeUndone

	// NotFoundAtOnce takes "not found" for proof before the deadline, when a
	// request may still be on its way.
	NotFoundAtOnce
	// WindowAsOfLoad decides about a replay by the time when the email was
	// loaded.
	WindowAsOfLoad
	// UnderWayOnlyIfOwned asks whether this process is sending the attempt
	// only while the attempt carries its id.
	UnderWayOnlyIfOwned
	// RefusalHidesDoubt shows a refused resend as failed, though the attempt
	// before it may have been accepted.
	RefusalHidesDoubt
	// LateAcceptedOfLastOnly shows a late "accepted" only if no attempt has
	// begun since.
	LateAcceptedOfLastOnly

	mutants = iota
)

func (m Mutant) String() string {
	names := [mutants]string{
		"new key per take-over", "Finish without fence by owner", "Begin after Send", "503 as definite",
		"failover in doubt", "replay past the window", `"not found" is proof while the owner lives`,
		"sweep takes jobs of paused workers", "no deadline in the last look", "resend without flag",
		"refusal of a replay counts", `late "accepted" is ignored`, `"accepted" is fenced by owner too`,
		"sent can be undone", `"not found" is proof at once`, "window judged as of load",
		"under way only if owned", "refusal hides a doubt", `late "accepted" only of the last attempt`,
	}
	if m < 0 || m >= mutants {
		return "mutant " + strconv.Itoa(int(m))
	}
	return names[m]
}

// Assumption is what the protocol needs of the world and cannot enforce.
type Assumption int

// The assumptions.
const (
	// PromptProvider: what has reached a provider whose search is complete is
	// accepted or lost by the attempt's deadline and margin.
	PromptProvider Assumption = iota
	// ShortGap: from the last look to the provider's decision no request is
	// held up until the key window ends; and where a search is to be proof, no
	// process stands still there beyond the attempt's deadline and margin and
	// is also killed or loses its session.
	ShortGap

	assumptions = iota
)

func (a Assumption) String() string {
	return [...]string{"the provider is prompt", "the gap after the last look is short"}[a]
}
