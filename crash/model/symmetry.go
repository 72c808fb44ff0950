package model

// The two processes are alike, so a state and its mirror image, with A and B
// exchanged, need to be visited only once. With a second run in the first
// process they are not alike.

// mirror exchanges the processes.
func (s *state) mirror() {
	s.sessions[0], s.sessions[1] = s.sessions[1], s.sessions[0]
	s.runs[0], s.runs[1] = s.runs[1], s.runs[0]
	for i := range s.attempts {
		if s.attempts[i].stage == open {
			s.attempts[i].owner = s.attempts[i].owner.other()
		}
	}
	for i := range workers {
		if s.runs[i].seen.open {
			s.runs[i].seen.owner = s.runs[i].seen.owner.other()
		}
	}
}

func (o owner) other() owner {
	if o == gone {
		return gone
	}
	return 1 - o
}

// mirrored says whether the mirror image is the one to visit.
func (s *state) mirrored() bool { return s.weight(0) < s.weight(1) }

// weight puts all that belongs to a process into one number.
func (s *state) weight(w owner) uint64 {
	r, n := s.runs[w], uint64(0)
	add := func(v uint64) { n = n<<4 | v }
	flag := func(flags ...bool) {
		for _, f := range flags {
			n <<= 1
			if f {
				n |= 1
			}
		}
	}
	add(uint64(r.at))
	add(uint64(r.number))
	add(uint64(r.result))
	flag(r.paused, r.late, r.replay, r.freshKey, r.unrecorded)
	flag(r.seen.open, r.seen.inDoubt, r.seen.waited, r.seen.overdue, r.seen.inWindow, r.seen.dead)
	flag(r.seen.open && r.seen.owner == w, r.seen.open && r.seen.owner == gone)
	flag(s.sessions[w].lost, s.sessions[w].noticed)
	for _, a := range s.attempts {
		flag(a.stage == open && a.owner == w)
	}
	return n
}
