package outbox_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/pgproxy"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers/providertest"
)

// Attempts that are under way at the same time begin together and end together, each
// with its own call between the two (I7), and each email is sent once.
func TestAttemptsShareTransactions(t *testing.T) {
	t.Parallel()
	const emails = 20
	d := newDelivering(t)
	proxy := pgproxy.New(t, d.pool.Config().ConnString()+"&pool_max_conns=40")
	pool, err := pgxpool.New(context.Background(), proxy.URL()+"&pool_max_conns=40")
	must(t, err)
	t.Cleanup(pool.Close)
	d.pool = pool
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
	ids := make([]uuid.UUID, emails)
	for i := range ids {
		ids[i] = d.enqueue()
	}

	// The two that begin first are held, and so the others come together.
	release := make(chan struct{})
	held := make([]*pgproxy.Rule, 2)
	for i := range held {
		held[i] = proxy.On(pgproxy.Autocommit, pgproxy.HoldBefore(release), pgproxy.Saw("INSERT INTO outbox.attempts"))
	}
	var all sync.WaitGroup
	defer all.Wait()
	deliver := func(id uuid.UUID) { all.Go(func() { d.deliver(id) }) }
	deliver(ids[0])
	<-held[0].Fired()
	deliver(ids[1])
	<-held[1].Fired()
	for _, id := range ids[2:] {
		deliver(id)
	}
	eventually(t, func() bool { return d.deliverer.Beginning() == emails-2 })
	close(release)
	all.Wait()

	// The time of a transaction is in the deadlines of what began in it.
	if n := d.count("SELECT count(DISTINCT deadline) FROM outbox.attempts"); n > 4 {
		t.Errorf("%d attempts began in %d transactions", emails, n)
	}
	if n := d.count("SELECT count(*) FROM outbox.emails WHERE status = 'sent' AND attempts = 1 AND NOT possible_duplicate"); n != emails {
		t.Errorf("%d emails are sent, want %d", n, emails)
	}
	if n := len(d.provider.Accepted()); n != emails {
		t.Errorf("the provider accepted %d", n)
	}
}

// Two workers' jobs for one email in one process do not spoil each other's
// transactions, nor those of others: one of them sends it.
func TestOneEmailTwiceInAGroup(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	ids := []uuid.UUID{d.enqueue(), d.enqueue(), d.enqueue()}
	var all sync.WaitGroup
	for _, id := range append(ids, ids...) {
		all.Go(func() { d.deliver(id) })
	}
	all.Wait()
	if n := len(d.provider.Accepted()); n != len(ids) {
		t.Errorf("the provider accepted %d, want %d", n, len(ids))
	}
	for _, id := range ids {
		if e := d.get(id); e.Status != outbox.StatusSent || len(e.Attempts) != 1 {
			t.Errorf("%s after %d attempts", e.Status, len(e.Attempts))
		}
	}
}

// What is large is loaded by itself, in clear and sealed, and arrives whole.
func TestLargeEmailArrivesWhole(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string][]string{"in clear": nil, "sealed": {"k1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			d.useKeys(keys...)
			long := strings.Repeat("long ", 40_000)
			changes := []func(*outbox.Message){
				func(m *outbox.Message) { m.Text = "short and whole" },
				func(m *outbox.Message) { m.Text = long + "text and whole" },
				func(m *outbox.Message) { m.HTML = long + "html and whole" },
				func(m *outbox.Message) {
					m.Text, m.Attachments = long+"file and whole", []outbox.Attachment{{Filename: "a.txt", Content: []byte("attached")}}
				},
			}
			var all sync.WaitGroup
			for _, change := range changes {
				id := d.enqueue(change)
				all.Go(func() { d.deliver(id) })
			}
			all.Wait()
			var bodies []byte
			for _, a := range d.provider.Accepted() {
				bodies = append(bodies, a.Body...)
			}
			for _, want := range []string{
				"short and whole", long + "text and whole", long + "html and whole", long + "file and whole",
				base64.StdEncoding.EncodeToString([]byte("attached")),
			} {
				if n := bytes.Count(bodies, []byte(want)); n != 1 {
					t.Errorf("%q arrived %d times", want[max(0, len(want)-20):], n)
				}
			}
		})
	}
}

// The beginning of an attempt writes to no index, whatever it changes.
func TestBeginningWritesToNoIndex(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reply(429, "") })
	const attempts = 3
	id := d.enqueue()
	for range attempts {
		d.exec("UPDATE outbox.emails SET next_attempt_at = NULL")
		d.probeNow()
		d.deliver(id)
	}
	if n := len(d.get(id).Attempts); n != attempts {
		t.Fatalf("%d attempts", n)
	}
	// Each was begun, was deferred, and was made due.
	const updates = 3 * attempts
	eventually(t, func() bool { // the statistics come a moment later
		return d.count("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = 'outbox.emails'::regclass") == updates
	})
	if n := d.count("SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'outbox.emails'::regclass"); n != updates {
		t.Errorf("%d of %d updates left the indexes alone", n, updates)
	}
}
