package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// A purge that runs during a storm of replays never lets a submission be
// acknowledged that has no email: whoever meets a key that is about to go
// either waits and makes a new email, or gets one that is there.
func TestPurgeDuringReplays(t *testing.T) {
	t.Parallel()
	s := &purgeStorm{
		t: t, pool: testdb.New(t), org: uuid.New(), stop: make(chan struct{}), acknowledged: map[uuid.UUID]int{},
	}
	s.client = newClient(t, s.pool)
	var wg sync.WaitGroup
	wg.Go(s.expireAll)
	wg.Go(s.purgeAll)
	const submitters, submissions = 4, 25
	var submitting sync.WaitGroup
	for range submitters {
		submitting.Go(func() {
			for i := range submissions {
				s.submit(fmt.Sprint("key-", i%stormKeys))
			}
			// The storm must have met what it is about.
			for s.purged.Load() < 5 || s.replayed.Load() < 5 {
				s.submit("key-0")
			}
		})
	}
	submitting.Wait()
	close(s.stop)
	wg.Wait()
	s.check()
}

const stormKeys = 3

type purgeStorm struct {
	t      *testing.T
	pool   *pgxpool.Pool
	client *outbox.Client
	org    uuid.UUID
	stop   chan struct{}

	purged, replayed atomic.Int64

	mu           sync.Mutex
	acknowledged map[uuid.UUID]int // how often an email was the answer as a new one
}

func (s *purgeStorm) submit(key string) {
	receipt, err := s.client.Enqueue(context.Background(), submission(s.org, key))
	if errors.Is(err, outbox.ErrSubmissionInProgress) {
		return // the key went between the claim and the look: nothing is promised
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if receipt.Replayed {
		s.replayed.Add(1)
		s.acknowledged[receipt.IDs[0]] += 0
		return
	}
	s.acknowledged[receipt.IDs[0]]++
}

// forever repeats a step until the storm is over.
func (s *purgeStorm) forever(step func(context.Context) error) {
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		if err := step(context.Background()); err != nil {
			s.t.Error(err)
			return
		}
	}
}

// expireAll makes every key one that may go. One at a time: two statements that
// lock many rows each could meet in a deadlock.
func (s *purgeStorm) expireAll() {
	number := 0
	s.forever(func(ctx context.Context) error {
		number++
		const sqlEnd = `UPDATE outbox.emails SET status = 'sent', ended_at = now() - interval '2 days' WHERE ended_at IS NULL`
		if _, err := s.pool.Exec(ctx, sqlEnd); err != nil {
			return err
		}
		const sqlExpire = `UPDATE outbox.idempotency_keys SET expires_at = now() WHERE key = $1 AND expires_at > now()`
		_, err := s.pool.Exec(ctx, sqlExpire, fmt.Sprint("key-", number%stormKeys))
		return err
	})
}

func (s *purgeStorm) purgeAll() {
	s.forever(func(ctx context.Context) error {
		n, err := outbox.PurgeKeys(ctx, s.pool)
		s.purged.Add(n)
		return err
	})
}

// check: every answer names an email that is there, with its job, and that was
// new for exactly one of them.
func (s *purgeStorm) check() {
	for id, first := range s.acknowledged {
		if first != 1 {
			s.t.Errorf("email %s was acknowledged %d times as new, want 1", id, first)
		}
		const sqlFind = `SELECT count(*) FROM outbox.emails e JOIN outbox.river_job j ON j.args = jsonb_build_object('email_id', e.id) WHERE e.id = $1`
		if n := count(s.t, s.pool, sqlFind, id); n != 1 {
			s.t.Errorf("email %s was acknowledged, and %d are there with a job, want 1", id, n)
		}
	}
	if n := count(s.t, s.pool, "SELECT count(*) FROM outbox.emails"); n != len(s.acknowledged) {
		s.t.Errorf("%d emails, want %d", n, len(s.acknowledged))
	}
	s.t.Logf("%d emails, %d replays, %d keys purged", len(s.acknowledged), s.replayed.Load(), s.purged.Load())
}

// Of many submissions that meet an expired key at once, exactly one makes a new
// email.
func TestExpiredKeyIsTakenOverOnce(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	client := newClient(t, pool)
	s := submission(uuid.New(), "k")
	old, err := client.Enqueue(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"UPDATE outbox.emails SET status = 'sent', ended_at = now() - interval '2 days'",
		"UPDATE outbox.idempotency_keys SET expires_at = now()",
	} {
		if _, err := pool.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const submitters = 50
	receipts, errs := make([]outbox.Receipt, submitters), make([]error, submitters)
	var wg sync.WaitGroup
	for i := range submitters {
		wg.Go(func() { receipts[i], errs[i] = client.Enqueue(context.Background(), s) })
	}
	wg.Wait()
	created := 0
	for i := range submitters {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if !receipts[i].Replayed {
			created++
		}
		if receipts[i].IDs[0] == old.IDs[0] || receipts[i].IDs[0] != receipts[0].IDs[0] {
			t.Errorf("answer %s; before %s", receipts[i].Response, old.Response)
		}
	}
	if n := count(t, pool, "SELECT count(*) FROM outbox.emails"); created != 1 || n != 2 {
		t.Errorf("%d were first and there are %d emails, want 1 and 2", created, n)
	}
}
