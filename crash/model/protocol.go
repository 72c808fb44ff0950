package model

// The steps of a worker. Each is one statement in Postgres or one action at
// the provider; between any two of them anything else may happen. The names in
// comments are those of package outbox.

// proceed takes the next step of run i.
func (x *explorer) proceed(s state, i int) {
	r := s.runs[i]
	if r.paused {
		return
	}
	switch r.at {
	case idle:
		x.load(s, i)
	case loaded:
		if r.seen.open {
			x.resolve(s, i)
		} else {
			x.begin(s, i)
		}
	case searching:
		x.search(s, i)
	case answered:
		x.applySearch(s, i)
	case waiting:
		x.markDoubt(s, i)
	case deciding:
		x.giveUpOn(s, i)
	case begun:
		x.confirm(s, i)
	case confirmed:
		s.runs[i].at = onWire
		x.to(i, "sends the last byte", s)
	case onWire:
		// The provider's turn.
	case replied:
		s.runs[i].at = finishing
		x.to(i, "reads the reply", s)
	case finishing:
		x.finish(s, i)
	case settling:
		s.settle(x, r.number)
		s.end(i)
		x.to(i, "settles the closed attempt as accepted", s)
	}
}

// end makes run i idle and forgets what it knew.
func (s *state) end(i int) { s.runs[i] = run{} }

// load reads the email. The job plays no part: River may hand an email to
// anybody at any time, and completes jobs without a fence.
func (x *explorer) load(s state, i int) {
	e, w := s.email, worker(i)
	if e.status.ended() || s.sessions[w].noticed || i >= x.runs || s.cut() {
		return
	}
	r := run{at: loaded, number: e.attempts}
	if e.attempts > 0 {
		if a := s.attempts[e.attempts-1]; a.stage == open {
			r.seen = view{
				open: true, owner: a.owner, inDoubt: a.inDoubt, waited: a.waited, overdue: a.overdue,
				inWindow: x.kind.honoursKeys() && !a.forgotten,
			}
		}
	}
	if !r.seen.open {
		r.number++
	}
	s.runs[i] = r
	x.to(i, "loads the email", s)
}

// cut says that the history wants a third attempt.
func (s *state) cut() bool { return s.email.status == queued && s.email.attempts == maxAttempts }

// begin is sqlBegin: of two runs that read the same, one begins.
func (x *explorer) begin(s state, i int) {
	r := &s.runs[i]
	if s.sessions[worker(i)].noticed || s.email.attempts != r.number-1 || s.email.status != queued {
		s.end(i)
		x.to(i, "does not begin", s)
		return
	}
	r.at = begun
	if x.has(BeginAfterSend) {
		r.unrecorded = true
		x.to(i, "skips Begin", s)
		return
	}
	s.insertAttempt(x, i)
	x.to(i, "commits Begin", s)
}

func (s *state) insertAttempt(x *explorer, i int) {
	r := s.runs[i]
	for _, a := range s.attempts[:r.number-1] {
		if a.stage == unknown && !x.has(NoFlag) {
			s.email.flagged = true
		}
	}
	s.email.status, s.email.attempts = sending, r.number
	a := &s.attempts[r.number-1]
	a.stage, a.owner = open, worker(i)
}

// resolve decides about an open attempt: Deliverer.resolve, up to its first
// question to anybody but Postgres.
func (x *explorer) resolve(s state, i int) {
	r := &s.runs[i]
	a := &s.attempts[r.number-1]
	busy, dead := x.busy(s, i)
	r.seen.dead = dead
	switch {
	case x.has(SweepTakesThePaused) && a.stage == open && !s.underWay(worker(i), r.number):
		a.stage, s.email.status = deferred, queued
		s.end(i)
		x.to(i, "takes the job and starts afresh", s)
	case busy:
		s.end(i)
		x.to(i, "leaves the attempt to its owner", s)
	case x.has(FailoverInDoubt) && a.stage == open:
		a.stage, s.email.status = deferred, queued
		s.end(i)
		x.to(i, "moves on to another provider", s)
	case x.kind.honoursKeys() && (x.inWindow(a, r.seen) || x.has(ReplayPastWindow)):
		x.takeOver(s, i)
	case x.kind.searches():
		r.at = searching
		x.to(i, "finds nobody sending", s)
	default:
		r.at = waiting
		x.to(i, "finds nobody sending", s)
	}
}

