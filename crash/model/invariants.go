package model

// The invariants of 02-delivery.md that the model can break. They hold in
// every state and not only at the end.

// brokenIn names the invariants that do not hold in a state.
func brokenIn(s *state) (broken []string) {
	total, known := s.accepted(), false
	for _, a := range s.attempts {
		known = known || a.stage == accepted
	}
	if total > 1 && !s.email.flagged {
		broken = append(broken, "I3: more than one mail and no flag")
	}
	// A doubt that was closed by policy allows one more mail.
	doubts := 0
	if s.email.attempts > 1 {
		doubts = 1
	}
	if total > 1+doubts {
		broken = append(broken, "I3: more mails than attempts")
	}
	if s.email.status == sent && total == 0 {
		broken = append(broken, "I4: sent, and no mail")
	}
	if s.email.status == failedRefused && total > 0 {
		broken = append(broken, "I4: failed, and there is a mail")
	}
	if known && s.email.status != sent {
		broken = append(broken, "I4: an attempt is known to be accepted, and the email is not sent")
	}
	for _, r := range s.runs {
		if r.at >= confirmed && r.at <= replied && (r.number > s.email.attempts) {
			broken = append(broken, "I7: bytes at the provider and no attempt")
		}
	}
	return broken
}

// brokenByStep names the invariants that a step breaks.
func brokenByStep(who int, from, to *state) (broken []string) {
	if from.email.status.ended() && to.email.status != from.email.status && to.email.status != sent {
		broken = append(broken, "I5: an ended email goes on")
	}
	if !keepsAccepted(who, from, to) {
		broken = append(broken, "I4: a reply in hand is thrown away")
	}
	if to.email.attempts < from.email.attempts {
		broken = append(broken, "I5: an attempt is gone")
	}
	for i, a := range from.attempts {
		late := a.stage == unknown && to.attempts[i].stage == accepted
		if a.stage > open && to.attempts[i].stage != a.stage && !late {
			broken = append(broken, "I5: a closed attempt changes")
		}
	}
	if to.email.attempts == from.email.attempts {
		if to.email.flagged != from.email.flagged {
			broken = append(broken, "I4: the flag changes without a resend")
		}
		return broken
	}
	followsDoubt := from.hasUnknown()
	if to.email.flagged != followsDoubt {
		broken = append(broken, "I4: the flag is not that a resend followed a doubt")
	}
	return broken
}

// keepsAccepted says that a step does not throw an "accepted" away that a live
// worker has in its hands.
func keepsAccepted(who int, from, to *state) bool {
	if who < 0 || who >= maxRuns {
		return true
	}
	r := from.runs[who]
	if r.result != wasAccepted || r.at != finishing && r.at != settling || to.runs[who].at != idle {
		return true
	}
	return to.attempts[r.number-1].stage == accepted
}
