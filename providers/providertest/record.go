package providertest

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// Accepted is a message for which a provider has taken responsibility.
type Accepted struct {
	// Number counts accepted messages from 1.
	Number int
	At     time.Time
	// Provider is the name of the dialect; "smtp" for a relay.
	Provider string
	// Reference is the key of the attempt, found where the dialect carries
	// it: a custom argument, a header, the Message-ID.
	Reference string
	// Path is the path of an HTTP request.
	Path string
	// From and To are the sender and the recipients: the envelope of an SMTP
	// message.
	From string
	To   []string
	// Subject is the message's, decoded.
	Subject string
	// Body is what was handed over: the body of an HTTP request or what it
	// wraps (see [Parsed]), or the content of an SMTP message without its dots.
	Body []byte
	// ID is the provider's own name for the message.
	ID string
}

// record keeps what a provider saw. Its methods are part of [HTTP] and [SMTP].
type record struct {
	mu       sync.Mutex
	accepted []Accepted
	dropped  int // how many accepted messages were forgotten
	requests int
	onAccept func(Accepted)
	onEnd    func(Handover)
	noBodies bool
	changed  chan struct{}
}

func newRecord() *record { return &record{changed: make(chan struct{})} }

// notify wakes those who wait for a change; r.mu is held.
func (r *record) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// began counts a hand-over and returns its number.
func (r *record) began() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	r.notify()
	return r.requests
}

// accept records a message and returns it with its number. The hook runs
// before anybody is told, so a log that it writes is ahead of every answer.
func (r *record) accept(a Accepted, id func(number int) string) Accepted {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.Number = r.dropped + len(r.accepted) + 1
	a.At = time.Now()
	a.ID = id(a.Number)
	if r.onAccept != nil {
		r.onAccept(a)
	}
	if r.noBodies {
		a.Body = nil
	}
	r.accepted = append(r.accepted, a)
	r.notify()
	return a
}

// Accepted returns the accepted messages in their order.
func (r *record) Accepted() []Accepted {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.accepted)
}

// Requests returns how many hand-overs have begun: HTTP requests whose header
// was read, SMTP commands MAIL.
func (r *record) Requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

// OnAccept sets a function that is called for each accepted message, one at a
// time, before the provider answers. Set it before the first message.
func (r *record) OnAccept(f func(Accepted)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onAccept = f
}

// forget drops what was accepted and returns how many hand-overs there were.
func (r *record) forget() (requests int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropped += len(r.accepted)
	r.accepted = nil
	return r.requests
}

// ForgetBodies makes the provider keep no bodies, for long runs.
func (r *record) ForgetBodies() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noBodies = true
}

func (r *record) forgets() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.noBodies
}

// WaitAccepted waits until n messages are accepted or ctx ends.
func (r *record) WaitAccepted(ctx context.Context, n int) error {
	return r.waitFor(ctx, func() bool { return len(r.accepted) >= n })
}

// WaitRequests waits until n hand-overs have begun or ctx ends.
func (r *record) WaitRequests(ctx context.Context, n int) error {
	return r.waitFor(ctx, func() bool { return r.requests >= n })
}

// waitFor waits until done, which is called under r.mu, returns true.
func (r *record) waitFor(ctx context.Context, done func() bool) error {
	for {
		r.mu.Lock()
		ok, changed := done(), r.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// smallBuffers is a listener whose connections hold little in the kernel, so
// that a client cannot have handed over a large message before it was read.
type smallBuffers struct{ net.Listener }

// Accept implements [net.Listener].
func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(64 << 10)
	}
	return conn, err
}

// hardClose resets a connection.
func hardClose(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
