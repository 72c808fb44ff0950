package providers_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/outboxd/outboxd/providers"
)

const marked = "the payload"

// brokenConn fails the write with the payload like a connection that the other
// side has reset. The header leaves before, in a write of its own.
type brokenConn struct{ net.Conn }

func (c brokenConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(marked)) {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: errors.New("broken pipe")}
	}
	return c.Conn.Write(p)
}

// A request whose end could not be written is not a doubt.
func TestPostWhoseLastWriteFails(t *testing.T) {
	t.Parallel()
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			mine, other := net.Pipe()
			go func() {
				defer other.Close()
				_, _ = io.Copy(io.Discard, other)
			}()
			return brokenConn{mine}, nil
		},
	}}
	_, e := post(t, client, "http://provider.test/", providers.Sending{Payload: []byte(marked)})
	if e == nil || e.Outcome != providers.Deferred || e.Code != providers.CodeNotWritten {
		t.Errorf("got %v, want deferred %s", e, providers.CodeNotWritten)
	}
}
