package outbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// A caller that goes away while its submission waits for a connection leaves
// the queue; there is no transaction yet whose outcome could be in doubt.
func TestCallerLeavesTheQueue(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(testdb.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	client := newClient(t, pool)
	only, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	ctx, leave := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := client.Enqueue(ctx, submission(uuid.New(), "key"))
		failed <- err
	}()
	leave()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that the caller left", err)
	}

	// One that stays is told that there is no time for it.
	_, err = client.Enqueue(t.Context(), submission(uuid.New(), "key"))
	if !errors.Is(err, context.DeadlineExceeded) || !outbox.IsUnavailable(err) {
		t.Errorf("error %v, want that there is no connection", err)
	}
	only.Release()
	if n := count(t, pool, "SELECT count(*) FROM outbox.emails"); n != 0 {
		t.Errorf("%d emails, want none", n)
	}
	if _, err := client.Enqueue(t.Context(), submission(uuid.New(), "key")); err != nil {
		t.Error(err)
	}
	if n := pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were made, want 1: none was cut off", n)
	}
}
