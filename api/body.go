package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// freeBody is how much of a body is read before a share of the memory for
	// bodies is asked for. Whoever sends nothing holds no share, and small bodies
	// never wait for one.
	freeBody = 16 << 10

	// bodyMemory is the memory for bodies beyond that, in one process, at least.
	bodyMemory = 64 << 20
	// hookMemory is that of /hooks: they are open to everybody, and what comes
	// there must not keep emails out.
	hookMemory = 16 << 20
	// memoryTimeout bounds how long a body waits for its share.
	memoryTimeout = 5 * time.Second

	// A body may pause for bodyGrace in all, and else comes at bodyRate bytes a
	// second, or the connection is cut.
	bodyGrace = 15 * time.Second
	bodyRate  = 64 << 10

	// answerTimeout bounds how long a client may take to read its answer. It
	// counts from when the body was read: the server's own counts from before.
	answerTimeout = time.Minute
)

// requestBody is the body of a request on its way in.
type requestBody struct {
	io.ReadCloser
	control *http.ResponseController
	length  int64 // bytes; -1: unknown
	began   time.Time
	held    func() // gives the memory back; nil: none is held
}

// guardBody gives the body of a request a time to arrive, and ends its share of
// the memory with the request: until then the body lives on as an email.
func guardBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		b := &requestBody{ReadCloser: r.Body, control: http.NewResponseController(w), length: r.ContentLength, began: time.Now()}
		defer b.release()
		// Also for a body that nobody reads: the server reads it before it answers.
		b.expect(0)
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// expect sets the time by which so many bytes must be here. A connection that
// knows no deadlines, as in tests, has none.
func (b *requestBody) expect(bytes int) {
	_ = b.control.SetReadDeadline(b.began.Add(bodyGrace + time.Duration(bytes)*time.Second/bodyRate))
}

func (b *requestBody) release() {
	if b.held != nil {
		b.held()
		b.held = nil
	}
}

var errNoMemory = errors.New("too many large request bodies at once")

// reserve waits for a share of the memory.
func (b *requestBody) reserve(ctx context.Context, memory *semaphore.Weighted, bytes int64) error {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	if err := memory.Acquire(ctx, bytes); err != nil {
		return unavailable(fmt.Errorf("%w: %w", errNoMemory, err))
	}
	b.held = func() { memory.Release(bytes) }
	b.began = time.Now() // the client is not to blame for the wait
	return nil
}

// readAll reads a body within a limit. Its memory is asked for at once and not as
// the body grows: those that hold a part would wait for each other.
func readAll(r *http.Request, limit int64, memory *semaphore.Weighted) ([]byte, error) {
	b, ok := r.Body.(*requestBody)
	if !ok {
		return nil, nil // there is none
	}
	if b.length > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	size := limit
	if b.length >= 0 {
		size = b.length
	}
	body, err := b.read(make([]byte, 0, min(size+1, 4<<10)), min(size+1, freeBody))
	if err == nil { // there is more
		if err := b.reserve(r.Context(), memory, size); err != nil {
			return nil, err
		}
		if b.length >= 0 {
			body = append(make([]byte, 0, size+1), body...)
		}
		body, err = b.read(body, size+1)
	}
	switch {
	case err == nil:
		return nil, &http.MaxBytesError{Limit: limit}
	case !errors.Is(err, io.EOF):
		e := problem(http.StatusBadRequest, "invalid_json", "The request body ended early, or did not come in time.")
		e.cause = err
		return nil, e
	}
	// What is done with it has time-outs of its own, and a deadline that passes
	// meanwhile would look as if the client had gone.
	_ = b.control.SetReadDeadline(time.Time{})
	_ = b.control.SetWriteDeadline(time.Now().Add(answerTimeout))
	return body, nil
}

// read appends to buf until it holds so many bytes, or the body ends with io.EOF.
func (b *requestBody) read(buf []byte, until int64) ([]byte, error) {
	for int64(len(buf)) < until {
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(2*int64(cap(buf)), until))
			copy(grown, buf)
			buf = grown
		}
		b.expect(len(buf))
		n, err := b.ReadCloser.Read(buf[len(buf):min(int64(cap(buf)), until)])
		buf = buf[:len(buf)+n]
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}
