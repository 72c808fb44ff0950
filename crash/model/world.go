package model

// What happens to the workers: the provider, time, evidence and faults.

// Kind is what a provider offers against doubt.
type Kind int

// The kinds, in the order of the contract table.
const (
	// Keys are honoured for as long as anybody asks.
	Keys Kind = iota
	// KeysForAWhile are honoured, and then forgotten.
	KeysForAWhile
	// SearchAtOnce finds every accepted message from the moment of its
	// acceptance.
	SearchAtOnce
	// SearchWithLag may not find a message that was accepted.
	SearchWithLag
	// Neither keys nor search; SMTP.
	Neither
)

func (k Kind) String() string {
	return [...]string{"keys", "keys, window over", "search without lag", "search with lag", "neither"}[k]
}

func (k Kind) honoursKeys() bool      { return k == Keys || k == KeysForAWhile }
func (k Kind) searches() bool         { return k == SearchAtOnce || k == SearchWithLag }
func (k Kind) searchIsComplete() bool { return k == SearchAtOnce }

// Policy is on_unknown.
type Policy int

// The policies.
const (
	Retry Policy = iota
	Hold
	Drop
)

func (p Policy) String() string { return [...]string{"retry", "hold", "drop"}[p] }

// Faults is a set of what may go wrong.
type Faults uint8

// The faults. Each occurrence counts against the bound.
const (
	// Crash kills a worker process; another starts in its place. What it had
	// sent completely may still arrive.
	Crash Faults = 1 << iota
	// Pause makes a run stand still, for any length of time.
	Pause
	// LoseSession ends the liveness session of a process that lives on.
	LoseSession
	// Network loses a request or a reply, or lets the caller's time-out pass.
	// A reply that proves nothing, such as 500, is a lost one.
	Network
	// Refuse makes the provider refuse, definitely.
	Refuse

	// AnyFault is all of them but refusals, which are no fault of ours.
	AnyFault = Crash | Pause | LoseSession | Network
)

// providerSteps lets the provider handle what has reached it, and lets what
// has not reached it be lost.
func (x *explorer) providerSteps(s state) {
	for i, r := range s.runs {
		if r.at == onWire {
			x.handle(s, i)
		}
	}
	for i, a := range s.attempts {
		if a.orphans == 0 {
			continue
		}
		t := s
		t.attempts[i].orphans--
		x.to(nobody, "a request without a sender is lost on its way", t)
		x.takeIn(&t, i, false)
		x.to(nobody, "a request without a sender arrives and is accepted", t)
	}
}

func (x *explorer) handle(s state, i int) {
	t := s
	r := s.runs[i]
	x.takeIn(&t, int(r.number-1), r.freshKey)
	t.runs[i].at, t.runs[i].result = replied, wasAccepted
	x.to(i, "has its message accepted", t)

	if x.fault(&s, Refuse, r.at) {
		s.runs[i].at, s.runs[i].result = finishing, x.resultOf(r, wasRejected)
		x.to(i, "is refused for good", s)
		s.runs[i].result = x.resultOf(r, notAccepted)
		x.to(i, "is refused for now", s)
	}
}

// takeIn makes a mail of a request, unless its key is known.
func (x *explorer) takeIn(s *state, i int, freshKey bool) {
	a := &s.attempts[i]
	known := x.kind.honoursKeys() && !a.forgotten && a.accepted > 0 && !freshKey
	if !known {
		a.accepted++
	}
}

// timeSteps lets time pass. It never overtakes a run that is awake: standing
// still is a fault.
func (x *explorer) timeSteps(s state) {
	still, replyDue := true, true
	for _, r := range s.runs {
		awake := r.at != idle && !r.paused
		still = still && !awake
		replyDue = replyDue && (!awake || r.at == onWire)
	}
	if still {
		x.deadlines(s)
		x.windows(s)
	}
	if replyDue {
		x.waits(s)
	}
}

// deadlines lets the deadlines of all attempts pass.
func (x *explorer) deadlines(s state) {
	before := s
	for i := range s.attempts {
		a := &s.attempts[i]
		if x.kind == SearchAtOnce && !x.without(PromptProvider) && (a.orphans > 0 || s.stands(i, onWire)) {
			return
		}
		a.overdue = a.stage == open
	}
	for i := range s.runs {
		r := &s.runs[i]
		r.late = r.late || r.at == begun
	}
	if s != before {
		x.to(nobody, "deadlines pass", s)
	}
}

// windows lets the provider forget keys. Windows are far longer than
// deadlines.
func (x *explorer) windows(s state) {
	if x.kind != KeysForAWhile {
		return
	}
	for i, a := range s.attempts {
		if a.stage == unborn || a.forgotten || a.stage == open && !a.overdue {
			continue
		}
		if s.mayArrive(i) && !x.without(ShortGap) {
			continue
		}
		t := s
		t.attempts[i].forgotten = true
		x.to(nobody, "the key window ends", t)
	}
}

// possible says whether the assumptions about the world allow a state.
func (x *explorer) possible(s *state) bool {
	if x.without(ShortGap) {
		return true
	}
	for i, a := range s.attempts {
		if x.kind != SearchAtOnce || !a.overdue {
			continue
		}
		unsent := s.stands(i, confirmed) || s.stands(i, onWire)
		if unsent && a.owner != gone && s.sessions[a.owner].lost {
			return false
		}
		if a.orphans > 0 && a.owner == gone && !x.without(PromptProvider) {
			return false // sent after the deadline, and then killed
		}
	}
	return true
}

