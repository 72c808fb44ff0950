package outbox

import (
	"sync/atomic"
	"time"
)

// clock is the database's clock, as a worker reads it. River takes the times of
// jobs from the clock of its process, and compares them with the database's: a
// worker whose clock is ten minutes ahead would let a job that is to be looked
// at in a second lie for ten minutes.
type clock struct {
	// ahead is by how much the database's clock is ahead of this process's.
	ahead atomic.Int64
}

// clockTolerance is by how much clocks may differ before it matters. Below it
// nothing is put right, so that the jitter of the network does not show.
const clockTolerance = 500 * time.Millisecond

// Now is part of River's time generator. Durations stay what they are: the
// reading of the monotonic clock is kept.
func (c *clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// NowOrNil is part of River's time generator. With nil, River leaves times in
// its statements to the database.
func (c *clock) NowOrNil() *time.Time { return nil }

// set notes what the database's clock said to a question that was asked at a
// time of this process's.
func (c *clock) set(theirs, asked time.Time) {
	// In the middle of the round trip, as far as one can tell. Round strips the
	// monotonic reading: wall clocks are compared here.
	ours := asked.Add(time.Since(asked) / 2).Round(0)
	ahead := theirs.Sub(ours)
	if ahead.Abs() < clockTolerance {
		ahead = 0
	}
	c.ahead.Store(int64(ahead))
}
