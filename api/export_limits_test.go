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

// KeyAlphabet is what ids and secrets of API keys are made of.
const KeyAlphabet = keyAlphabet

// SplitKey reads an API key.
func SplitKey(token string) (id, secret string, ok bool) { return splitKey(token) }

// IsDeep reports whether JSON is nested too deep.
func IsDeep(body []byte) bool { return isDeep(body) }

// DecodeBatch decodes the body of POST /emails/batch and returns how many emails
// it has and which are refused.
func DecodeBatch(body []byte) (messages int, refused map[int]bool, err error) {
	s, err := decodeBatch(body, &apiKey{})
	refused = map[int]bool{}
	for i := range s.Refused {
		refused[i] = true
	}
	return len(s.Messages), refused, err
}
