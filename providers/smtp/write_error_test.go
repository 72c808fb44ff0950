package smtp_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/smtp"
)

// cutConn fails the write that has the given bytes in it, after half of it.
type cutConn struct {
	net.Conn
	at []byte
}

func (c cutConn) Write(p []byte) (int, error) {
	if !bytes.Contains(p, c.at) {
		return c.Conn.Write(p)
	}
	n, _ := c.Conn.Write(p[:len(p)/2])
	return n, &net.OpError{Op: "write", Net: "tcp", Err: errors.New("broken pipe")}
}

// As long as the dot has not reached the kernel, nothing is in doubt.
func TestWriteErrors(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]string{
		"in the content": "marker", "at the dot": "\r\n.\r\n", "at MAIL": "MAIL FROM", "at DATA": "DATA\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
			config, err := smtp.ParseURL(relay.URL())
			if err != nil {
				t.Fatal(err)
			}
			config.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				var d net.Dialer
				conn, err := d.DialContext(ctx, network, addr)
				return cutConn{conn, []byte(at)}, err
			}
			p, err := smtp.New(config)
			if err != nil {
				t.Fatal(err)
			}
			s := sending(t, p, func(r *providers.Request) {
				r.Message.HTML = ""
				r.Message.Text = "marker\r\n" + strings.Repeat("line\r\n", 2000)
			})
			e := failure(t, p, s)
			if e.Outcome != providers.Deferred || e.Code != providers.CodeNotWritten {
				t.Errorf("got %v, want deferred %s", e, providers.CodeNotWritten)
			}
			relay.Close()
			if n := len(relay.Accepted()); n != 0 {
				t.Errorf("%d accepted, want none", n)
			}
		})
	}
}
