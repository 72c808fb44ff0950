package outbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// paced gives a turn every so often.
func paced(every time.Duration) func(context.Context, int) ([]time.Time, error) {
	var last time.Time
	return func(context.Context, int) ([]time.Time, error) {
		last = last.Add(every)
		if now := time.Now(); last.Before(now) {
			last = now
		}
		return []time.Time{last}, nil
	}
}

// Turns are for the first lane first, and in each in the order of arrival.
func TestLimiterOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const every = 10 * time.Millisecond
		l := &limiter{slots: paced(every)}
		var mu sync.Mutex
		var got []string
		var wg sync.WaitGroup
		start := time.Now()
		join := func(name string, lane int) {
			wg.Go(func() {
				if wait, err := l.wait(t.Context(), lane, every); wait != 0 || err != nil {
					t.Errorf("%s: %v, %v", name, wait, err)
				}
				mu.Lock()
				defer mu.Unlock()
				got = append(got, name)
			})
			synctest.Wait()
		}
		join("first", 4) // gets its turn at once
		for _, name := range []string{"flood 1", "flood 2", "flood 3"} {
			join(name, 4)
		}
		join("normal", 2)
		join("high", 1)
		wg.Wait()
		if want := []string{"first", "high", "normal", "flood 1", "flood 2", "flood 3"}; !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
		if took := time.Since(start); took != 5*every {
			t.Errorf("six turns in %v, want %v", took, 5*every)
		}
		synctest.Wait()
		if l.running {
			t.Error("it runs on with nobody in line")
		}
	})
}

// Who would wait for more than a second goes away, each for a turn longer than
// the one before, and never for more than minutes. A better lane need not.
func TestLimiterSendsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const every = 100 * time.Millisecond
		l := &limiter{slots: paced(every)}
		var wg sync.WaitGroup
		var mu sync.Mutex
		var away []time.Duration
		for range 20 {
			wg.Go(func() {
				wait, err := l.wait(t.Context(), 4, every)
				if err != nil {
					t.Error(err)
				}
				if wait > 0 {
					mu.Lock()
					defer mu.Unlock()
					away = append(away, wait)
				}
			})
			synctest.Wait()
		}
		if wait, err := l.wait(t.Context(), 2, every); wait != 0 || err != nil {
			t.Errorf("the better lane was sent away: %v, %v", wait, err)
		}
		wg.Wait()
		if len(away) < 8 || !slices.IsSorted(away) || away[0] < maxQueueing || away[len(away)-1]-away[0] != time.Duration(len(away)-1)*every {
			t.Errorf("sent away for %v", away)
		}
		for range 10_000 {
			if wait := l.comeBack(time.Now(), every); wait > maxPostponed {
				t.Fatalf("sent away for %v", wait)
			}
		}
	})
}

// Without turns, nobody waits for ever; a context that ends is heard.
func TestLimiterWithoutTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("database is away")
		l := &limiter{slots: func(context.Context, int) ([]time.Time, error) { return nil, away }}
		if wait, err := l.wait(t.Context(), 2, time.Millisecond); wait <= 0 || err != nil {
			t.Errorf("wait %v, error %v", wait, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		if _, err := l.wait(ctx, 2, time.Millisecond); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		<-time.After(time.Second) // fake time
		synctest.Wait()
		if l.running {
			t.Error("it runs on with nobody in line")
		}
	})
}

// After a recovery the rate rises from a few a second and is free in the end.
func TestRamp(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, test := range []struct {
		ago  time.Duration
		want time.Duration
	}{
		{0, 100 * time.Millisecond},
		{time.Second, 50 * time.Millisecond},
		{4 * time.Second, 6250 * time.Microsecond},
		{time.Minute, 0},
	} {
		s := &gateState{recoveredAt: now.Add(-test.ago)}
		if got := s.ramp(now); got != test.want {
			t.Errorf("after %v one each %v, want %v", test.ago, got, test.want)
		}
	}
	if got := new(gateState).ramp(now); got != 0 {
		t.Errorf("never out: one each %v", got)
	}
}