// mayArrive says whether a request of attempt i is on its way, or will
// be.
func (s *state) mayArrive(i int) bool {
	if s.attempts[i].orphans > 0 || s.stands(i, onWire) || s.stands(i, confirmed) {
		return true
	}
	for _, r := range s.runs {
		if r.at == begun && !r.late && int(r.number) == i+1 {
			return true
		}
	}
	return false
}

// stands says whether a run that sends attempt i is at a place.
func (s *state) stands(i int, at place) bool {
	for _, r := range s.runs {
		if r.at == at && int(r.number) == i+1 {
			return true
		}
	}
	return false
}

// waits lets the time for evidence pass.
func (x *explorer) waits(s state) {
	for i, a := range s.attempts {
		if a.stage != open || !a.inDoubt || a.waited {
			continue
		}
		// OUTBOXD_UNKNOWN_WAIT is longer than an HTTP call may take.
		if x.kind == SearchAtOnce && !a.overdue {
			continue
		}
		t := s
		t.attempts[i].waited = true
		x.to(nobody, "the wait for evidence ends", t)
	}
}

// evidenceSteps brings the provider's webhook events, any number of times, or
// never.
func (x *explorer) evidenceSteps(s state) {
	for i, a := range s.attempts {
		if a.accepted == 0 || a.stage != open && a.stage != unknown {
			continue
		}
		t, number := s, uint8(i+1)
		t.accept(x, number)
		t.settle(x, number)
		x.to(nobody, "a webhook event says accepted", t)
	}
}

// sessionSteps are what a process does about its session.
func (x *explorer) sessionSteps(s state) {
	for w, lost := range s.sessions {
		if !lost.lost {
			continue
		}
		t := s
		if !lost.noticed {
			t.sessions[w].noticed = true
			x.to(process+w, "notices that its session is lost", t)
		} else if t.renew(w) {
			x.to(process+w, "opens a new session", t)
		}
	}
}

// renew gives worker w a new id once nothing of the old one is under way. (The
// program does so at once; here the other worker stands for that.)
func (s *state) renew(w int) bool {
	for i, r := range s.runs {
		if int(worker(i)) == w && r.at != idle {
			return false
		}
	}
	s.sessions[w] = session{}
	for i := range s.attempts {
		if a := &s.attempts[i]; int(a.owner) == w && a.stage == open {
			a.owner = gone
		}
	}
	return true
}

// faultSteps makes something go wrong.
func (x *explorer) faultSteps(s state) {
	for w := range s.sessions {
		x.crash(s, w)
		x.loseSession(s, w)
	}
	for i, r := range s.runs {
		if r.paused {
			t := s
			t.runs[i].paused = false
			x.to(i, "wakes", t)
			continue
		}
		if t := s; r.at != idle && x.fault(&t, Pause, r.at) {
			t.runs[i].paused = true
			x.to(i, "is paused", t)
		}
		x.network(s, i)
	}
}

// fault takes one from the budget, if this one may happen here.
func (x *explorer) fault(s *state, f Faults, at place) bool {
	if s.faults == 0 || x.faults&f == 0 || x.only != idle && x.only != at {
		return false
	}
	s.faults--
	return true
}

// crash kills worker w. A complete request stays on its way.
func (x *explorer) crash(s state, w int) {
	at, touched := idle, s.owns(w)
	t := s
	for i, r := range s.runs {
		if int(worker(i)) != w || r.at == idle {
			continue
		}
		at, touched = r.at, true
		if r.at == onWire {
			t.attempts[r.number-1].orphans++
		}
		t.end(i)
	}
	if touched && x.fault(&t, Crash, at) {
		t.renew(w)
		x.to(process+w, "is killed", t)
	}
}

// owns says whether worker w has an open attempt, so that its death matters.
func (s *state) owns(w int) bool {
	for _, a := range s.attempts {
		if a.stage == open && int(a.owner) == w {
			return true
		}
	}
	return false
}

func (x *explorer) loseSession(s state, w int) {
	at, touched := idle, s.owns(w)
	for i, r := range s.runs {
		if int(worker(i)) == w && r.at != idle {
			at, touched = r.at, true
		}
	}
	if touched && !s.sessions[w].lost && x.fault(&s, LoseSession, at) {
		s.sessions[w].lost = true
		x.to(process+w, "loses its session", s)
	}
}

// network breaks the conversation of run i with the provider.
func (x *explorer) network(s state, i int) {
	r := s.runs[i]
	if r.at != onWire && r.at != replied || !x.fault(&s, Network, r.at) {
		return
	}
	s.runs[i].at, s.runs[i].result = finishing, inDoubt
	if r.at == replied {
		if x.has(DefiniteWithoutProof) {
			s.runs[i].result = notAccepted
		}
		x.to(i, "loses the reply, or gets a 503", s)
		return
	}
	x.to(i, "has its request lost, and knows nothing", s)
	s.attempts[r.number-1].orphans++
	x.to(i, "gives up waiting while its request is on its way", s)
}
