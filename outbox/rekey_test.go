package outbox_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// rekey seals all under the first of the keys, and returns what is in use then.
func (d *delivering) rekey(ids ...string) (outbox.Rekeyed, map[string]int) {
	d.t.Helper()
	done, err := outbox.Rekey(context.Background(), d.pool, ring(d.t, ids...), nil)
	must(d.t, err)
	use, err := outbox.KeyUse(context.Background(), d.pool)
	must(d.t, err)
	return done, use
}

// From clear to one key and to the next: the same is read, and it is found by the
// same addresses. What has no key in the ring stays as it is and is counted.
func TestRekey(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	w := d.webhook("http://127.0.0.1:1", outbox.WebhookSent)
	_, err := d.client.RotateWebhookSecret(context.Background(), d.org, w.ID)
	must(t, err)
	secret := d.read(w).Secret
	ids := []uuid.UUID{d.enqueue(func(m *outbox.Message) { *m = canaries() }), d.enqueue()}
	want := d.get(ids[0]).Message
	d.suppress(outbox.SuppressionManual, "jane@example.org")
	d.deliver(ids[1])
	for i, step := range []struct {
		keys       []string
		sealed     int
		unreadable map[string]int
		use        map[string]int
	}{
		{[]string{"k1"}, 3, map[string]int{}, map[string]int{"k1": 3}},
		{[]string{"k1"}, 0, map[string]int{}, map[string]int{"k1": 3}},
		{[]string{"k2", "k1"}, 3, map[string]int{}, map[string]int{"k2": 3}},
		{[]string{"k3"}, 0, map[string]int{"k2": 3}, map[string]int{"k2": 3}},
	} {
		done, use := d.rekey(step.keys...)
		if diff := cmp.Diff(outbox.Rekeyed{Sealed: step.sealed, Unreadable: step.unreadable}, done); diff != "" {
			t.Errorf("step %d:\n%s", i, diff)
		}
		if diff := cmp.Diff(step.use, use); diff != "" {
			t.Errorf("step %d: in use\n%s", i, diff)
		}
	}
	if found := findings(t, d.pool, "canary"); found != nil {
		t.Errorf("it can be read: %v", found)
	}
	d.client, err = outbox.NewClient(d.pool, outbox.Config{Keys: ring(t, "k2"), AllowPrivateWebhooks: true})
	must(t, err)
	if diff := cmp.Diff(want, d.get(ids[0]).Message); diff != "" {
		t.Errorf("it reads differently:\n%s", diff)
	}
	if !d.foundBy("canary-cc@example.org") || !d.foundBy("jane@example.org") {
		t.Error("an email is not found by its recipient")
	}
	if got := d.get(ids[1]).SuppressedRecipients; !cmp.Equal(got, []string{"jane@example.org"}) {
		t.Errorf("suppressed %v", got)
	}
	if got := d.read(w).Secret; got != secret {
		t.Error("the webhook has another secret")
	}
}

// Rekey while workers deliver and others submit under the old key: every email is
// sent once, and a second run leaves nothing under the old one.
func TestRekeyDuringDelivery(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.useKeys("old", "new")
	submit := d.client
	const n = 60
	var ids []uuid.UUID
	for range n {
		ids = append(ids, d.enqueue())
	}
	d.suppress(outbox.SuppressionManual, "joe@example.org")
	var late []uuid.UUID
	var wg sync.WaitGroup
	wg.Go(func() { d.rekey("new", "old") })
	wg.Go(func() {
		for range n {
			s := submission(d.org, "")
			s.Messages[0].Cc = []string{"joe@example.org"}
			receipt, err := submit.Enqueue(context.Background(), s)
			if err != nil {
				t.Error(err)
				return
			}
			late = append(late, receipt.IDs...)
		}
	})
	wg.Go(func() {
		for _, id := range ids {
			if _, err := d.deliverer.Deliver(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	wg.Go(func() { d.rekey("new", "old") })
	for _, id := range late {
		d.deliver(id)
	}
	wg.Wait()
	if _, use := d.rekey("new", "old"); !cmp.Equal(use, map[string]int{"new": 2 * n}) {
		t.Errorf("in use: %v", use)
	}
	reader, err := outbox.NewClient(d.pool, outbox.Config{Keys: ring(t, "new")})
	must(t, err)
	d.client = reader
	for _, id := range append(ids, late...) {
		if email := d.get(id); email.Status != outbox.StatusSent || len(email.Attempts) != 1 || email.Message.Text != "Thank you." {
			t.Errorf("status %s (%s), %d attempts", email.Status, email.Reason, len(email.Attempts))
		}
	}
	if r := d.provider.Requests(); r != 2*n {
		t.Errorf("%d requests, want %d", r, 2*n)
	}
}

// An end in the middle loses nothing: the next run goes on. Large emails go alone.
func TestRekeyInBatches(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	large := outbox.Attachment{Filename: "large", Content: make([]byte, 5<<20)}
	for range 3 {
		d.enqueue(func(m *outbox.Message) { m.Attachments = []outbox.Attachment{large} })
	}
	for range 150 {
		d.enqueue()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var steps []int
	_, err := outbox.Rekey(ctx, d.pool, ring(t, "k1"), func(done int) {
		steps = append(steps, done)
		if len(steps) == 2 {
			cancel()
		}
	})
	if err == nil || !cmp.Equal(steps, []int{1, 2}) {
		t.Errorf("cut off after %v, error %v", steps, err)
	}
	if done, use := d.rekey("k1"); done.Sealed != 151 || !cmp.Equal(use, map[string]int{"k1": 153}) {
		t.Errorf("sealed %d, in use %v", done.Sealed, use)
	}
}

// A webhook's secret signs as before when it is sealed.
func TestSealedWebhookSecretSigns(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	r := newReceiver(t, status(204))
	keys := ring(t, "k1")
	var err error
	d.client, err = outbox.NewClient(d.pool, outbox.Config{AllowPrivateWebhooks: true, Keys: keys})
	must(t, err)
	d.kill()
	d.deliverer = d.newDelivererWith(outbox.WorkerConfig{
		Providers: []providers.Provider{newSendGrid(t, d.provider.URL())}, AllowPrivateWebhooks: true, Keys: keys,
	})
	w := d.webhook(r.server.URL, outbox.WebhookSent)
	first := w.Secret
	second, err := d.client.RotateWebhookSecret(context.Background(), d.org, w.ID)
	must(t, err)
	if got := d.read(w).Secret; got != second {
		t.Errorf("secret %s, want %s", got, second)
	}
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.webhooks WHERE length(secret) > 32 AND secret_key_id = 'k1' AND previous_secret_key_id = 'k1'"); n != 1 {
		t.Error("the secrets are not sealed")
	}
	d.sent()
	d.tell(d.message(w).ID)
	for _, secret := range []string{first, second} {
		must(t, r.got()[0].verify(secret))
	}
}
