package api_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

// Many requests at once whose key is not known yet, or not fresh, read it once
// and not each for itself.
func TestOneLookupForManyRequests(t *testing.T) {
	t.Parallel()
	const requests = 40
	s := newService(t, api.Org{}, api.Key{})
	client, err := outbox.NewClient(s.pool, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	handler := api.New(api.Config{Pool: s.pool, Outbox: client})

	// Lookups wait for this transaction.
	conn, err := pgx.Connect(t.Context(), s.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE outbox.api_keys"); err != nil {
		t.Fatal(err)
	}
	before := s.pool.Stat().AcquireCount()
	var wg sync.WaitGroup
	var running atomic.Int32
	for range requests {
		wg.Go(func() {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/emails/"+uuid.NewString(), http.NoBody)
			req.Header.Set("Authorization", "Bearer "+s.token)
			answer := httptest.NewRecorder()
			running.Add(1)
			handler.ServeHTTP(answer, req)
			if answer.Code != http.StatusNotFound {
				t.Errorf("answer %d %s, want 404", answer.Code, answer.Body)
			}
		})
	}
	timeout := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for waiting := 0; waiting == 0 || running.Load() < requests; {
		const sql = `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox.api_keys'::regclass`
		if err := conn.QueryRow(t.Context(), sql).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("no lookup waits")
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	// Each request acquires a connection for itself; on a slow machine a second
	// lookup may have become due.
	if lookups := s.pool.Stat().AcquireCount() - before - requests; lookups < 1 || lookups > 2 {
		t.Errorf("%d lookups, want 1", lookups)
	}
}
