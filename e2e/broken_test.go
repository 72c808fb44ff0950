package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
)

// The checker of histories sees what it is there to see: an API that looks for
// the key first and inserts then is caught.
func TestCheckThenInsertIsCaught(t *testing.T) {
	t.Parallel()
	history := func(t *testing.T, atOnce int) *recorder {
		in := connect(t, testdb.URL(t))
		base := startBroken(t, in.databaseURL, atOnce)
		r := newRecorder(in)
		var wg sync.WaitGroup
		for range atOnce {
			wg.Go(func() { r.submit(t.Context(), base, submitted{key: "k", request: "a"}) })
		}
		wg.Wait()
		for _, request := range []string{"a", "b"} {
			r.submit(t.Context(), base, submitted{key: "k", request: request})
		}
		r.look(in)
		return r
	}
	t.Run("one at a time it looks right", func(t *testing.T) {
		t.Parallel()
		history(t, 1).check(true)
	})
	t.Run("two at once it is wrong", func(t *testing.T) {
		t.Parallel()
		history(t, 2).check(false)
	})
}

// broken is POST /emails as it is often written, on the same tables.
type broken struct {
	pool *pgxpool.Pool
	org  uuid.UUID
	// checked holds the first submissions back between their check and their
	// insert until all of them are there, so that the race is no matter of luck.
	checked sync.WaitGroup
	racing  chan struct{} // one token per submission that is held back
}

func startBroken(t *testing.T, databaseURL string, atOnce int) string {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b := &broken{pool: pool, org: uuid.New(), racing: make(chan struct{}, atOnce)}
	b.checked.Add(atOnce)
	for range atOnce {
		b.racing <- struct{}{}
	}
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	return server.URL
}

func (b *broken) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct{ Subject string }
	err := json.NewDecoder(r.Body).Decode(&body)
	if err == nil {
		err = b.submit(r.Context(), w, r.Header.Get("Idempotency-Key"), body.Subject)
	}
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(w).Encode(map[string]string{"name": err.Error()})
	}
}

func (b *broken) submit(ctx context.Context, w http.ResponseWriter, key, subject string) error {
	const find = `SELECT response, convert_from(fingerprint, 'UTF8') FROM outbox.idempotency_keys WHERE org_id = $1 AND key = $2`
	var response, request string
	err := b.pool.QueryRow(ctx, find, b.org, key).Scan(&response, &request)
	switch {
	case err == nil && request == subject:
		w.Header().Set("Idempotent-Replayed", "true")
		return respond(w, http.StatusAccepted, response)
	case err == nil:
		return respond(w, http.StatusUnprocessableEntity, `{"name":"invalid_idempotent_request"}`)
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	b.holdBack()
	response, err = b.insert(ctx, key, subject)
	if err != nil {
		return err
	}
	return respond(w, http.StatusAccepted, response)
}

func (b *broken) holdBack() {
	select {
	case <-b.racing:
		b.checked.Done()
		b.checked.Wait()
	default:
	}
}

// insert keeps the key's first row and does not look whether that is its own.
func (b *broken) insert(ctx context.Context, key, subject string) (response string, err error) {
	id := uuid.Must(uuid.NewV7())
	response = fmt.Sprintf(`{"id":%q}`, id)
	return response, pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(`INSERT INTO outbox.idempotency_keys (org_id, endpoint, key, submission_id, fingerprint_version,
				fingerprint, email_ids, status_code, response, expires_at)
			VALUES ($1, 'POST /emails', $2, $3, 1, convert_to($4, 'UTF8'), ARRAY[$3::uuid], 202, $5, 'infinity')
			ON CONFLICT DO NOTHING`, b.org, key, id, subject, response)
		batch.Queue(`INSERT INTO outbox.emails (id, org_id, status, created_at) VALUES ($1, $2, 'queued', now())`, id, b.org)
		batch.Queue(`INSERT INTO outbox.email_contents (email_id, org_id, from_address, to_addresses, subject, recipients)
			VALUES ($1, $2, '', '[]', $3, '{}')`, id, b.org, subject)
		return tx.SendBatch(ctx, &batch).Close()
	})
}

func respond(w http.ResponseWriter, status int, body string) error {
	w.WriteHeader(status)
	_, err := w.Write([]byte(body))
	return err
}
