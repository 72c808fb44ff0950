package outbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// Clients that hammer a key which somebody else holds do not keep others from
// the database: the pool has fewer connections than there are of them.
func TestHeldKeyDoesNotStarveOthers(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	cfg := pool.Config()
	cfg.MaxConns = 6
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "20s"
	small, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	client, org := newClient(t, small), uuid.New()

	holder, err := pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newClient(t, nil).EnqueueTx(context.Background(), holder, submission(org, "held")); err != nil {
		t.Fatal(err)
	}
	const hammering = 30
	errs := make([]error, hammering)
	var wg sync.WaitGroup
	for i := range hammering {
		wg.Go(func() { _, errs[i] = client.Enqueue(context.Background(), submission(org, "held")) })
	}
	for range 20 {
		if _, err := client.Enqueue(context.Background(), submission(org, "")); err != nil {
			t.Errorf("a submission without that key: %v", err)
		}
	}
	if err := holder.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, outbox.ErrSubmissionInProgress) {
			t.Errorf("a submission with the held key: %v", err)
		}
	}
	if n := count(t, pool, "SELECT count(*) FROM outbox.idempotency_keys"); n != 1 {
		t.Errorf("%d keys, want 1", n)
	}
}
