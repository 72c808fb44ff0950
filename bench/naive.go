package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/outboxd/outboxd/outbox"
)

// naiveWorker is what one writes first: a job that loads the message, calls the
// provider and marks it as sent. It records nothing before the call, so what a crash
// interrupts is sent again or lost. Its River has the settings of our worker.
type naiveWorker struct {
	river.WorkerDefaults[naiveArgs]
	pool *pgxpool.Pool
	http *http.Client
	url  string
}

// naiveArgs are the arguments of its job.
type naiveArgs struct {
	EmailID uuid.UUID `json:"email_id"`
}

// Kind names the job in River.
func (naiveArgs) Kind() string { return "deliver_email" }

// Work sends one email.
func (w *naiveWorker) Work(ctx context.Context, job *river.Job[naiveArgs]) error {
	var m struct {
		From    string          `json:"from"`
		To      json.RawMessage `json:"to"`
		Subject string          `json:"subject"`
		Text    string          `json:"text"`
	}
	const load = `SELECT from_address, to_addresses, subject, text FROM outbox.email_contents WHERE email_id = $1`
	if err := w.pool.QueryRow(ctx, load, job.Args.EmailID).Scan(&m.From, &m.To, &m.Subject, &m.Text); err != nil {
		return err
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/emails", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := w.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the provider answered %s", resp.Status)
	}
	_, err = w.pool.Exec(ctx, `UPDATE outbox.emails SET status = 'sent', ended_at = now() WHERE id = $1`, job.Args.EmailID)
	return err
}

// deliveriesAtOnce is the concurrency of both workers.
const deliveriesAtOnce = 50

// runNaive works until SIGTERM, in a process of its own, as our worker is.
func runNaive(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	cfg, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	cfg.MaxConns = deliveriesAtOnce / 2
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	workers := river.NewWorkers()
	transport := &http.Transport{MaxIdleConnsPerHost: deliveriesAtOnce}
	river.AddWorker(workers, &naiveWorker{pool: pool, http: &http.Client{Transport: transport}, url: os.Getenv("RESEND_BASE_URL")})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Schema: outbox.Schema, Workers: workers, FetchCooldown: outbox.FetchCooldown, Logger: slog.New(slog.DiscardHandler),
		Queues: map[string]river.QueueConfig{outbox.Queue: {MaxWorkers: deliveriesAtOnce}},
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	slog.New(slog.NewJSONHandler(os.Stderr, nil)).InfoContext(ctx, "worker started")
	<-ctx.Done()
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return client.Stop(stopCtx)
}

func (d *database) startNaive(ctx context.Context) (*program, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return d.start(ctx, "naive worker", self, []string{naiveCommand})
}

// naiveClient submits as an application does that has its own tables: the rows and the
// job in one transaction.
type naiveClient struct {
	pool *pgxpool.Pool
	jobs *river.Client[pgx.Tx]
}

func newNaiveClient(ctx context.Context, d *database) (*naiveClient, error) {
	pool, err := pgxpool.New(ctx, d.url)
	if err != nil {
		return nil, err
	}
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Schema: outbox.Schema, FetchCooldown: outbox.FetchCooldown, Logger: slog.New(slog.DiscardHandler),
	})
	return &naiveClient{pool, jobs}, err
}

func (c *naiveClient) submit(ctx context.Context, number int64) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		id := uuid.New()
		org := uuid.UUID{15: 1}
		if _, err := tx.Exec(ctx, `INSERT INTO outbox.emails (id, org_id, status, created_at) VALUES ($1, $2, 'queued', now())`, id, org); err != nil {
			return err
		}
		const content = `INSERT INTO outbox.email_contents (email_id, org_id, from_address, to_addresses, subject, text, recipients)
			VALUES ($1, $2, 'Shop <shop@example.com>', '["jane@example.org"]', $3, $4, '{jane@example.org}')`
		if _, err := tx.Exec(ctx, content, id, org, fmt.Sprintf("Mail %d.", number), body); err != nil {
			return err
		}
		_, err := c.jobs.InsertTx(ctx, tx, naiveArgs{id}, &river.InsertOpts{Queue: outbox.Queue})
		return err
	})
}
