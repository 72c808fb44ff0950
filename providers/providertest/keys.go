package providertest

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"
)

// KeyRules is how a service treats idempotency keys. A key is used when a
// message is accepted under it. For the length of the window the service then
// answers the same body as it did the first time, and accepts nothing.
//
// What a script adds to the answer is outside of this: after
// Accept().Then(Reset()), Accept().Then(Hang()) or Accept().Then(Reply(500, ""))
// the reply was lost on its way or spoilt by somebody else, and the next
// request with the key gets it. [Reaction.When] and [Reaction.Late], in
// contrast, make the service itself slow: until its answer is due, the key is
// being processed.
type KeyRules struct {
	// Header carries the key. A request without it is not protected.
	Header string
	// Window is how long a key is remembered, see [HTTP.SetKeyWindow].
	Window time.Duration
	// OtherBody answers a request with a used key and another body.
	OtherBody Reaction
	// Concurrent answers a request with a key that is being processed.
	Concurrent Reaction
}

// Replay is a request that got the reply to an earlier one.
type Replay struct {
	// Request is its number, see [Seen].
	Request int
	// Reference is the attempt's key.
	Reference string
	// ID is that of the accepted message.
	ID string
}

// SetKeyWindow makes the provider remember idempotency keys for d instead of
// what its dialect says, those that were used before included: with zero, all
// are forgotten.
func (p *HTTP) SetKeyWindow(d time.Duration) {
	for _, s := range p.services {
		s.keys.setWindow(d)
	}
}

// Replays returns the requests that got the reply to an earlier one, in their
// order.
func (p *HTTP) Replays() []Replay {
	var all []Replay
	for _, s := range p.services {
		all = append(all, s.keys.replayed()...)
	}
	slices.SortFunc(all, func(a, b Replay) int { return a.Request - b.Request })
	return all
}

// keys is a service's memory of idempotency keys.
type keys struct {
	rules KeyRules

	mu      sync.Mutex
	window  time.Duration
	used    map[string]*keyUse
	replays []Replay
}

type keyUse struct {
	body       [sha256.Size]byte
	at         time.Time
	id         string
	processing bool
}

func newKeys(rules KeyRules) *keys {
	return &keys{rules: rules, window: rules.Window, used: map[string]*keyUse{}}
}

func (k *keys) setWindow(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.window = d
}

func (k *keys) replayed() []Replay {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.replays)
}

// forget drops all keys and replays.
func (k *keys) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used, k.replays = map[string]*keyUse{}, nil
}

// admit calls accept for a request whose key is new, and returns the id of the
// message that was accepted under its key, now or before. For a new key it also
// returns the function that ends the processing. A refusal is returned for a
// key that is taken.
func (k *keys) admit(r Seen, accept func() (id string)) (id string, processed func(), refusal *Reaction) {
	name := ""
	if k.rules.Header != "" {
		name = r.Header.Get(k.rules.Header)
	}
	if name == "" {
		return accept(), nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	body := sha256.Sum256(r.Body)
	if use := k.used[name]; use != nil && time.Since(use.at) < k.window {
		switch {
		case use.body != body:
			return "", nil, &k.rules.OtherBody
		case use.processing:
			return "", nil, &k.rules.Concurrent
		}
		k.replays = append(k.replays, Replay{Request: r.Number, Reference: r.Reference, ID: use.id})
		return use.id, nil, nil
	}
	use := &keyUse{body: body, at: time.Now(), processing: true}
	use.id = accept()
	k.used[name] = use
	return use.id, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		use.processing = false
	}, nil
}
