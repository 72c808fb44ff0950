// Package pgproxy is a TCP proxy in front of a PostgreSQL server that
// understands enough of the protocol to break a connection exactly before a
// COMMIT reaches the server or exactly after it has happened, and to hold one
// back. It also cuts, stalls, refuses and delays connections as a network does.
//
//	p := pgproxy.New(t, databaseURL)
//	rule := p.On(pgproxy.Commit, pgproxy.CutAfter, pgproxy.Saw("INSERT INTO orders"))
//	... // a client of p.URL() inserts and commits
//	<-rule.Fired() // committed for sure, and the client cannot know
//
// It is meant for tests and speaks no TLS: clients that ask for it are told
// that there is none.
package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// dialTimeout bounds the connection to a server whose host does not answer.
const dialTimeout = 10 * time.Second

// Proxy is a running proxy. Its methods are safe for concurrent use.
type Proxy struct {
	url      string
	listener net.Listener
	ctx      context.Context // ends with Close, and with it what is being dialed
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu      sync.Mutex
	server  address
	conns   map[*conn]struct{}
	rules   []*Rule
	refuses bool
	closed  bool
	latency time.Duration
	healed  chan struct{} // closed unless there is a black hole
}

// address is where the server listens.
type address struct{ network, address string }

// New starts a proxy for a test and closes it when the test ends.
func New(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	p, err := Start(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Start starts a proxy on a free port of the loopback interface.
func Start(databaseURL string) (*Proxy, error) {
	server, err := serverOf(databaseURL)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("pgproxy: %w", err)
	}
	p := &Proxy{
		listener: listener, server: server,
		conns: map[*conn]struct{}{}, healed: make(chan struct{}),
	}
	close(p.healed)
	p.ctx, p.stop = context.WithCancel(context.Background())
	if p.url, err = through(databaseURL, listener.Addr().(*net.TCPAddr)); err != nil {
		p.Close()
		return nil, err
	}
	p.running.Go(p.accept)
	return p, nil
}

// URL is the connection string to the database through the proxy.
func (p *Proxy) URL() string { return p.url }

// Close ends the proxy and its connections and waits until it has ended.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	_ = p.listener.Close() // fails only when it is closed already
	p.CutAll()
	p.running.Wait()
}

// Retarget makes new connections go to another server, such as the same one
// restarted on another port. Its connection string must name the same user,
// password and database, which clients have from [Proxy.URL].
func (p *Proxy) Retarget(databaseURL string) error {
	server, err := serverOf(databaseURL)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
	return nil
}

// On arms a rule: at the point, in a transaction that fits all filters, the
// action is taken, once unless [Always] is given. Rules are asked in the order
// in which they were armed, and the first that fits acts.
func (p *Proxy) On(at Point, action Action, filters ...Filter) *Rule {
	r := &Rule{proxy: p, at: at, action: action, fired: make(chan struct{})}
	for _, filter := range filters {
		filter(r)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// CutAll closes all connections that there are. New ones are let in.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	conns := slices.Collect(maps.Keys(p.conns))
	p.mu.Unlock() // a connection locks itself first and then the proxy
	for _, c := range conns {
		c.close()
	}
}

// Refuse closes new connections at once, until [Proxy.Accept].
func (p *Proxy) Refuse() { p.setRefuses(true) }

// Accept lets new connections in again.
func (p *Proxy) Accept() { p.setRefuses(false) }

func (p *Proxy) setRefuses(refuses bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = refuses
}

// Blackhole is a network partition: nothing gets through, neither data nor the
// end of a connection nor a new one, and nobody is told. After [Proxy.Heal]
// everything arrives late, as with TCP when it sends again.
func (p *Proxy) Blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.healed:
		p.healed = make(chan struct{})
	default: // there is one already
	}
}

// Heal ends the partition.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.healed:
	default:
		close(p.healed)
	}
}

// SetLatency delays the end of each answer of the server, its ReadyForQuery.
// The answers to requests that were sent together are delayed one after the
// other.
func (p *Proxy) SetLatency(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		c := newConn(p, client)
		if !p.add(c) {
			_ = client.Close()
			continue
		}
		p.running.Go(func() {
			defer p.remove(c)
			c.serve()
		})
	}
}

func (p *Proxy) add(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refuses {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) remove(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) dial() (net.Conn, error) {
	p.mu.Lock()
	server := p.server
	p.mu.Unlock()
	dialer := net.Dialer{Timeout: dialTimeout}
	return dialer.DialContext(p.ctx, server.network, server.address)
}

// network is what the current state of the network does to a message.
func (p *Proxy) network() (healed <-chan struct{}, latency time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.healed, p.latency
}

func serverOf(databaseURL string) (address, error) {
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return address{}, fmt.Errorf("pgproxy: %w", err)
	}
	network, at := pgconn.NetworkAddress(config.Host, config.Port)
	return address{network, at}, nil
}

// through returns the connection string with the proxy's address. It knows the
// two forms that PostgreSQL has, a URL and keyword=value pairs.
func through(databaseURL string, proxy *net.TCPAddr) (string, error) {
	if !strings.HasPrefix(databaseURL, "postgres://") && !strings.HasPrefix(databaseURL, "postgresql://") {
		// Of repeated keywords the last one counts.
		return fmt.Sprintf("%s host=%s port=%d sslmode=disable", databaseURL, proxy.IP, proxy.Port), nil
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", errors.New("pgproxy: the database's URL cannot be read") // err quotes its password
	}
	query := u.Query()
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable")
	u.Host, u.RawQuery = proxy.String(), query.Encode()
	return u.String(), nil
}
