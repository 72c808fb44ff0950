package pgproxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// conn is a client's connection and the proxy's own to the server.
type conn struct {
	proxy  *Proxy
	client net.Conn
	done   chan struct{} // closed with the connection

	mu      sync.Mutex
	closed  bool
	server  net.Conn // nil until it is dialed
	session session
	lost    *lostAnswer // nil unless an answer is to be lost
}

// lostAnswer is an answer that the client does not get, or gets late.
type lostAnswer struct {
	rule   *Rule
	number int // of its ReadyForQuery in the session
	held   []message
	failed bool // the server did not commit
}

// errCut ends a connection that a rule has cut.
var errCut = errors.New("pgproxy: cut")

func newConn(p *Proxy, client net.Conn) *conn {
	return &conn{proxy: p, client: client, done: make(chan struct{})}
}

// close cuts both connections, whatever goes on in them.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	close(c.done)
	if c.server != nil {
		_ = c.server.Close() // first: a rule that cuts says what the server has not seen
	}
	_ = c.client.Close()
}

// serve runs the connection to its end.
func (c *conn) serve() {
	defer c.close()
	if !c.pass() || !c.dial() {
		return
	}
	client := bufio.NewReader(c.client)
	raw, first, err := readStartup(client, c.client)
	if err != nil {
		return
	}
	toServer := gate{c, c.server}
	if _, err := toServer.Write(raw); err != nil {
		return
	}
	startup, ok := first.(*pgproto3.StartupMessage)
	if !ok { // to cancel a query; the server answers by closing
		_, _ = io.Copy(io.Discard, c.server)
		return
	}
	c.session = newSession(startup)
	var replies sync.WaitGroup
	replies.Go(func() { c.carry(bufio.NewReader(c.server), gate{c, c.client}, c.answer, c.giveUpLoss) })
	c.carry(client, toServer, c.request, func(*bufio.Writer) {})
	replies.Wait()
}

func (c *conn) dial() bool {
	server, err := c.proxy.dial()
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = server.Close()
		return false
	}
	c.server = server
	return true
}

// handler takes a message and passes it on, or not.
type handler func(m message, to *bufio.Writer) error

// carry moves messages until one of the sides is gone. The end of the sending
// side goes on to the other one. That the receiving side is gone does not: what
// it said last may still be on its way in the other direction.
func (c *conn) carry(from *bufio.Reader, receiver io.Writer, handle handler, atEnd func(*bufio.Writer)) {
	to := bufio.NewWriter(receiver)
	for {
		m, err := readMessage(from)
		if err != nil {
			break
		}
		if err := handle(m, to); err != nil {
			return
		}
		if buffered(from) {
			continue // send what came together together
		}
		if err := to.Flush(); err != nil {
			return
		}
	}
	atEnd(to)
	_ = to.Flush() // may be gone as well
	if c.pass() {
		c.close()
	}
}

// request passes on a message of the client, unless a rule says otherwise.
func (c *conn) request(m message, to *bufio.Writer) error {
	rule, err := c.observe(m)
	if err != nil {
		c.close()
		return err
	}
	if rule != nil && !rule.action.after {
		// What came before is to happen.
		if err := to.Flush(); err != nil {
			rule.rearm()
			return err
		}
		if err := c.interrupt(rule); err != nil {
			return err
		}
	}
	_, err = to.Write(m)
	return err
}

// observe finds the rule for a message of the client. When its answer is to be
// lost, that is noted before the message goes on: the answer may be quick.
func (c *conn) observe(m message) (*Rule, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, err := c.session.request(m)
	if err != nil {
		return nil, err
	}
	defer c.session.passed(at)
	if c.lost != nil {
		return nil, nil
	}
	rule := c.proxy.claim(at, &c.session)
	if rule != nil && rule.action.after {
		c.lost = &lostAnswer{rule: rule, number: c.session.asked}
		if m.kind() == 'E' { // the Sync is still to come
			c.lost.number++
		}
	}
	return rule, nil
}

// interrupt cuts the connection, or holds it until it is released.
func (c *conn) interrupt(rule *Rule) error {
	if rule.action.release == nil {
		c.close()
		rule.fire()
		return errCut
	}
	rule.fire()
	select {
	case <-rule.action.release:
		return nil
	case <-c.done:
		return errCut
	}
}

// answer passes on a message of the server, unless it is to be lost.
func (c *conn) answer(m message, to *bufio.Writer) error {
	lost, err := c.withhold(m)
	if err != nil {
		c.close()
		return err
	}
	if m.kind() == 'Z' && !c.delay() {
		return errCut
	}
	switch {
	case lost == nil:
		_, err = to.Write(m)
		return err
	case m.kind() != 'Z':
		return nil
	case lost.failed:
		c.giveUpLoss(to)
		return nil
	}
	return c.lose(lost, to)
}

// lose takes the action on a complete answer.
func (c *conn) lose(lost *lostAnswer, to *bufio.Writer) error {
	if err := c.interrupt(lost.rule); err != nil {
		return err
	}
	c.mu.Lock()
	c.lost = nil
	c.mu.Unlock()
	return lost.passOn(to)
}

// withhold keeps a message that belongs to an answer that is to be lost, and
// returns that answer.
func (c *conn) withhold(m message) (*lostAnswer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.session.answered
	if err := c.session.answer(m); err != nil {
		return nil, err
	}
	if c.lost == nil || before < c.lost.number-1 {
		return nil, nil
	}
	c.lost.held = append(c.lost.held, m)
	c.lost.failed = c.lost.failed || rolledBack(m)
	return c.lost, nil
}

// rolledBack reports whether a message says that there was no commit. A COMMIT
// after an error is answered with ROLLBACK.
func rolledBack(m message) bool {
	switch m.kind() {
	case 'E':
		return true
	case 'C':
		var complete pgproto3.CommandComplete
		return complete.Decode(m.body()) != nil || string(complete.CommandTag) == "ROLLBACK"
	}
	return false
}

// giveUpLoss passes on an answer that was to be lost and was not what the rule
// is about: no commit, or no end.
func (c *conn) giveUpLoss(to *bufio.Writer) {
	c.mu.Lock()
	lost := c.lost
	c.lost = nil
	c.mu.Unlock()
	if lost == nil {
		return
	}
	lost.rule.rearm()
	_ = lost.passOn(to) // an error shows again when the rest is sent
}

func (l *lostAnswer) passOn(to *bufio.Writer) error {
	for _, m := range l.held {
		if _, err := to.Write(m); err != nil {
			return err
		}
	}
	return nil
}

// delay waits as long as the network is slow. It reports whether the connection
// is still there.
func (c *conn) delay() bool {
	_, latency := c.proxy.network()
	if latency == 0 {
		return true
	}
	timer := time.NewTimer(latency)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.done:
		return false
	}
}

// pass waits until the network lets something through. It reports whether the
// connection is still there.
func (c *conn) pass() bool {
	healed, _ := c.proxy.network()
	select {
	case <-c.done:
		return false
	case <-healed:
		return true
	}
}

// gate writes to one side, through the network.
type gate struct {
	*conn
	to net.Conn
}

// Write implements [io.Writer].
func (g gate) Write(b []byte) (int, error) {
	if !g.pass() {
		return 0, errCut
	}
	return g.to.Write(b)
}
