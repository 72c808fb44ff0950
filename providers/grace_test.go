package providers_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// pipeClient returns a client whose connections are answered by serve, without
// a socket, so that it can run on the clock of a synctest bubble.
func pipeClient(t *testing.T, serve func(conn net.Conn)) *http.Client {
	t.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				req, err := http.ReadRequest(bufio.NewReader(server))
				if err != nil {
					return
				}
				if _, err := io.Copy(io.Discard, req.Body); err != nil {
					return
				}
				serve(server)
			}()
			return client, nil
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A process that wakes after its time-out may find the reply already there:
// the reply gets a short grace, and no more than that.
func TestPostGivesALateReplyAShortGrace(t *testing.T) {
	t.Parallel()
	const timeout = 30 * time.Second
	tests := []struct {
		name   string
		after  time.Duration
		status int
	}{
		{"in time", timeout - time.Second, 202},
		{"just after the time-out", timeout + 400*time.Millisecond, 202},
		{"long after the time-out", timeout + time.Minute, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := pipeClient(t, func(conn net.Conn) {
					<-time.After(tt.after)
					_, _ = io.WriteString(conn, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
				})
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				began := time.Now()
				call := providers.Call{Client: client, URL: "http://provider.test/"}
				reply, err := call.Post(ctx, providers.Sending{Payload: []byte("payload")})
				took := time.Since(began)
				e := providers.AsError(err)
				switch {
				case tt.status != 0 && (err != nil || reply.Status != tt.status):
					t.Errorf("got %d, %v, want %d", reply.Status, err, tt.status)
				case tt.status == 0 && (e.Outcome != providers.InDoubt || e.Code != providers.CodeTimeout):
					t.Errorf("got %v, want in doubt %s", err, providers.CodeTimeout)
				case took > timeout+time.Second:
					t.Errorf("took %v", took)
				}
				<-time.After(2 * tt.after) // the provider ends
			})
		})
	}
}

// The status says that it was accepted; a body that never ends only delays.
func TestPostDoesNotWaitForAnEndlessBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := pipeClient(t, func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"id\":")
			_, _ = io.Copy(io.Discard, conn) // until the client gives up
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		call := providers.Call{Client: client, URL: "http://provider.test/"}
		reply, err := call.Post(ctx, providers.Sending{Payload: []byte("payload")})
		if err != nil || reply.Status != 200 || string(reply.Body) != `{"id":` {
			t.Errorf("got %d %q, %v, want the beginning of the body", reply.Status, reply.Body, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
	})
}
