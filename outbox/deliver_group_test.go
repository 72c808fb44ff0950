package outbox_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/pgproxy"
	"github.com/outboxd/outboxd/outbox"
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
