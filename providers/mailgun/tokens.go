package mailgun

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// maxTokens bounds the tokens that are remembered, to about 20 MB. When there
// are more within their time, the oldest are forgotten.
const maxTokens = 100_000

// tokens remembers with which body a token came.
type tokens struct {
	mu     sync.Mutex
	bodies map[string]body
	// order is a ring of the tokens, the oldest at next once there are limit.
	order []string
	next  int
	limit int
}

type body struct {
	sum  [sha256.Size]byte
	seen time.Time
}

func newTokens(limit int) *tokens {
	return &tokens{bodies: map[string]body{}, limit: limit}
}

// see reports false for a token that came with another body while its timestamp
// is accepted. The same body may come again: that is a retry.
func (t *tokens) see(token string, sum [sha256.Size]byte, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	// A timestamp is accepted from one window before now to one after.
	if b, ok := t.bodies[token]; ok && now.Sub(b.seen) <= 2*providers.HookWindow {
		return b.sum == sum
	}
	if _, ok := t.bodies[token]; !ok {
		t.remember(token)
	}
	t.bodies[token] = body{sum, now}
	return true
}

func (t *tokens) remember(token string) {
	if len(t.order) < t.limit {
		t.order = append(t.order, token)
		return
	}
	delete(t.bodies, t.order[t.next])
	t.order[t.next] = token
	t.next = (t.next + 1) % len(t.order)
}
