package pgproxy

import (
	"slices"
	"strings"
)

// Point is a moment in a connection at which a rule can act.
type Point int

const (
	nowhere Point = iota

	// Commit is the COMMIT of a transaction that was begun with BEGIN.
	Commit

	// Autocommit is the end of a transaction that was not: the Sync after the
	// execution of one or more statements outside of a transaction, or a
	// simple query. Without the filter [Saw] it fits every single SELECT.
	Autocommit
)

// Action is what happens at the point.
type Action struct {
	after   bool            // the server has committed
	release <-chan struct{} // nil: the connection is cut
}

var (
	// CutBefore closes the connection; the server never sees the commit.
	CutBefore = Action{}

	// CutAfter lets the server commit, reads its answer, and closes the
	// connection without telling the client. If the server did not commit
	// after all, the client gets the answer and the rule stays armed.
	CutAfter = Action{after: true}
)

// HoldBefore keeps the commit from the server until the channel is closed, or
// until the server ends the connection.
func HoldBefore(release <-chan struct{}) Action {
	return Action{release: release}
}

// HoldAfter lets the server commit, as [CutAfter] does, and keeps its answer
// from the client until the channel is closed.
func HoldAfter(release <-chan struct{}) Action {
	return Action{after: true, release: release}
}

// Filter narrows what a rule fits, or says how often it acts.
type Filter func(*Rule)

// App fits connections with this application_name.
func App(name string) Filter { return func(r *Rule) { r.app = name } }

// Saw fits transactions in which a statement with this text in it was
// executed.
func Saw(sql string) Filter { return func(r *Rule) { r.saw = sql } }

// Always makes the rule act each time that it fits.
func Always() Filter { return func(r *Rule) { r.always = true } }

// Rule is an armed rule. A test whose rule did not fire has shown nothing.
type Rule struct {
	proxy    *Proxy
	at       Point
	action   Action
	app, saw string
	always   bool
	fired    chan struct{}

	// Guarded by the proxy's mutex.
	spent bool
	count int
}

// Fired is closed once the rule has acted for the first time: the connection
// is cut, or the commit is held.
func (r *Rule) Fired() <-chan struct{} { return r.fired }

// Count is how often the rule has acted.
func (r *Rule) Count() int {
	r.proxy.mu.Lock()
	defer r.proxy.mu.Unlock()
	return r.count
}

// Disarm ends the rule. What it holds stays held.
func (r *Rule) Disarm() {
	r.proxy.mu.Lock()
	defer r.proxy.mu.Unlock()
	r.proxy.rules = slices.DeleteFunc(r.proxy.rules, func(other *Rule) bool { return other == r })
}

// claim finds the rule that acts at this point. One that acts once is spent by
// it, so that of two connections at the same point only one is hit.
func (p *Proxy) claim(at Point, s *session) *Rule {
	if at == nowhere {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rules {
		if r.spent || r.at != at || !r.fits(s) {
			continue
		}
		r.spent = !r.always
		return r
	}
	return nil
}

func (r *Rule) fits(s *session) bool {
	if r.app != "" && r.app != s.app {
		return false
	}
	return r.saw == "" || slices.ContainsFunc(s.statements, func(sql string) bool {
		return strings.Contains(sql, r.saw)
	})
}

// fire tells that the rule has acted.
func (r *Rule) fire() {
	r.proxy.mu.Lock()
	defer r.proxy.mu.Unlock()
	if r.count == 0 {
		close(r.fired)
	}
	r.count++
}

// rearm takes back a claim that came to nothing.
func (r *Rule) rearm() {
	r.proxy.mu.Lock()
	defer r.proxy.mu.Unlock()
	r.spent = false
}
