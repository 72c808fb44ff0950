package api

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Rate is so many in a time: 1000 in a second, 600 in a minute. The zero value is
// no limit.
type Rate struct {
	Count int
	Per   time.Duration
}

// String is the rate as it is configured, such as 600/m.
func (r Rate) String() string {
	unit := map[time.Duration]string{time.Second: "s", time.Minute: "m", time.Hour: "h"}[r.Per]
	if unit == "" {
		unit = r.Per.String()
	}
	return strconv.Itoa(r.Count) + "/" + unit
}

// one is how long one token takes to come back.
func (r Rate) one() time.Duration { return r.Per / time.Duration(r.Count) }

// buckets limit how often each of many names does something, in this process
// alone: N processes let N times as much through. A bucket holds as much as the
// rate says, so that all of it can come at once, and fills as time goes by. It is
// kept as the moment when it will be full; one that is full is not kept.
type buckets struct {
	rate Rate

	mu     sync.Mutex
	fullAt map[string]time.Time
	sweep  int       // how many to hold before those that are full are looked for
	last   time.Time // the latest time that was seen
}

func newBuckets(rate Rate) *buckets { return &buckets{rate: rate, fullAt: map[string]time.Time{}} }

// take takes a token if there is one, and otherwise says how long until there is.
func (b *buckets) take(name string, now time.Time) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.latest(now)
	full := later(b.fullAt[name], now).Add(b.rate.one())
	if wait = full.Sub(now) - b.rate.Per; wait > 0 {
		return wait, false
	}
	b.put(name, full, now)
	return 0, true
}

// charge takes tokens that need not be there: what has been let in already is
// paid for by what comes next.
func (b *buckets) charge(name string, tokens int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.latest(now)
	b.put(name, later(b.fullAt[name], now).Add(time.Duration(tokens)*b.rate.one()), now)
}

// state returns how many tokens there are, and how long until the bucket is full.
func (b *buckets) state(name string, now time.Time) (left int, full time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	full = max(b.fullAt[name].Sub(now), 0)
	return int(max((b.rate.Per-full)/b.rate.one(), 0)), full
}

// latest is the time now. Whoever has waited for a processor or for the lock comes
// with an earlier one, by which others would seem to have taken what is yet to come.
func (b *buckets) latest(now time.Time) time.Time {
	b.last = later(b.last, now)
	return b.last
}

// put forgets full buckets whenever the number of buckets has doubled.
func (b *buckets) put(name string, full, now time.Time) {
	b.fullAt[name] = full
	if len(b.fullAt) <= b.sweep {
		return
	}
	for other, at := range b.fullAt {
		if !at.After(now) {
			delete(b.fullAt, other)
		}
	}
	b.sweep = max(1000, 2*len(b.fullAt))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// limits are the buckets of API keys and of orgs; nil ones do not limit. They go
// by who has proven to be it, never by an address, which a client can choose.
type limits struct {
	keys, orgs *buckets
	now        func() time.Time
}

func newLimits(key, org Rate) limits {
	l := limits{now: time.Now}
	if key.Count > 0 {
		l.keys = newBuckets(key)
	}
	if org.Count > 0 {
		l.orgs = newBuckets(org)
	}
	return l
}

// bucketOf is a bucket that a request takes from.
type bucketOf struct {
	*buckets
	name, whose string
}

func (l *limits) of(key *apiKey) []bucketOf {
	var list []bucketOf
	if l.keys != nil {
		list = append(list, bucketOf{l.keys, key.id, "with this API key"})
	}
	if l.orgs != nil {
		list = append(list, bucketOf{l.orgs, key.org.String(), "by this org"})
	}
	return list
}

// admit lets a request through or refuses it.
func (l *limits) admit(key *apiKey) error {
	now := l.now()
	for _, b := range l.of(key) {
		if wait, ok := b.take(b.name, now); !ok {
			return tooMany(b.whose, b.rate, wait)
		}
	}
	return nil
}

// charge counts the emails of a batch beyond the first, which the request was
// counted for. A batch larger than a bucket could otherwise never come.
func (l *limits) charge(key *apiKey, emails int) {
	for _, b := range l.of(key) {
		b.charge(b.name, max(emails-1, 0), l.now())
	}
}

// show tells the client where it stands, in the headers that Resend's API has: of
// the bucket with less in it.
func (l *limits) show(h http.Header, key *apiKey) {
	least := math.MaxInt
	for _, b := range l.of(key) {
		left, full := b.state(b.name, l.now())
		if left >= least {
			continue
		}
		least = left
		h.Set("Ratelimit-Limit", strconv.Itoa(b.rate.Count))
		h.Set("Ratelimit-Remaining", strconv.Itoa(left))
		h.Set("Ratelimit-Reset", strconv.Itoa(seconds(full)))
	}
}

func tooMany(whose string, rate Rate, wait time.Duration) *Error {
	e := problem(http.StatusTooManyRequests, "rate_limit_exceeded",
		fmt.Sprintf("Too many requests %s: more than %s. Retry after the time in Retry-After, with the same idempotency key.", whose, rate))
	e.retryAfter = max(seconds(wait), 1)
	return e
}

// seconds rounds up.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
