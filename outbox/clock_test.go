package outbox

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestClockIsTheDatabases(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ off, want time.Duration }{
		"the same":              {0, 0},
		"jitter of the network": {400 * time.Millisecond, 0},
		"ours is behind":        {10 * time.Minute, 10 * time.Minute},
		"ours is ahead":         {-10 * time.Minute, -10 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			var c clock
			asked := time.Now()
			c.set(asked.Add(test.off).Round(0), asked)
			if got := time.Until(c.Now()); got != test.want {
				t.Errorf("%s: off by %v, want %v", name, got, test.want)
			}
			// What is set off once is put right when the clocks agree again.
			c.set(time.Now().Round(0), time.Now())
			if got := c.ahead.Load(); got != 0 {
				t.Errorf("%s: still off by %v", name, time.Duration(got))
			}
		})
	}
}
