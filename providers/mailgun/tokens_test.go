package mailgun

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// The memory is bounded: the oldest tokens are forgotten first.
func TestTokensAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	one, other := sha256.Sum256([]byte("one")), sha256.Sum256([]byte("other"))
	known := newTokens(3)
	for _, token := range []string{"a", "b", "c", "a", "d", "e"} {
		if !known.see(token, one, now) {
			t.Errorf("%s is refused", token)
		}
	}
	if len(known.bodies) != 3 || len(known.order) != 3 {
		t.Errorf("%d bodies and %d tokens, want 3", len(known.bodies), len(known.order))
	}
	for _, token := range []string{"c", "d", "e"} {
		if known.see(token, other, now) {
			t.Errorf("%s is forgotten", token)
		}
	}
	if !known.see("a", other, now) {
		t.Error("the oldest is not forgotten")
	}
	if !known.see("e", other, now.Add(2*providers.HookWindow+time.Second)) {
		t.Error("remembered for longer than its timestamp can be accepted")
	}
}
