package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

func isPgError(err error, code string) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == code
}

func TestEnqueueManyTx(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client, org := newClient(t, nil), uuid.New()
	batch := []outbox.Submission{submission(org, "a"), submission(org, ""), submission(org, "b"), submission(org, "a")}
	receipts, err := client.EnqueueManyTx(t.Context(), tx, batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, replayed := range []bool{false, false, false, true} {
		if len(receipts[i].IDs) != 1 || receipts[i].Replayed != replayed {
			t.Errorf("receipt %d = %+v, want one email, replayed %v", i, receipts[i], replayed)
		}
	}
	if receipts[0].IDs[0] != receipts[3].IDs[0] {
		t.Errorf("emails %s and %s for one key", receipts[0].IDs[0], receipts[3].IDs[0])
	}
	want := map[string]int{"emails": 3, "email_contents": 3, "email_terms": 3, "attachments": 0, "idempotency_keys": 2, "river_job": 3}
	for table, n := range tables(t, tx) {
		if n != want[table] {
			t.Errorf("%d rows in %s, want %d", n, table, want[table])
		}
	}
}

// One submission that is refused leaves none of the others, and the
// transaction goes on.
func TestEnqueueManyTxStoresAllOrNone(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client, org := newClient(t, nil), uuid.New()
	if _, err := client.EnqueueTx(t.Context(), tx, submission(org, "taken")); err != nil {
		t.Fatal(err)
	}
	before := tables(t, tx)
	other := submission(org, "taken")
	other.Messages[0].Subject = "Another"
	invalid := submission(org, "c")
	invalid.Messages[0].Subject = ""
	for name, test := range map[string]struct {
		second outbox.Submission
		is     func(error) bool
	}{
		"reused":  {other, func(err error) bool { return errors.Is(err, outbox.ErrIdempotencyKeyReused) }},
		"invalid": {invalid, func(err error) bool { _, ok := errors.AsType[*outbox.ValidationError](err); return ok }},
	} {
		receipts, err := client.EnqueueManyTx(t.Context(), tx, []outbox.Submission{submission(org, "new"), test.second})
		if !test.is(err) || !strings.Contains(err.Error(), "submission 1") || receipts != nil {
			t.Errorf("%s: receipts %v, error %v", name, receipts, err)
		}
		for table, n := range tables(t, tx) {
			if n != before[table] {
				t.Errorf("%s: %d rows in %s, want %d as before", name, n, table, before[table])
			}
		}
	}
}

// A submission in a savepoint goes with it, and the rest of the transaction
// stays.
func TestEnqueueTxInASavepoint(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client, org := newClient(t, nil), uuid.New()
	if _, err := client.EnqueueTx(t.Context(), tx, submission(org, "kept")); err != nil {
		t.Fatal(err)
	}
	savepoint, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.EnqueueTx(t.Context(), savepoint, submission(org, "gone")); err != nil {
		t.Fatal(err)
	}
	if err := savepoint.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	receipt, err := client.EnqueueTx(t.Context(), tx, submission(org, "gone"))
	if err != nil || receipt.Replayed {
		t.Errorf("replayed %v, error %v; want a new email, since the key is free", receipt.Replayed, err)
	}
	if n := count(t, tx, "SELECT count(*) FROM outbox.emails"); n != 2 {
		t.Errorf("%d emails, want 2", n)
	}
}

// Under REPEATABLE READ a key that was committed after the snapshot is a
// serialization failure, and running the transaction again replays.
func TestEnqueueTxUnderRepeatableRead(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	client, org := newClient(t, pool), uuid.New()
	run := func(meanwhile func()) (outbox.Receipt, error) {
		var receipt outbox.Receipt
		err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			count(t, tx, "SELECT count(*) FROM outbox.emails") // takes the snapshot
			meanwhile()
			var err error
			receipt, err = client.EnqueueTx(t.Context(), tx, submission(org, "k"))
			return err
		})
		return receipt, err
	}
	_, err := run(func() {
		if _, err := client.Enqueue(t.Context(), submission(org, "k")); err != nil {
			t.Fatal(err)
		}
	})
	if !isPgError(err, pgerrcode.SerializationFailure) {
		t.Fatalf("error = %v, want SQLSTATE 40001", err)
	}
	receipt, err := run(func() {})
	if err != nil || !receipt.Replayed {
		t.Errorf("again: replayed %v, error %v; want a replay", receipt.Replayed, err)
	}
	if n := count(t, pool, "SELECT count(*) FROM outbox.emails"); n != 1 {
		t.Errorf("%d emails, want 1", n)
	}
}

// An error from the database aborts the caller's transaction, as any does; one
// that names a fault of the submission does not.
func TestEnqueueTxAfterAnError(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	client, org := newClient(t, pool), uuid.New()
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(context.Background()) }()
	if _, err := client.EnqueueTx(t.Context(), holder, submission(org, "held")); err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '10ms'"); err != nil {
		t.Fatal(err)
	}
	invalid := submission(org, "k")
	invalid.Messages[0].To = nil
	if _, err := client.EnqueueTx(t.Context(), tx, invalid); err == nil {
		t.Fatal("an invalid message was accepted")
	}
	if _, err := client.EnqueueTx(t.Context(), tx, submission(org, "k")); err != nil {
		t.Fatalf("after a refusal: %v", err)
	}
	if _, err := client.EnqueueTx(t.Context(), tx, submission(org, "held")); !errors.Is(err, outbox.ErrSubmissionInProgress) {
		t.Fatalf("error = %v, want ErrSubmissionInProgress", err)
	}
	if _, err := client.EnqueueTx(t.Context(), tx, submission(org, "l")); !isPgError(err, pgerrcode.InFailedSQLTransaction) {
		t.Errorf("error = %v, want SQLSTATE 25P02", err)
	}
}
