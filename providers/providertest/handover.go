package providertest

import "time"

// Handover is what became of a request, or of an SMTP conversation from MAIL
// on.
type Handover struct {
	At time.Time
	// Number counts the provider's hand-overs from 1, see [Seen].
	Number int
	// Provider is the name of the dialect, "smtp" for a relay.
	Provider string
	// Reference is the attempt's key, where the hand-over came that far.
	Reference string
	To        []string

	// Accepted says that the message was accepted now. ID is its name.
	Accepted bool
	ID       string
	// Replayed says that the hand-over got the reply to an earlier one with the
	// same key; ID is the earlier message's.
	Replayed bool

	// Status is the status of the answer. It is zero when there is none, or
	// none of the protocol.
	Status int
	// Reaction is the name of the reaction that brought it about, see
	// [Reaction.Named]; empty when the provider acted on its own.
	Reaction string
	// Stage is where an SMTP conversation was at.
	Stage Stage
}

// OnEnd sets a function that is called for each hand-over whose end is decided,
// before the client learns of it. Calls may be concurrent. Set it before the
// first message.
func (r *record) OnEnd(f func(Handover)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onEnd = f
}

// ends reports the end of a hand-over.
func (r *record) ends(h Handover) {
	r.mu.Lock()
	f := r.onEnd
	r.mu.Unlock()
	if f != nil {
		f(h)
	}
}

// handover begins the report on r.
func (r Seen) handover() Handover {
	return Handover{At: r.At, Number: r.Number, Provider: r.Provider, Reference: r.Reference, To: r.To}
}

// because adds the reaction that h ends with.
func (h Handover) because(do Reaction) Handover {
	h.Reaction = do.name
	if do.answer && !do.raw {
		h.Status = do.status
	}
	return h
}
