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
	"net/url"
	"path"
	"strings"
	"sync"
	"testing"
	"time"
)

// Seen is an HTTP request that reached the provider.
type Seen struct {
	// Number counts requests from 1.
	Number int
	// Provider is the name of the dialect that the request is in; empty when
	// the provider speaks none at that path.
	Provider string
	At       time.Time
	Method   string
	Path     string
	Query    url.Values
	Header   http.Header
	// Connection is the client's end. Requests on one connection share it.
	Connection string
	// Body is complete unless Complete is false.
	Body     []byte
	Complete bool
	// Reference is the attempt's key, if the request is complete.
	Reference string
	// To are the recipients, if the request is complete.
	To []string
}

// HTTP is a programmable provider behind an HTTP API, or several of them on one
// listener.
type HTTP struct {
	*record
	services []*service
	mux      *http.ServeMux
	server   *http.Server
	url      string
	life     *life

	mu       sync.Mutex
	seen     []Seen
	unseen   int // how many requests were forgotten
	receive  func(Seen) Intake
	respond  func(Seen) Reaction
	searches searches
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

// service is one of the APIs that the provider speaks.
type service struct {
	Dialect
	keys *keys
}

// NewHTTP starts a provider on a free port and closes it when the test ends.
func NewHTTP(t testing.TB, dialects ...Dialect) *HTTP {
	t.Helper()
	p, err := StartHTTP("127.0.0.1:0", dialects...)
	if err != nil {
		t.Fatalf("start provider: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}

// StartHTTP starts a provider that listens on addr and speaks the given
// dialects, each at its own path.
func StartHTTP(addr string, dialects ...Dialect) (*HTTP, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &HTTP{
		record: newRecord(), mux: http.NewServeMux(),
		url: "http://" + l.Addr().String(), life: newLife(),
	}
	for _, d := range dialects {
		p.services = append(p.services, &service{Dialect: d, keys: newKeys(d.Keys)})
	}
	p.mux.HandleFunc("/", p.serve)
	p.server = &http.Server{
		Handler:           p.mux,
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

// Handle adds a page of the program around the provider: h answers requests
// that match pattern (see [http.ServeMux]). They are not recorded, and no script
// applies to them.
func (p *HTTP) Handle(pattern string, h http.Handler) { p.mux.Handle(pattern, h) }

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
// numbers, since the last [HTTP.Forget].
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
	i := r.Number - 1 - p.unseen
	if i < 0 {
		return // forgotten
	}
	for len(p.seen) <= i {
		p.seen = append(p.seen, Seen{})
	}
	p.seen[i] = r
}

// Forget drops what was accepted, what was seen and all idempotency keys, as if
// the provider were new. Numbers and ids go on.
func (p *HTTP) Forget() {
	p.mu.Lock()
	p.seen, p.unseen = nil, p.forget()
	p.mu.Unlock()
	for _, s := range p.services {
		s.keys.forget()
	}
}

// service returns the API that a request is for, or nil.
func (p *HTTP) service(at string) *service {
	for _, s := range p.services {
		if matched, _ := path.Match(s.Path, at); matched {
			return s
		}
	}
	return nil
}

func (p *HTTP) serve(w http.ResponseWriter, req *http.Request) {
	if !p.life.enter() {
		return
	}
	defer p.life.leave()
	if s := p.searched(req); s != nil {
		p.serveSearch(w, req, s)
		return
	}
	r := newSeen(req)
	r.Number = p.began()
	s := p.service(r.Path)
	if s != nil {
		r.Provider = s.Name
	}
	p.note(r)
	receive, respond := p.script()
	if in := receive(r); in.partial {
		r.Body, _ = io.ReadAll(io.LimitReader(req.Body, in.bytes))
		p.note(r)
		p.ends(r.handover().because(in.reaction))
		p.reactEarly(w, req, in.reaction)
		return
	}
	body, err := io.ReadAll(req.Body)
	r.Body, r.Complete = body, err == nil
	if !r.Complete {
		p.note(r)
		return
	}
	parsed := s.parse(r)
	r.Reference, r.To = parsed.Reference, parsed.To
	p.note(r)
	do, h := respond(r), r.handover()
	if do.accept || do.ordinary() {
		do = p.take(s, r, parsed, do, &h)
	}
	p.ends(h.because(do))
	p.react(w, do)
}

// parse looks at a complete request. A path of no service is refused as one.
func (s *service) parse(r Seen) Parsed {
	if s == nil || r.Method != http.MethodPost {
		return Parsed{Refusal: Reply(http.StatusNotFound, "")}
	}
	return s.Parse(r)
}

// newSeen returns what is known of a request before its body is read.
func newSeen(req *http.Request) Seen {
	return Seen{
		At: time.Now(), Method: req.Method, Path: req.URL.Path, Query: req.URL.Query(),
		Header: req.Header.Clone(), Connection: req.RemoteAddr,
	}
}

// react carries a reaction out.
func (p *HTTP) react(w http.ResponseWriter, do Reaction) {
	do.pause(p.life.over())
	switch {
	case do.isPlain():
		maps.Copy(w.Header(), do.header)
		w.WriteHeader(do.status)
		_, _ = io.WriteString(w, do.body)
	default:
		p.breakOff(w, do)
	}
}

// reactEarly does it while the client still sends. After an answer it takes what
// the client sends until that has seen the answer: a connection that is closed on
// somebody who sends is reset, and the answer is lost with it.
func (p *HTTP) reactEarly(w http.ResponseWriter, req *http.Request, do Reaction) {
	if !do.isPlain() {
		p.react(w, do)
		return
	}
	control := http.NewResponseController(w)
	_ = control.EnableFullDuplex() // HTTP/1 can
	p.react(w, do)
	_ = control.Flush()
	_, _ = io.Copy(io.Discard, req.Body) // until the client has gone
}

// take accepts r unless the service itself would refuse it or knows its key,
// and adds the service's answer to do unless do has one. What it did is in h.
func (p *HTTP) take(s *service, r Seen, parsed Parsed, do Reaction, h *Handover) Reaction {
	if !parsed.Refusal.ordinary() {
		return parsed.Refusal
	}
	id, processed, refusal := s.keys.admit(r, func() string {
		h.Accepted = true
		content := parsed.Content
		if content == nil {
			content = r.Body
		}
		return p.accept(Accepted{
			Provider: s.Name, Reference: r.Reference, Path: r.Path,
			From: parsed.From, To: parsed.To, Subject: parsed.Subject, Body: content,
		}, func(n int) string {
			if parsed.ID != "" {
				return parsed.ID
			}
			return fmt.Sprintf("%s-%d", s.Name, n)
		}).ID
	})
	if refusal != nil {
		return *refusal
	}
	h.ID, h.Replayed = id, !h.Accepted
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
