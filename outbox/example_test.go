package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// An order and its receipt commit together, or neither does.
func ExampleClient_EnqueueTx() {
	ctx := context.Background()
	pool, drop := testdb.Example() // a migrated database
	defer drop()
	org := uuid.New() // outboxctl org create
	mustExec(ctx, pool, "CREATE TABLE orders (id text PRIMARY KEY)")

	client, err := outbox.NewClient(nil, outbox.Config{})
	if err != nil {
		panic(err)
	}
	order := func(orderID string) (outbox.Receipt, error) {
		var receipt outbox.Receipt
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1) ON CONFLICT DO NOTHING", orderID); err != nil {
				return err
			}
			var err error
			receipt, err = client.EnqueueTx(ctx, tx, outbox.Submission{
				Org:            org,
				IdempotencyKey: "receipt-" + orderID,
				Messages: []outbox.Message{{
					From: "Shop <shop@example.com>", To: []string{"jane@example.org"},
					Subject: "Your receipt", Text: "Thank you.",
				}},
			})
			return err
		})
		return receipt, err
	}

	first, err := order("1001")
	if err != nil {
		panic(err)
	}
	again, err := order("1001") // the application did not see the first answer
	if err != nil {
		panic(err)
	}
	fmt.Println("the same email:", first.IDs[0] == again.IDs[0])
	fmt.Println("replayed:", first.Replayed, again.Replayed)
	// Output:
	// the same email: true
	// replayed: false true
}

// A reminder that is worthless after a while is scheduled, and expires.
func ExampleClient_Enqueue_schedule() {
	ctx := context.Background()
	pool, drop := testdb.Example()
	defer drop()
	client, err := outbox.NewClient(pool, outbox.Config{})
	if err != nil {
		panic(err)
	}

	event := time.Now().Add(48 * time.Hour)
	receipt, err := client.Enqueue(ctx, outbox.Submission{
		Org:            uuid.New(),
		IdempotencyKey: "reminder-7",
		Messages: []outbox.Message{{
			From: "events@example.com", To: []string{"jane@example.org"},
			Subject: "Tomorrow", Text: "See you there.",
			ScheduledAt: event.Add(-24 * time.Hour),
			ExpiresAt:   event,
			OnUnknown:   outbox.PolicyDrop,
			Priority:    outbox.PriorityLow,
		}},
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(receipt.StatusCode, len(receipt.IDs))

	_, err = client.Enqueue(ctx, outbox.Submission{Org: uuid.New(), Messages: []outbox.Message{{
		From: "events@example.com", To: []string{"jane"}, Subject: "Tomorrow", Text: "See you there.",
		ScheduledAt: event.Add(-96 * time.Hour),
	}}})
	if invalid, ok := errors.AsType[*outbox.ValidationError](err); ok {
		for _, field := range invalid.Fields {
			fmt.Println(field.Field, field.Message)
		}
	}
	// Output:
	// 202 1
	// to[0] is not an email address
}

// Many emails, each with a key of its own, take a few statements.
func ExampleClient_EnqueueManyTx() {
	ctx := context.Background()
	pool, drop := testdb.Example()
	defer drop()
	client, err := outbox.NewClient(nil, outbox.Config{})
	if err != nil {
		panic(err)
	}

	org := uuid.New()
	var invoices []outbox.Submission
	for _, customer := range []string{"jane@example.org", "joe@example.org"} {
		invoices = append(invoices, outbox.Submission{
			Org:            org,
			IdempotencyKey: "invoice-2026-11-" + customer,
			Messages: []outbox.Message{{
				From: "billing@example.com", To: []string{customer},
				Subject: "Your invoice", Text: "It is attached.",
				Attachments: []outbox.Attachment{{Filename: "invoice.txt", Content: []byte("1.00 EUR")}},
			}},
		})
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		receipts, err := client.EnqueueManyTx(ctx, tx, invoices)
		fmt.Println(len(receipts), "receipts")
		return err
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// 2 receipts
}

// printer is a provider that prints. Real ones are below the folder providers.
type printer struct{ sent chan<- string }

func (printer) Name() string                         { return "printer" }
func (printer) Capabilities() providers.Capabilities { return providers.Capabilities{} }

func (printer) Render(r providers.Request) ([]byte, error) {
	return []byte(r.Message.Subject), nil
}

func (p printer) Send(_ context.Context, s providers.Sending) (providers.Receipt, error) {
	if err := s.Confirmed(); err != nil {
		return providers.Receipt{}, &providers.Error{Outcome: providers.Deferred, Err: err}
	}
	p.sent <- string(s.Payload)
	return providers.Receipt{ProviderMessageID: "1"}, nil
}

// An application can deliver by itself instead of running the program worker.
func ExampleWorker() {
	ctx, stop := context.WithCancel(context.Background())
	pool, drop := testdb.Example()
	defer drop()
	sent := make(chan string)
	worker, err := outbox.NewWorker(pool, outbox.WorkerConfig{Providers: []providers.Provider{printer{sent}}})
	if err != nil {
		panic(err)
	}
	ended := make(chan error)
	go func() { ended <- worker.Run(ctx, nil) }()

	enqueueExample(ctx, pool, "Hello")
	fmt.Println("delivered:", <-sent)

	stop() // what is being sent ends first
	fmt.Println("ended:", <-ended)
	// Output:
	// delivered: Hello
	// ended: <nil>
}

// greetArgs is a job of the application's own.
type greetArgs struct{ Name string }

func (greetArgs) Kind() string { return "greet" }

// An application that has a River client of its own lets it deliver emails too.
func ExampleAddWorkers() {
	ctx := context.Background()
	pool, drop := testdb.Example()
	defer drop()
	sent := make(chan string)

	config := &river.Config{
		Workers: river.NewWorkers(),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
	}
	river.AddWorker(config.Workers, river.WorkFunc(func(_ context.Context, job *river.Job[greetArgs]) error {
		sent <- "job for " + job.Args.Name
		return nil
	}))
	membership, err := outbox.AddWorkers(ctx, config, pool, outbox.WorkerConfig{Providers: []providers.Provider{printer{sent}}})
	if err != nil {
		panic(err)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	if err != nil {
		panic(err)
	}
	if err := client.Start(ctx); err != nil {
		panic(err)
	}

	if _, err := client.Insert(ctx, greetArgs{"Jane"}, nil); err != nil {
		panic(err)
	}
	fmt.Println(<-sent)
	enqueueExample(ctx, pool, "Hello")
	fmt.Println(<-sent)

	if err := client.Stop(ctx); err != nil {
		panic(err)
	}
	membership.Close(ctx) // after the client has stopped
	// Output:
	// job for Jane
	// Hello
}

func enqueueExample(ctx context.Context, pool *pgxpool.Pool, subject string) {
	client, err := outbox.NewClient(pool, outbox.Config{})
	if err != nil {
		panic(err)
	}
	_, err = client.Enqueue(ctx, outbox.Submission{Org: uuid.New(), Messages: []outbox.Message{{
		From: "shop@example.com", To: []string{"jane@example.org"}, Subject: subject, Text: "It works.",
	}}})
	if err != nil {
		panic(err)
	}
}

func mustExec(ctx context.Context, pool *pgxpool.Pool, sql string) {
	if _, err := pool.Exec(ctx, sql); err != nil {
		panic(err)
	}
}
