package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers/providertest"
)

// F1: 5,000 concurrent deliveries through one adapter. What the provider accepts
// is what was enqueued: nothing twice, nothing lost, no content under the key of
// another.
func TestF1ConcurrentDeliveries(t *testing.T) {
	t.Parallel()
	const perBatch, workers = 100, 50
	batches := 50
	if testing.Short() {
		batches = 5
	}
	d := newDelivering(t)
	d.provider.ForgetBodies()
	ids := make(chan uuid.UUID, batches*perBatch)
	for i := range batches {
		s := submission(d.org, "")
		for n := range perBatch {
			m := s.Messages[0]
			m.Subject = fmt.Sprintf("Mail %d", i*perBatch+n)
			s.Messages = append(s.Messages, m)
		}
		s.Messages, s.Batch = s.Messages[1:], true
		receipt, err := d.client.Enqueue(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range receipt.IDs {
			ids <- id
		}
	}
	close(ids)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for id := range ids {
				if wait, err := d.deliverer.Deliver(context.Background(), id); wait != 0 || err != nil {
					t.Errorf("%s waits %v, error %v", id, wait, err)
				}
			}
		})
	}
	wg.Wait()
	var got []string
	for _, a := range d.provider.Accepted() {
		got = append(got, a.Reference+" "+a.Subject)
	}
	slices.Sort(got)
	rows, err := d.pool.Query(t.Context(), `SELECT a.provider_key::text || ' ' || c.subject
		FROM outbox.emails e JOIN outbox.attempts a ON a.email_id = e.id
			JOIN outbox.email_contents c ON c.email_id = e.id WHERE e.status = 'sent'`)
	if err != nil {
		t.Fatal(err)
	}
	want, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if len(want) != batches*perBatch || !slices.Equal(got, want) {
		t.Errorf("%d were enqueued, %d are sent, %d were accepted, and they differ", batches*perBatch, len(want), len(got))
	}
}

// F8: however often others sweep and look while a send goes on, and whoever is
// given its job: as long as its owner lives, it is left to its owner.
func TestF8OthersLookDuringTheSend(t *testing.T) {
	t.Parallel()
	const looks = 20
	d := newDelivering(t)
	owner := d.deliverer
	neighbour := d.newDeliverer(newSendGrid(t, d.provider.URL()))
	id := d.enqueue()
	d.running(id, d.worker)
	s := d.sweeper()
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		for range looks {
			if err := s.Sweep(context.Background()); err != nil {
				t.Error(err)
			}
			if wait, err := neighbour.Deliver(context.Background(), id); wait == 0 || err != nil {
				t.Errorf("the neighbour waits %v, error %v; want that it looks again", wait, err)
			}
		}
		return providertest.Accept()
	})
	if _, err := owner.Deliver(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	if j := d.job(id); j.state != "running" || j.errors != 0 {
		t.Errorf("job = %+v, want running as it was", j)
	}
	if email := d.get(id); email.Status != outbox.StatusSent || len(email.Attempts) != 1 || d.provider.Requests() != 1 {
		t.Errorf("status %s, attempts %+v after %d requests, want one", email.Status, email.Attempts, d.provider.Requests())
	}
}

// F9: whatever River says of the job of an email that is sent, running it
// again does nothing.
func TestF9SentEmailIsNotSentAgain(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.deliver(id)
	s := d.sweeper()
	d.exec("UPDATE outbox.emails SET created_at = now() - interval '1 minute'")
	for _, state := range []string{"available", "running", "retryable", "scheduled"} {
		d.exec("UPDATE outbox.river_job SET state = $1::text::outbox.river_job_state", state)
		d.sweep(s)
		if wait := d.deliver(id); wait != 0 {
			t.Errorf("%s: the email waits %v", state, wait)
		}
	}
	if email := d.get(id); email.Status != outbox.StatusSent || len(email.Attempts) != 1 || d.provider.Requests() != 1 {
		t.Errorf("status %s, attempts %+v after %d requests, want one", email.Status, email.Attempts, d.provider.Requests())
	}
}

// F28: with a job in hand and a database that has become read-only, nothing is
// begun; when it is writable again, the email is sent.
func TestF28ReadOnlyBeforeBegin(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.setReadOnly("on")
	if wait, err := d.deliverer.Deliver(context.Background(), id); wait == 0 && err == nil {
		t.Error("the job is over")
	}
	if email := d.get(id); email.Status != outbox.StatusQueued || len(email.Attempts) != 0 || d.provider.Requests() != 0 {
		t.Errorf("status %s, attempts %+v after %d requests, want none", email.Status, email.Attempts, d.provider.Requests())
	}
	d.setReadOnly("off")
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusSent || len(email.Attempts) != 1 || d.provider.Requests() != 1 {
		t.Errorf("status %s, attempts %+v after %d requests, want one", email.Status, email.Attempts, d.provider.Requests())
	}
}

// setReadOnly makes the database read-only, on or off, for the sessions of the
// pool.
func (d *delivering) setReadOnly(value string) {
	d.t.Helper()
	ctx := context.Background()
	cfg := d.pool.Config().ConnConfig
	cfg.RuntimeParams["default_transaction_read_only"] = "off" // of this session
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = `+value+`', current_database());
	END $$`)
	if err != nil {
		d.t.Fatal(err)
	}
	d.pool.Reset()
}
