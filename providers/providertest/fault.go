package providertest

import (
	"bytes"
	"context"
	"net/http"
	"strings"
)

// Fault is something that goes wrong with a hand-over, in terms that hold for
// every protocol. The suite goes through all of them.
type Fault int

const (
	// NoFault is the ordinary course.
	NoFault Fault = iota
	// LoseReply accepts and breaks the connection without an answer.
	LoseReply
	// HangReply accepts and never answers.
	HangReply
	// DropAfterReply accepts, answers and breaks the connection.
	DropAfterReply
	// CutUpload breaks the connection in the middle of the content.
	CutUpload
	// StallUpload stops reading in the middle of the content.
	StallUpload
	// EchoCredentials refuses with an answer that quotes them.
	EchoCredentials
	// GarbageEcho sends no answer of the protocol but a line that quotes the
	// credentials.
	GarbageEcho
)

// Server is a programmable provider as the suite uses it: [HTTP] or [SMTP].
type Server interface {
	URL() string
	Close()
	Accepted() []Accepted
	Requests() int
	WaitAccepted(ctx context.Context, n int) error
	WaitRequests(ctx context.Context, n int) error
	// Break makes all that follows go wrong in one way.
	Break(f Fault)
	// Hold accepts and answers when released is closed.
	Hold(released <-chan struct{})
	// Answer gives this status to every complete hand-over and accepts none.
	Answer(status int)
}

var (
	_ Server = (*HTTP)(nil)
	_ Server = (*SMTP)(nil)
)

// Break implements [Server].
func (p *HTTP) Break(f Fault) {
	p.Receive(func(Seen) Intake {
		switch f {
		case CutUpload:
			return ReadThen(512, Reset())
		case StallUpload:
			return ReadThen(512, Reaction{wait: make(chan struct{})})
		}
		return ReadAll()
	})
	p.Respond(func(r Seen) Reaction {
		switch f {
		case LoseReply:
			return Accept().Then(Reset())
		case HangReply:
			return Accept().Then(Hang())
		case DropAfterReply:
			return Accept().Then(Reply(http.StatusAccepted, "")).Then(Reset())
		case EchoCredentials:
			return Reply(http.StatusBadRequest, headerText(r.Header))
		case GarbageEcho:
			return Raw(strings.ReplaceAll(headerText(r.Header), "\r\n", " ") + "\r\n")
		}
		return Accept()
	})
}

func headerText(h http.Header) string {
	var b bytes.Buffer
	_ = h.Write(&b)
	return b.String()
}

// Hold implements [Server].
func (p *HTTP) Hold(released <-chan struct{}) {
	p.Respond(func(Seen) Reaction { return Accept().When(released) })
}

// Answer implements [Server].
func (p *HTTP) Answer(status int) {
	p.Respond(func(Seen) Reaction { return Reply(status, "") })
}

// Break implements [Server].
func (p *SMTP) Break(f Fault) {
	at := map[Fault]struct {
		stage    Stage
		reaction Reaction
	}{
		LoseReply:      {AtDot, Accept().Then(Reset())},
		HangReply:      {AtDot, Accept().Then(Hang())},
		DropAfterReply: {AtDot, Accept().Then(Reply(250, "2.0.0 ok")).Then(Reset())},
		CutUpload:      {AtBody, Reset()},
		StallUpload:    {AtBody, Hang()},
	}
	p.Respond(func(e SMTPEvent) Reaction {
		switch {
		case at[f].stage == e.Stage:
			return at[f].reaction
		case f == EchoCredentials && e.Stage == AtAUTH:
			return Reply(500, "5.5.1 not known: "+e.Line+" "+p.options.Password)
		case f == GarbageEcho && e.Stage == AtAUTH:
			return Raw("not known: " + e.Line + " " + p.options.Password + "\r\n")
		}
		return Reaction{}
	})
}

// Hold implements [Server].
func (p *SMTP) Hold(released <-chan struct{}) {
	p.Respond(func(e SMTPEvent) Reaction {
		if e.Stage != AtDot {
			return Reaction{}
		}
		return Accept().When(released)
	})
}

// Answer implements [Server].
func (p *SMTP) Answer(status int) {
	p.Respond(func(e SMTPEvent) Reaction {
		if e.Stage != AtDot {
			return Reaction{}
		}
		return Reply(status, "this is the answer")
	})
}