// busy is Deliverer.busy.
func (x *explorer) busy(s state, i int) (busy, dead bool) {
	r, me := s.runs[i], worker(i)
	if s.underWay(me, r.number) && (r.seen.owner == me || !x.has(UnderWayOnlyIfOwned)) {
		return true, false
	}
	if r.seen.owner == me {
		return false, false
	}
	alive := r.seen.owner != gone && !s.sessions[r.seen.owner].lost
	return alive && !r.seen.inDoubt && !r.seen.overdue, !alive
}

// underWay says whether a run of the worker is sending the attempt.
func (s *state) underWay(w owner, number uint8) bool {
	for i, r := range s.runs {
		if worker(i) == w && r.number == number && r.at >= begun {
			return true
		}
	}
	return false
}

func (x *explorer) inWindow(a *attempt, seen view) bool {
	if x.has(WindowAsOfLoad) {
		return seen.inWindow
	}
	return seen.inWindow && !a.forgotten
}

// takeOver is sqlTakeOver, before a replay.
func (x *explorer) takeOver(s state, i int) {
	r := &s.runs[i]
	a := &s.attempts[r.number-1]
	if a.stage != open || a.owner != r.seen.owner || a.inDoubt != r.seen.inDoubt {
		s.end(i)
		x.to(i, "is too late to take over", s)
		return
	}
	a.owner, a.inDoubt, a.waited, a.overdue = worker(i), false, false, false
	r.at, r.replay, r.freshKey = begun, true, x.has(KeyPerTakeOver)
	r.seen = view{}
	x.to(i, "takes the attempt over to replay it", s)
}

// confirm is the last look: Deliverer.confirm.
func (x *explorer) confirm(s state, i int) {
	r := &s.runs[i]
	r.seen = view{}
	if s.sessions[worker(i)].noticed || r.late && !x.has(NoDeadline) {
		r.at, r.result = finishing, x.resultOf(*r, notAccepted)
		x.to(i, "refuses to send", s)
		return
	}
	r.at = confirmed
	x.to(i, "confirms", s)
}

// resultOf is Deliverer.outcome: a refused replay says nothing about the call
// before.
func (x *explorer) resultOf(r run, got result) result {
	if r.replay && got != wasAccepted && !x.has(ReplayRefusalCounts) {
		return inDoubt
	}
	return got
}

// search asks the provider. With lag, a message that it has may not be found,
// and one that is not found may be there.
func (x *explorer) search(s state, i int) {
	r := &s.runs[i]
	has := s.attempts[r.number-1].accepted > 0
	r.at = answered
	if has {
		r.result = wasAccepted
		x.to(i, "finds the message at the provider", s)
	}
	if !has && x.kind.searchIsComplete() {
		r.result = notAccepted
		x.to(i, "does not find the message, which would be found", s)
	}
	if !x.kind.searchIsComplete() {
		r.at, r.result = waiting, inDoubt
		x.to(i, "finds nothing, which proves nothing", s)
	}
}

// applySearch records what the search proved. "Not found" counts only if
// nobody can send the message any more and nothing of it is under way.
func (x *explorer) applySearch(s state, i int) {
	r := s.runs[i]
	a := &s.attempts[r.number-1]
	proof := (r.seen.dead || x.has(NotFoundWhilePaused)) && (r.seen.overdue || x.has(NotFoundAtOnce))
	switch {
	case r.result == wasAccepted:
		s.accept(x, r.number)
		s.end(i)
		x.to(i, "records that it was accepted", s)
	case proof:
		if a.stage == open && a.owner == r.seen.owner {
			a.stage = deferred
			s.show(x, queued)
		}
		s.end(i)
		x.to(i, "records that it was not accepted", s)
	default:
		s.runs[i].at, s.runs[i].result = waiting, inDoubt
		x.to(i, "takes that for no proof", s)
	}
}

