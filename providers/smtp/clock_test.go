package smtp_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/smtp"
)

// slowRelay is a relay on a pipe, for the clock of a synctest bubble. It waits
// before it answers the line that starts with slow ("." is the final dot).
func slowRelay(slow string, wait time.Duration) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			answer := func(line, reply string) bool {
				if strings.HasPrefix(line, slow) {
					<-time.After(wait)
				}
				_, err := io.WriteString(server, reply+"\r\n")
				return err == nil
			}
			lines := bufio.NewScanner(server)
			ok, content := answer("(greeting)", "220 relay.test"), false
			for ok && lines.Scan() {
				switch line := lines.Text(); {
				case content && line != ".":
				case line == "DATA":
					ok, content = answer(line, "354 go ahead"), true
				default:
					ok, content = answer(line, "250 ok"), false
				}
			}
		}()
		return client, nil
	}
}

// F4: the reply to the final dot may take nine minutes. What does not come in
// ten is in doubt, and every other silence is definite.
func TestSlowReplies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		slow string
		wait time.Duration
		want string
	}{
		{"dot, 9 minutes", ".", 9 * time.Minute, "accepted"},
		{"dot, 11 minutes", ".", 11 * time.Minute, "in_doubt"},
		{"greeting, 4 minutes", "(greeting)", 4 * time.Minute, "accepted"},
		{"greeting, 6 minutes", "(greeting)", 6 * time.Minute, "deferred"},
		{"MAIL, 4 minutes", "MAIL", 4 * time.Minute, "accepted"},
		{"MAIL, 6 minutes", "MAIL", 6 * time.Minute, "deferred"},
		{"RCPT, 6 minutes", "RCPT", 6 * time.Minute, "deferred"},
		{"DATA, 3 minutes", "DATA", 3 * time.Minute, "deferred"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, err := smtp.New(smtp.Config{
					Host: "relay.test", TLS: smtp.TLSNone, LocalName: "localhost",
					Dial: slowRelay(tt.slow, tt.wait),
				})
				if err != nil {
					t.Fatal(err)
				}
				got := "accepted"
				if _, err := p.Send(t.Context(), sending(t, p)); err != nil {
					got = providers.AsError(err).Outcome.String()
				}
				if got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				<-time.After(time.Hour) // the relay ends
			})
		})
	}
}

// Accepted is accepted: while the relay is slow to say goodbye, a crash would
// make a doubt of it.
func TestNothingIsWaitedForAfterAcceptance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := smtp.New(smtp.Config{
			Host: "relay.test", TLS: smtp.TLSNone, LocalName: "localhost",
			Dial: slowRelay("QUIT", time.Minute),
		})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := p.Send(t.Context(), sending(t, p)); err != nil {
			t.Errorf("got %v, want accepted", err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v", took)
		}
		<-time.After(time.Hour)
	})
}

// The caller's context bounds everything, the wait for the dot too.
func TestContextBoundsTheFinalReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := smtp.New(smtp.Config{
			Host: "relay.test", TLS: smtp.TLSNone, LocalName: "localhost",
			Dial: slowRelay(".", 9*time.Minute),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = p.Send(ctx, sending(t, p))
		if e := providers.AsError(err); e.Outcome != providers.InDoubt || e.Code != providers.CodeTimeout {
			t.Errorf("got %v, want in doubt %s", err, providers.CodeTimeout)
		}
		<-time.After(time.Hour)
	})
}
