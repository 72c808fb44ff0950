package providertest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Seen is an HTTP request that reached the provider.
type Seen struct {
	// Number counts requests from 1.
	Number int
	At     time.Time
	Method string
	Path   string
	Header http.Header
	// Connection is the client's end. Requests on one connection share it.
	Connection string
	// Body is complete unless Complete is false.
	Body     []byte
	Complete bool
	// Reference is the attempt's key, if the request is complete.
	Reference string
}

// HTTP is a programmable provider behind an HTTP API.
type HTTP struct {
	*record
	dialect Dialect
	server  *http.Server
	url     string
	life    *life
	keys    *keys

	mu      sync.Mutex
	seen    []Seen
	receive func(Seen) Intake
	respond func(Seen) Reaction
}

// Intake is how much of a request's body is read.
type Intake struct {
	partial  bool
	bytes    int64
	reaction Reaction
}

// ReadAll reads the whole request, which is the ordinary course.
func ReadAll() Intake { return Intake{} }

// ReadThen reads n bytes of the body and then reacts: with Reset in the middle
// of the upload, with Hang to a client that must give up, with Reply early.
func ReadThen(n int64, r Reaction) Intake {
	return Intake{partial: true, bytes: n, reaction: r}
}

// NewHTTP starts a provider on a free port and closes it when the test ends.
func NewHTTP(t testing.TB, d Dialect) *HTTP {
	t.Helper()
	p, err := StartHTTP("127.0.0.1:0", d)
	if err != nil {
		t.Fatalf("start provider: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}

// StartHTTP starts a provider that listens on addr.
func StartHTTP(addr string, d Dialect) (*HTTP, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &HTTP{
		record: newRecord(), dialect: d, keys: newKeys(d.Keys),
		url: "http://" + l.Addr().String(), life: newLife(),
	}
	p.server = &http.Server{
		Handler:           http.HandlerFunc(p.serve),
		ReadHeaderTimeout: time.Minute,
		// Broken connections are the point here.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	p.life.run(func() { _ = p.server.Serve(smallBuffers{l}) })
	return p, nil
}

// Close stops the provider and breaks its connections.
func (p *HTTP) Close() {
	p.life.end(func() { _ = p.server.Close() })
}

// URL returns the base URL.
func (p *HTTP) URL() string { return p.url }

// Respond sets what happens to requests that were read completely. It is called
// on one goroutine per request. Nil means to accept.
func (p *HTTP) Respond(f func(Seen) Reaction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.respond = f
}

// Receive sets how much of each request is read. Nil means all.
func (p *HTTP) Receive(f func(Seen) Intake) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.receive = f
}

// Seen returns all requests whose header was read, in the order of their
// numbers.
func (p *HTTP) Seen() []Seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Seen(nil), p.seen...)
}

// script returns the functions that are set.
func (p *HTTP) script() (func(Seen) Intake, func(Seen) Reaction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	receive, respond := p.receive, p.respond
	if receive == nil {
		receive = func(Seen) Intake { return ReadAll() }
	}
	if respond == nil {
		respond = func(Seen) Reaction { return Accept() }
	}
	return receive, respond
}

// note records r, over the earlier note of the same request. [HTTP.ForgetBodies]
// leaves the body out.
func (p *HTTP) note(r Seen) {
	if p.forgets() {
		r.Body = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.seen) < r.Number {
		p.seen = append(p.seen, Seen{})
	}
	p.seen[r.Number-1] = r
}

func (p *HTTP) serve(w http.ResponseWriter, req *http.Request) {
	if !p.life.enter() {
		return
	}
	defer p.life.leave()
	r := Seen{
		Number: p.began(), At: time.Now(),
		Method: req.Method, Path: req.URL.Path, Header: req.Header.Clone(),
		Connection: req.RemoteAddr,
	}
	p.note(r)
	receive, respond := p.script()
	if in := receive(r); in.partial {
		r.Body, _ = io.ReadAll(io.LimitReader(req.Body, in.bytes))
		p.note(r)
		p.react(w, in.reaction)
		return
	}
	body, err := io.ReadAll(req.Body)
	r.Body, r.Complete = body, err == nil
	if !r.Complete {
		p.note(r)
		return
	}
	parsed := p.dialect.Parse(r)
	r.Reference = parsed.Reference
	p.note(r)
	do := respond(r)
	if do.accept || do.ordinary() {
		do = p.take(r, parsed, do)
	}
	p.react(w, do)
}

// react carries a reaction out.
func (p *HTTP) react(w http.ResponseWriter, do Reaction) {
	do.pause(p.life.over())
	switch {
	case do.answer && !do.raw && do.end == keep:
		maps.Copy(w.Header(), do.header)
		w.WriteHeader(do.status)
		_, _ = io.WriteString(w, do.body)
	default:
		p.breakOff(w, do)
	}
}

// take accepts r unless the service itself would refuse it or knows its key,
// and adds the service's answer to do unless do has one.
func (p *HTTP) take(r Seen, parsed Parsed, do Reaction) Reaction {
	if r.Method != http.MethodPost || r.Path != p.dialect.Path {
		return Reply(http.StatusNotFound, "")
	}
	if !parsed.Refusal.ordinary() {
		return parsed.Refusal
	}
	id, processed, refusal := p.keys.admit(r, func() string {
		content := parsed.Content
		if content == nil {
			content = r.Body
		}
		return p.accept(Accepted{Reference: r.Reference, Path: r.Path, Body: content}, func(n int) string {
			return fmt.Sprintf("%s-%d", p.dialect.Name, n)
		}).ID
	})
	if refusal != nil {
		return *refusal
	}
	do.processed = processed
	if do.answer || do.end != keep {
		return do
	}
	return do.Then(parsed.Accepted(id))
}

// breakOff takes the connection over and ends it as do says.
func (p *HTTP) breakOff(w http.ResponseWriter, do Reaction) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		panic("providertest: the connection cannot be taken over")
	}
	conn, rw, err := hijacker.Hijack()
	if err != nil {
		return
	}
	if do.answer {
		_ = writeAnswer(rw.Writer, do)
	}
	if do.answer && do.end == reset {
		// A reset would drop the answer that is on its way.
		_ = conn.Close()
		return
	}
	if do.end == reset {
		hardClose(conn)
		return
	}
	defer conn.Close()
	defer p.life.closeWith(conn)()
	// Reads on without an answer until the client gives up.
	_, _ = io.Copy(io.Discard, rw)
}

func writeAnswer(w *bufio.Writer, do Reaction) error {
	if do.raw {
		_, err := w.WriteString(do.body)
		return errors.Join(err, w.Flush())
	}
	response := &http.Response{
		StatusCode: do.status, ProtoMajor: 1, ProtoMinor: 1, Header: do.header,
		Body: io.NopCloser(strings.NewReader(do.body)), ContentLength: int64(len(do.body)),
	}
	return errors.Join(response.Write(w), w.Flush())
}
