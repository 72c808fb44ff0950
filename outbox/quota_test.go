package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// door is a way in; it reports whether the quota refused.
type door func(t *testing.T, s outbox.Submission) (refused bool)

func refusedByQuota(t *testing.T, err error) bool {
	t.Helper()
	if err != nil && !errors.Is(err, outbox.ErrQueueQuota) {
		t.Fatal(err)
	}
	return err != nil
}

// quotaDoors are all ways in, each as a process that has just started.
func quotaDoors(pool *pgxpool.Pool, byDefault int) map[string]func(t *testing.T) door {
	client := func(t *testing.T) *outbox.Client {
		t.Helper()
		c, err := outbox.NewClient(pool, outbox.Config{MaxQueued: byDefault})
		must(t, err)
		return c
	}
	return map[string]func(t *testing.T) door{
		"Enqueue": func(t *testing.T) door {
			c := client(t)
			return func(t *testing.T, s outbox.Submission) bool {
				_, err := c.Enqueue(context.Background(), s)
				return refusedByQuota(t, err)
			}
		},
		"EnqueueTx": func(t *testing.T) door {
			c := client(t)
			return func(t *testing.T, s outbox.Submission) bool {
				tx := begin(t, pool)
				_, err := c.EnqueueTx(context.Background(), tx, s)
				must(t, tx.Commit(context.Background())) // a refusal leaves it usable
				return refusedByQuota(t, err)
			}
		},
		"SQL": func(*testing.T) door {
			return func(t *testing.T, s outbox.Submission) bool {
				_, err := enqueueSQL(t, pool, s)
				pgErr, refused := errors.AsType[*pgconn.PgError](err)
				if refused && (pgErr.Code != "OB429" || nameOf(err) != "queue_quota_exceeded") || !refused && err != nil {
					t.Fatal(err)
				}
				return refused
			}
		},
	}
}

// At its quota an org is refused, whichever way it comes: nothing is stored, its
// replays are answered, and the others go on.
func TestQueueQuota(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Enqueue", "EnqueueTx", "SQL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testdb.New(t)
			open := quotaDoors(pool, 0)[name]
			org, other := newOrg(t, pool), newOrg(t, pool)
			quota := 3
			must(t, outbox.SetMaxQueued(context.Background(), pool, org.String(), &quota))
			submit := open(t)
			scheduled := submission(org, "scheduled")
			scheduled.Messages[0].ScheduledAt = time.Now().Add(time.Hour)
			if submit(t, submission(org, "first")) || submit(t, scheduled) || submit(t, submission(org, "")) {
				t.Fatal("refused below the quota")
			}
			if !submit(t, submission(org, "fourth")) || !submit(t, submission(org, "")) {
				t.Error("not refused at the quota")
			}
			if submit(t, submission(org, "first")) {
				t.Error("a replay is refused")
			}
			if submit(t, submission(other, "k")) {
				t.Error("another org is refused")
			}
			if n := tables(t, pool); n["emails"] != 4 || n["river_job"] != 4 || n["idempotency_keys"] != 3 {
				t.Errorf("rows %v: a refusal stored something", n)
			}
			// Once one is sent, there is room for one.
			mustExec(context.Background(), pool, "UPDATE outbox.emails SET status = 'sent', ended_at = now() WHERE id = (SELECT min(id::text)::uuid FROM outbox.emails WHERE org_id = '"+org.String()+"')")
			submit = open(t)
			if submit(t, submission(org, "fourth")) {
				t.Error("refused with room for one")
			}
			if !submit(t, submission(org, "fifth")) {
				t.Error("not refused at the quota")
			}
		})
	}
}

// The org's own number goes before the default, and zero is no quota.
func TestQueueQuotaDefault(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	ctx := context.Background()
	org := newOrg(t, pool)
	refusedAfter := func(submissions int) bool {
		t.Helper()
		submit := quotaDoors(pool, 2)["Enqueue"](t)
		for range submissions {
			if submit(t, submission(org, "")) {
				return true
			}
		}
		return false
	}
	if refusedAfter(2) || !refusedAfter(1) {
		t.Error("the default does not hold")
	}
	none, four := 0, 4
	must(t, outbox.SetMaxQueued(ctx, pool, org.String(), &none))
	if refusedAfter(1) {
		t.Error("refused without a quota")
	}
	must(t, outbox.SetMaxQueued(ctx, pool, org.String(), &four))
	if refusedAfter(1) || !refusedAfter(1) {
		t.Error("the org's own quota does not hold")
	}
	must(t, outbox.SetMaxQueued(ctx, pool, org.String(), nil))
	if !refusedAfter(1) {
		t.Error("the default does not hold again")
	}
	if err := outbox.SetMaxQueued(ctx, pool, "nobody", &four); err == nil || !strings.Contains(err.Error(), "no org") {
		t.Errorf("error = %v, want that there is no such org", err)
	}
}

// A batch that begins below the quota goes in whole: one that is larger than the
// quota would otherwise never do.
func TestQueueQuotaAndBatch(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	submit := quotaDoors(pool, 2)["Enqueue"](t)
	batch := outbox.Submission{Org: uuid.New(), Batch: true, Messages: []outbox.Message{message(), message(), message()}}
	if submit(t, batch) {
		t.Error("refused below the quota")
	}
	if !submit(t, batch) {
		t.Error("not refused beyond the quota")
	}
}
