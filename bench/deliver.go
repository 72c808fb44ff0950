package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

// deliveryRate: a full queue, a provider that answers at once.
func deliveryRate(ctx context.Context, b *lab) ([]Result, error) {
	run := func(start startFunc) func() (float64, error) {
		return anew(ctx, b, func(db *database) (float64, error) { return db.fillAndDrain(ctx, start) })
	}
	before, ours, after, err := between(run((*database).startNaive), run((*database).startWorker))
	if err != nil {
		return nil, err
	}
	results := []Result{{
		Figure: "emails delivered from a full queue", Unit: "per second", Baseline: "the naive worker",
		Ours: ours, Before: before, After: after, Must: 0.8, Aim: 1.5,
	}}
	if b.pgbenchPerSecond > 0 {
		results = append(results, Result{
			Figure: "the same", Unit: "per second", Baseline: "the pgbench of the first row",
			Ours: ours, Before: b.pgbenchPerSecond, After: b.pgbenchPerSecond, Must: 0.5, Aim: 1,
		})
	}
	return results, nil
}

// startFunc starts a worker.
type startFunc func(*database, context.Context) (*program, error)

func (d *database) fillAndDrain(ctx context.Context, start startFunc) (perSecond float64, err error) {
	if err := d.fill(ctx, d.lab.deliveries); err != nil {
		return 0, err
	}
	if err := d.settle(ctx); err != nil {
		return 0, err
	}
	return d.drain(ctx, start)
}

// drain starts a worker and returns how fast the emails arrive that wait.
func (d *database) drain(ctx context.Context, start startFunc) (perSecond float64, err error) {
	complete := d.lab.provider.expect(d.lab.deliveries)
	worker, err := start(d, ctx)
	if err != nil {
		return 0, err
	}
	err = within(5*time.Minute, complete, "the queue was not empty after 5 minutes")
	if err := errors.Join(err, worker.stop()); err != nil {
		return 0, err
	}
	return d.lab.provider.perSecond()
}

// fill submits emails through the library, each with a key of its own, many in a
// transaction.
func (d *database) fill(ctx context.Context, emails int) error {
	pool, err := pgxpool.New(ctx, d.url)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := outbox.NewClient(pool, outbox.Config{})
	if err != nil {
		return err
	}
	org := uuid.New()
	for filled := 0; filled < emails; {
		var some []outbox.Submission
		for ; filled < emails && len(some) < outbox.MaxBatch; filled++ {
			d.filled++
			some = append(some, outbox.Submission{Org: org, IdempotencyKey: fmt.Sprint("fill-", d.filled), Messages: []outbox.Message{{
				From: "Shop <shop@example.com>", To: []string{"jane@example.org"}, Subject: fmt.Sprintf("Mail %d.", d.filled), Text: body,
			}}})
		}
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := client.EnqueueManyTx(ctx, tx, some)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// receiptRate is how many are submitted to an idle system.
const receiptRate = 50

// latencies are two percentiles of the same emails, in milliseconds.
type latencies struct{ p50, p99 float64 }

// receiptLatency: from the submission to the provider, with little to do.
func receiptLatency(ctx context.Context, b *lab) ([]Result, error) {
	before, ours, after, err := between(
		anew(ctx, b, func(db *database) (latencies, error) { return db.receiptsOfNaive(ctx) }),
		anew(ctx, b, func(db *database) (latencies, error) { return db.receipts(ctx) }))
	if err != nil {
		return nil, err
	}
	result := func(which string, of func(latencies) float64) Result {
		return Result{
			Figure: "submission to the provider's receipt at 50/s, " + which, Unit: "ms", Baseline: "the naive worker at the same rate",
			Ours: of(ours), Before: of(before), After: of(after), Must: 3, Aim: 1.5, LessIsBetter: true,
		}
	}
	return []Result{
		result("p50", func(l latencies) float64 { return l.p50 }),
		result("p99", func(l latencies) float64 { return l.p99 }),
	}, nil
}

func (d *database) receipts(ctx context.Context) (l latencies, err error) {
	api, err := d.startAPI(ctx)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, api.stop()) }()
	worker, err := d.startWorker(ctx)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, worker.stop()) }()
	c := newClient(api, d.token)
	return d.lab.receiptsOf(ctx, c.submit)
}

func (d *database) receiptsOfNaive(ctx context.Context) (l latencies, err error) {
	worker, err := d.startNaive(ctx)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, worker.stop()) }()
	c, err := newNaiveClient(ctx, d)
	if err != nil {
		return l, err
	}
	defer c.pool.Close()
	return d.lab.receiptsOf(ctx, c.submit)
}

// receiptsOf submits at the rate and waits for each to arrive. The time is counted from
// when an email was due.
func (b *lab) receiptsOf(ctx context.Context, submit func(context.Context, int64) error) (l latencies, err error) {
	n := int(receiptRate * b.paced.Seconds())
	complete := b.provider.expect(n)
	due := make([]time.Time, n+1)
	_, err = paced(ctx, receiptRate, b.paced, func(ctx context.Context, number int64, at time.Time) error {
		due[number] = at
		return submit(ctx, number)
	})
	if err != nil {
		return l, err
	}
	select {
	case <-complete:
	case <-time.After(time.Minute):
		return l, errors.New("not all emails arrived")
	}
	var took []time.Duration
	for number := n / 10; number <= n; number++ {
		if number > 0 {
			took = append(took, b.provider.at(int64(number)).Sub(due[number]))
		}
	}
	return latencies{percentile(took, 50), percentile(took, 99)}, nil
}
