package api

import "time"

// Buckets limit many names.
type Buckets struct{ *buckets }

// NewBuckets returns full buckets.
func NewBuckets(rate Rate) Buckets { return Buckets{newBuckets(rate)} }

// Take takes a token.
func (b Buckets) Take(name string, now time.Time) (time.Duration, bool) { return b.take(name, now) }

// Charge takes tokens that need not be there.
func (b Buckets) Charge(name string, n int, now time.Time) { b.charge(name, n, now) }

// State returns the tokens left.
func (b Buckets) State(name string, now time.Time) (int, time.Duration) { return b.state(name, now) }

// Held is how many buckets are kept.
func (b Buckets) Held() int { return len(b.fullAt) }

// The limits that tests go up to.
const (
	FreeBody    = freeBody
	HookMemory  = hookMemory
	MaxHookBody = maxHookBody
	BodyGrace   = bodyGrace
	BodyRate    = bodyRate
	MaxDepth    = maxDepth
	MaxElements = maxElements
)

// GuessRate is how often a process looks for API keys that it does not know.
var GuessRate = guessRate
