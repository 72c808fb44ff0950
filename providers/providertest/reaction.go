package providertest

import (
	"net/http"
	"time"
)

// Reaction is what a programmable provider does to a request or a command. The
// zero Reaction is the ordinary course: accept. Reactions are built with the
// functions of this package and combined with their methods.
type Reaction struct {
	name   string
	accept bool
	answer bool // status, header and body are set
	status int
	header http.Header
	body   string
	raw    bool // body is written to the connection as it is

	wait  <-chan struct{}
	delay time.Duration
	end   ending

	// processed is called when the answer is due.
	processed func()
}

// isPlain reports whether it is an answer and nothing else.
func (r Reaction) isPlain() bool { return r.answer && !r.raw && r.end == keep }

// ending is what becomes of the connection after the answer.
type ending int

const (
	keep ending = iota
	reset
	hang
)

// Accept records the message and answers as the service does.
func Accept() Reaction { return Reaction{accept: true} }

// Reply answers and accepts nothing.
func Reply(status int, body string) Reaction {
	return Reaction{answer: true, status: status, body: body}
}

// Raw writes bytes to the connection in place of an answer, and closes it.
func Raw(bytes string) Reaction {
	return Reaction{answer: true, raw: true, body: bytes, end: reset}
}

// Reset breaks the connection without an answer.
func Reset() Reaction { return Reaction{end: reset} }

// Hang keeps the connection open without an answer, until the client or the
// provider is closed.
func Hang() Reaction { return Reaction{end: hang} }

// Then adds what follows: Accept().Then(Reset()) accepts and loses the answer,
// Accept().Then(Reply(500, "")) accepts and says otherwise, and
// Reply(250, "ok").Then(Reset()) breaks the connection behind the answer.
func (r Reaction) Then(next Reaction) Reaction {
	if next.answer {
		r.answer, r.raw = true, next.raw
		r.status, r.header, r.body = next.status, next.header, next.body
	}
	if next.wait != nil {
		r.wait = next.wait
	}
	if next.name != "" {
		r.name = next.name
	}
	r.delay += next.delay
	r.end = next.end
	r.accept = r.accept || next.accept
	return r
}

// Named gives the reaction a name, which [Handover] reports.
func (r Reaction) Named(name string) Reaction {
	r.name = name
	return r
}

// With adds a header field to an HTTP answer.
func (r Reaction) With(name, value string) Reaction {
	h := r.header.Clone()
	if h == nil {
		h = http.Header{}
	}
	h.Set(name, value)
	r.header = h
	return r
}

// When holds the answer back until released is closed. What is accepted is
// accepted, and recorded, before.
func (r Reaction) When(released <-chan struct{}) Reaction {
	r.wait = released
	return r
}

// Late holds the answer back for a while, for programs that measure. Tests
// release with [Reaction.When].
func (r Reaction) Late(d time.Duration) Reaction {
	r.delay += d
	return r
}

// ordinary reports whether r asks for nothing but the usual course.
func (r Reaction) ordinary() bool {
	return !r.answer && r.end == keep && r.wait == nil && r.delay == 0 && r.header == nil
}

// pause waits as r says, or until stop is closed. The answer is due then.
func (r Reaction) pause(stop <-chan struct{}) {
	if r.processed != nil {
		defer r.processed()
	}
	if r.delay > 0 {
		timer := time.NewTimer(r.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-stop:
		}
	}
	if r.wait != nil {
		select {
		case <-r.wait:
		case <-stop:
		}
	}
}
