package providertest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/outboxd/outboxd/providers"
)

// testContext checks that a send ends with its context, and what that says.
func testContext(t *testing.T, s Suite) {
	t.Run("ended before", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, e := b.send(ctx, t, b.sending(t, 1, false))
		b.server.Close()
		if outcome(e) != "deferred" || !errors.Is(e, context.Canceled) {
			t.Errorf("outcome %v, want deferred by the context", e)
		}
		if n := len(b.server.Accepted()); n != 0 {
			t.Errorf("%d accepted, want none", n)
		}
	})
	t.Run("ended during the upload", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, s)
		b.server.Break(StallUpload)
		sending := b.sending(t, 1, true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			_ = b.server.WaitRequests(ctx, 1)
			cancel()
		}()
		_, e := b.send(ctx, t, sending)
		b.server.Close()
		if outcome(e) != "deferred" {
			t.Errorf("outcome %v, want deferred", e)
		}
		if n := len(b.server.Accepted()); n != 0 {
			t.Errorf("%d accepted, want none", n)
		}
	})
	t.Run("ended while waiting for the reply", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, s)
		b.server.Break(HangReply)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			_ = b.server.WaitAccepted(ctx, 1)
			cancel()
		}()
		_, e := b.send(ctx, t, b.sending(t, 1, false))
		if outcome(e) != "in_doubt" || e.Code != providers.CodeTimeout {
			t.Errorf("outcome %v, want in doubt %s", e, providers.CodeTimeout)
		}
	})
}

// errFence is the error of a caller that has lost the attempt.
var errFence = errors.New("the attempt is no longer ours")

// testConfirm checks the last question before a message becomes irrevocable.
func testConfirm(t *testing.T, s Suite) {
	for name, large := range map[string]bool{"small": false, "large": true} {
		t.Run("refused, "+name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, s)
			sending := b.sending(t, 1, large)
			sending.Confirm = func() error { return errFence }
			_, e := b.send(patient(t), t, sending)
			b.server.Close()
			if outcome(e) != "deferred" || !errors.Is(e, errFence) {
				t.Errorf("outcome %v, want deferred that wraps the refusal", e)
			}
			if n := len(b.server.Accepted()); n != 0 {
				t.Errorf("%d accepted, want none", n)
			}
		})
	}
	t.Run("asked once, before acceptance", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, s)
		sending := b.sending(t, 1, false)
		var asked atomic.Int32
		sending.Confirm = func() error {
			asked.Add(1)
			if n := len(b.server.Accepted()); n != 0 {
				t.Error("asked when the message was accepted")
			}
			return nil
		}
		if _, e := b.send(patient(t), t, sending); e != nil {
			t.Errorf("send: %v", e)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times, want once", n)
		}
	})
}

// testSecrets makes the provider quote the credentials in its answers. The
// check itself is in every send.
func testSecrets(t *testing.T, s Suite) {
	for name, fault := range map[string]Fault{
		"in a refusal": EchoCredentials, "in garbage": GarbageEcho,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, s)
			b.server.Break(fault)
			if _, e := b.send(patient(t), t, b.sending(t, 1, false)); e == nil {
				t.Error("accepted, want an error")
			}
		})
	}
}