// markDoubt is sqlMarkDoubt, and the question whether the wait is over.
func (x *explorer) markDoubt(s state, i int) {
	r := &s.runs[i]
	a := &s.attempts[r.number-1]
	if a.stage != open || a.owner != r.seen.owner {
		s.end(i)
		x.to(i, "finds the attempt settled or taken over", s)
		return
	}
	a.inDoubt = true
	s.show(x, doubtful)
	if r.seen.waited && a.waited && x.policy != Hold {
		r.at = deciding
		x.to(i, "sees that the wait is over", s)
		return
	}
	s.end(i)
	x.to(i, "marks the doubt and waits", s)
}

// giveUpOn is sqlGiveUpOn.
func (x *explorer) giveUpOn(s state, i int) {
	r := s.runs[i]
	if a := &s.attempts[r.number-1]; a.stage == open && a.owner == r.seen.owner {
		a.stage = unknown
		if x.policy == Drop {
			s.show(x, failedUnknown)
		} else {
			s.show(x, queued)
		}
	}
	s.end(i)
	x.to(i, "closes the attempt by policy", s)
}

// finish is sqlFinish.
func (x *explorer) finish(s state, i int) {
	r := s.runs[i]
	if r.unrecorded {
		if s.email.attempts != r.number-1 || s.email.status != queued {
			s.end(i)
			x.to(i, "finds another's attempt recorded", s)
			return
		}
		s.insertAttempt(x, i)
	}
	a := &s.attempts[r.number-1]
	mine := a.owner == worker(i) || x.has(NoOwnerFence)
	switch {
	case r.result == wasAccepted && a.stage == open && (mine || !x.has(FenceAccepted)):
		s.accept(x, r.number)
	case r.result == wasAccepted && !x.has(NoSettle):
		s.runs[i].at = settling
		x.to(i, "finds the attempt closed", s)
		return
	case a.stage != open || !mine:
		s.end(i)
		x.to(i, "finds that it is no longer the owner", s)
		return
	default:
		s.close(x, r)
	}
	s.end(i)
	x.to(i, "commits Finish", s)
}

// close records a result that is not "accepted".
func (s *state) close(x *explorer, r run) {
	a := &s.attempts[r.number-1]
	switch r.result {
	case wasRejected:
		a.stage = rejected
		if s.hasUnknown() && !x.has(RefusalHidesDoubt) {
			s.show(x, failedUnknown) // an attempt before this one may have been accepted
		} else {
			s.show(x, failedRefused)
		}
	case notAccepted:
		a.stage = deferred
		s.show(x, queued)
	default:
		a.inDoubt = true
		s.show(x, doubtful)
	}
}

func (s *state) hasUnknown() bool {
	for _, a := range s.attempts {
		if a.stage == unknown {
			return true
		}
	}
	return false
}

// accept records that an open attempt was accepted, whoever says it.
func (s *state) accept(x *explorer, number uint8) {
	if a := &s.attempts[number-1]; a.stage == open {
		a.stage = accepted
		s.show(x, sent)
	}
}

// settle is sqlSettle: a late "accepted" for an attempt that was closed as
// unknown.
func (s *state) settle(x *explorer, number uint8) {
	a := &s.attempts[number-1]
	if a.stage != unknown {
		return
	}
	a.stage = accepted
	if x.has(LateAcceptedOfLastOnly) &&
		(s.email.attempts != number || s.email.status == failedRefused || s.email.status == sending) {
		return
	}
	s.show(x, sent)
}

// show changes the status, unless the email is known to be accepted: that is
// the truth whatever became of another attempt.
func (s *state) show(x *explorer, to status) {
	if s.email.status == sent && !x.has(SentCanBeUndone) {
		return
	}
	s.email.status = to
}
