package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/pgproxy"
	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// groupLab has the two transactions that an org may have at a time held at their
// COMMIT, so that what is submitted meanwhile goes together.
type groupLab struct {
	t      *testing.T
	org    uuid.UUID
	pool   *pgxpool.Pool // direct
	client *outbox.Client
	hold   chan struct{}
	open   func() // ends the hold
	done   sync.WaitGroup
}

func newGroupLab(t *testing.T, setUp ...string) *groupLab {
	t.Helper()
	l := &groupLab{t: t, org: uuid.New(), pool: testdb.New(t), hold: make(chan struct{})}
	l.open = sync.OnceFunc(func() { close(l.hold) })
	for _, sql := range setUp {
		_, err := l.pool.Exec(context.Background(), sql)
		must(t, err)
	}
	proxy := pgproxy.New(t, l.pool.Config().ConnString())
	pool, err := pgxpool.New(context.Background(), proxy.URL())
	must(t, err)
	t.Cleanup(pool.Close)
	t.Cleanup(l.end)
	l.client, err = outbox.NewClient(pool, outbox.Config{})
	must(t, err)
	for i := range 2 {
		held := proxy.On(pgproxy.Commit, pgproxy.HoldBefore(l.hold))
		l.submit(submission(l.org, fmt.Sprint("held ", i)), nil)
		<-held.Fired()
	}
	return l
}

// submit submits in the background and wants an error, or none.
func (l *groupLab) submit(s outbox.Submission, want error) {
	l.done.Go(func() {
		if _, err := l.client.Enqueue(context.Background(), s); !errors.Is(err, want) {
			l.t.Errorf("%q: error %v, want %v", s.IdempotencyKey, err, want)
		}
	})
}

// release lets all go on, once so many wait.
func (l *groupLab) release(waiting int) {
	l.t.Helper()
	eventually(l.t, func() bool { return outbox.WaitingInGroup(l.client, l.org) == waiting })
	l.end()
}

// end lets all go on and waits until they have.
func (l *groupLab) end() {
	l.open()
	l.done.Wait()
}

// transactions returns how many transactions stored emails, and how many emails.
func (l *groupLab) stored() (transactions, emails int) {
	l.t.Helper()
	must(l.t, l.pool.QueryRow(context.Background(),
		`SELECT count(DISTINCT xmin::text), count(*) FROM outbox.emails WHERE org_id = $1`, l.org).Scan(&transactions, &emails))
	return transactions, emails
}

// Submissions that come while others are committed share one transaction, each with
// its own answer: the second under one key is a replay, or it is refused.
func TestSubmissionsShareATransaction(t *testing.T) {
	t.Parallel()
	l := newGroupLab(t)
	const n = 20
	for i := range n {
		l.submit(submission(l.org, fmt.Sprint("key ", i)), nil)
	}
	l.submit(submission(l.org, "key 0"), nil) // the same once more
	l.release(n + 1)
	transactions, emails := l.stored()
	if emails != n+2 || transactions > 4 {
		t.Errorf("%d emails in %d transactions, want %d in 2 and what the two held ones took", emails, transactions, n+2)
	}
	other := submission(l.org, "key 1")
	other.Messages[0].Subject = "Another"
	l.submit(other, outbox.ErrIdempotencyKeyReused)
	l.done.Wait()
}

// A submission that the database refuses does not take the others with it.
func TestGroupSurvivesABadSubmission(t *testing.T) {
	t.Parallel()
	l := newGroupLab(t, `ALTER TABLE outbox.email_contents ADD CHECK (subject <> 'bad')`)
	bad := submission(l.org, "bad")
	bad.Messages[0].Subject = "bad"
	for i := range 10 {
		l.submit(submission(l.org, fmt.Sprint("key ", i)), nil)
	}
	var refused error
	l.done.Go(func() { _, refused = l.client.Enqueue(context.Background(), bad) })
	l.release(11)
	if refused == nil {
		t.Error("the bad one was stored")
	}
	if _, emails := l.stored(); emails != 12 {
		t.Errorf("%d emails, want 12", emails)
	}
}

// A submission whose key another process holds is told so, and the others of its group
// do not wait for that.
func TestGroupDoesNotWaitForAHeldKey(t *testing.T) {
	t.Parallel()
	l := newGroupLab(t)
	ctx := context.Background()
	holder, err := l.pool.BeginTx(ctx, pgx.TxOptions{})
	must(t, err)
	other, err := outbox.NewClient(nil, outbox.Config{})
	must(t, err)
	_, err = other.EnqueueTx(ctx, holder, submission(l.org, "key"))
	must(t, err)

	l.submit(submission(l.org, "key"), nil) // waits without a lock_timeout
	for i := range 10 {
		l.submit(submission(l.org, fmt.Sprint("key ", i)), nil)
	}
	eventually(t, func() bool { return outbox.WaitingInGroup(l.client, l.org) == 11 })
	l.open()
	eventually(t, func() bool { _, emails := l.stored(); return emails == 12 })
	must(t, holder.Commit(ctx))
	l.done.Wait()
}

// Who gives up while waiting has stored nothing.
func TestGroupIsLeftWithoutATrace(t *testing.T) {
	t.Parallel()
	l := newGroupLab(t)
	ctx, leave := context.WithCancel(context.Background())
	var got error
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, got = l.client.Enqueue(ctx, submission(l.org, "key"))
	}()
	eventually(t, func() bool { return outbox.WaitingInGroup(l.client, l.org) == 1 })
	leave()
	<-gone
	if !errors.Is(got, context.Canceled) {
		t.Errorf("error %v, want that the caller gave up", got)
	}
	l.end()
	if _, emails := l.stored(); emails != 2 {
		t.Errorf("%d emails, want the 2 that were held", emails)
	}
}

func eventually(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for !done() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("it did not happen")
		}
	}
}
