package providers

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

const (
	// replyGrace is how long a reply may still be read after the caller's
	// context has ended, provided that the whole request was handed over
	// before. A process that was paused wakes with its time-out in the past
	// and the reply in the socket's buffer: to drop it there would make a
	// doubt of a known outcome.
	replyGrace = 500 * time.Millisecond

	// replyBodyTime bounds the reading of a reply's body. The status is what
	// counts; the body only names the message, and the attempt stays open
	// until it is read.
	replyBodyTime = 5 * time.Second

	// maxReplyBody bounds what is kept of a reply.
	maxReplyBody = 64 << 10
)

// Codes of failures below the protocol, see [Error].Code.
const (
	// CodeNotConnected: no connection came about (DNS, dial, TLS).
	CodeNotConnected = "not_connected"
	// CodeNotWritten: the request did not leave completely.
	CodeNotWritten = "not_written"
	// CodeNotConfirmed: [Sending].Confirm refused.
	CodeNotConfirmed = "not_confirmed"
	// CodeNoReply: all was written and the connection ended without a reply.
	CodeNoReply = "no_reply"
	// CodeTimeout: all was written and the reply did not come in time.
	CodeTimeout = "timeout"
)

// NewHTTPClient returns a client for [Call] with a connection pool of its own,
// meant for about a hundred concurrent sends to one host.
//
// It has no time-out of its own, because the caller's context is the time-out.
// It speaks HTTP/1.1 only: with one send per connection, a broken connection
// puts one message in doubt and not all that happened to share it.
func NewHTTPClient() *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Client{
		CheckRedirect: keepRedirect,
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         dialer.DialContext,
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: 10 * time.Second,
			Protocols:           &protocols,
			DisableCompression:  true,
			MaxIdleConns:        256,
			MaxIdleConnsPerHost: 128,
			// Shorter than the 60 s after which common load balancers drop an
			// idle connection. A request that crosses such a close on the
			// wire would be in doubt for nothing.
			IdleConnTimeout: 30 * time.Second,
		},
	}
}

// keepRedirect makes the client return a 3xx as it is. A 307 or 308 would
// otherwise send the message again, and the credentials with it.
func keepRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Call is a POST that an adapter is about to make.
type Call struct {
	// Client is usually from [NewHTTPClient]. Its CheckRedirect is not used:
	// Call follows no redirect.
	Client *http.Client
	URL    string
	// Header is sent as it is; Content-Length is added.
	Header http.Header
}

// Reply is what came back, at least the status line of it.
type Reply struct {
	Status int
	Header http.Header
	// Body is what could be read, at most 64 KiB. It may be cut short or
	// empty: the status line has already said whether the provider accepted.
	Body []byte
}

// Post puts s.Payload on the wire exactly once and reads the reply.
//
// Once a status line was read there is no error. Before that there is an
// *[Error]: [Deferred] when the provider cannot hold a complete request, and
// [InDoubt] when the request was handed over and nothing came back.
//
// s.Confirm is called before the last 4 KiB of the payload are given to the
// HTTP client; when it fails, the connection is broken with the request
// incomplete.
//
// When ctx ends, a request that is not yet complete is broken off. For a
// complete one the reply may still arrive within half a second.
func (c Call) Post(ctx context.Context, s Sending) (Reply, error) {
	if len(s.Payload) == 0 {
		return Reply{}, Refuse("empty_payload", "nothing to send")
	}
	if err := ctx.Err(); err != nil {
		return Reply{}, &Error{Outcome: Deferred, Code: CodeNotConnected, Err: err}
	}
	x := &exchange{caller: ctx, body: &payloadReader{rest: s.Payload, confirm: s.Confirmed}}
	// Whatever happens, nothing of the payload is handed out after the
	// return. An early reply (413) ends the call while net/http still uploads.
	defer x.body.seal()

	wire, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { x.callerGone(cut) })()

	resp, err := c.do(httptrace.WithClientTrace(wire, x.trace()), x.body, len(s.Payload))
	if err != nil {
		return Reply{}, x.failure(err)
	}
	defer resp.Body.Close()
	defer time.AfterFunc(replyBodyTime, cut).Stop()
	// An unreadable body does not undo the status.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxReplyBody))
	return Reply{Status: resp.StatusCode, Header: resp.Header, Body: body}, nil
}

// errNoClient says that a Call has no client.
var errNoClient = errors.New("no HTTP client")

// do makes the request such that net/http cannot repeat it by itself.
func (c Call) do(ctx context.Context, body io.Reader, size int) (*http.Response, error) {
	if c.Client == nil {
		return nil, errNoClient
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, io.NopCloser(body))
	if err != nil {
		return nil, err
	}
	req.Header = c.Header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.ContentLength = int64(size)
	// With GetBody, net/http sends a POST again when a reused connection
	// breaks and an Idempotency-Key header is present: see isReplayable in
	// net/http/request.go. Nobody would learn of the first request.
	req.GetBody = nil

	once := *c.Client
	once.CheckRedirect = keepRedirect
	return once.Do(req)
}

// exchange is what is known about a request that is under way. The trace's
// functions run on goroutines of net/http.
type exchange struct {
	caller context.Context
	body   *payloadReader

	mu        sync.Mutex
	connected bool
	writeErr  error
}

func (x *exchange) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.connected = true
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.writeErr = info.Err
		},
	}
}

// callerGone runs when the caller's context has ended.
func (x *exchange) callerGone(cut context.CancelFunc) {
	if !x.body.seal() {
		cut() // never complete now
		return
	}
	time.AfterFunc(replyGrace, cut)
}

// failure classifies a request that got no status line.
func (x *exchange) failure(err error) *Error {
	complete := x.body.seal()
	x.mu.Lock()
	connected, writeErr := x.connected, x.writeErr
	x.mu.Unlock()
	gone := x.caller.Err()

	e := &Error{Err: transportError(err)}
	if gone != nil {
		e.Err = gone
	}
	switch {
	case x.body.refusal() != nil:
		e.Outcome, e.Code, e.Err = Deferred, CodeNotConfirmed, x.body.refusal()
	case !complete && !connected:
		e.Outcome, e.Code = Deferred, CodeNotConnected
	case !complete, writeErr != nil:
		e.Outcome, e.Code = Deferred, CodeNotWritten
	case gone != nil:
		e.Code = CodeTimeout
	default:
		e.Code = CodeNoReply
	}
	return e
}

// transportError keeps of err what is safe to log. Other errors of net/http
// quote the URL or bytes of the reply, and a reply may quote credentials.
func transportError(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op
	}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return cert
	}
	for _, known := range []error{io.ErrUnexpectedEOF, io.EOF, errNoClient} {
		if errors.Is(err, known) {
			return known
		}
	}
	return errors.New("connection broken or reply unreadable")
}

// errSealed ends a request whose call is over.
var errSealed = errors.New("the call is over")

// heldBack is how much of a payload is kept back until the caller has
// confirmed. One byte would do; a block of this size lets a small message leave
// in one write and is never long on its way.
const heldBack = 4 << 10

// payloadReader hands the payload to the HTTP client and keeps the end of it
// back until the caller has confirmed.
type payloadReader struct {
	mu        sync.Mutex
	rest      []byte
	confirm   func() error
	confirmed bool
	refused   error
	sealed    bool
}

// Read implements io.Reader.
func (r *payloadReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.refused != nil:
		return 0, r.refused
	case len(r.rest) == 0:
		return 0, io.EOF
	case r.sealed:
		return 0, errSealed
	case len(p) == 0:
		return 0, nil
	}
	ready := r.rest
	if early := len(r.rest) - heldBack; early > 0 {
		ready = r.rest[:early]
	} else if !r.confirmed {
		if r.refused = r.confirm(); r.refused != nil {
			return 0, r.refused
		}
		r.confirmed = true
	}
	n := copy(p, ready)
	r.rest = r.rest[n:]
	return n, nil
}

// seal stops the reader and reports whether it had handed out everything.
func (r *payloadReader) seal() (complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = true
	return len(r.rest) == 0
}

// refusal returns the error of the caller's Confirm.
func (r *payloadReader) refusal() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}
