package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// client submits to an API process.
type client struct {
	http  *http.Client
	url   string
	token string
	next  atomic.Int64
}

func newClient(api *program, token string) *client {
	transport := &http.Transport{MaxConnsPerHost: clients, MaxIdleConnsPerHost: clients}
	return &client{http: &http.Client{Transport: transport}, url: "http://" + api.addr + "/emails", token: token}
}

// submitNext submits the next email.
func (c *client) submitNext(ctx context.Context) error { return c.submit(ctx, c.next.Add(1)) }

// submit submits an email with a number, which is in its key and its subject.
func (c *client) submit(ctx context.Context, number int64) error {
	mail, err := json.Marshal(map[string]string{
		"from": "Shop <shop@example.com>", "to": "jane@example.org", "subject": fmt.Sprintf("Mail %d.", number), "text": body,
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(mail))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Idempotency-Key", fmt.Sprint("key-", number))
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusAccepted {
		err = fmt.Errorf("answer %d %s", resp.StatusCode, answer)
	}
	return err
}

// submissionRate: as many as go through 64 connections.
func submissionRate(ctx context.Context, b *lab) ([]Result, error) {
	before, ours, after, err := between(
		anew(ctx, b, func(db *database) (float64, error) { return db.pgbenchRate(ctx) }),
		anew(ctx, b, func(db *database) (float64, error) { return db.saturate(ctx) }))
	if err != nil {
		return nil, err
	}
	b.perSecond, b.pgbenchPerSecond = ours, (before+after)/2
	return []Result{{
		Figure: "durable POST /emails, 64 connections, 1 kB", Unit: "per second", Baseline: "pgbench, the same inserts, a transaction each",
		Ours: ours, Before: before, After: after, Must: 1, Aim: 2,
	}}, nil
}

// saturate submits from all connections for as long as is measured.
func (d *database) saturate(ctx context.Context) (perSecond float64, err error) {
	api, err := d.startAPI(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = api.stop() }()
	c, b := newClient(api, d.token), d.lab
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(b.warm + b.measure)
	for range clients {
		all.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				if err := c.submitNext(ctx); err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	time.Sleep(b.warm)
	counted, began := done.Load(), time.Now()
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	return float64(done.Load()-counted) / time.Since(began).Seconds(), nil
}

// submissionLatency: at a quarter of the rate that goes through, ours or pgbench's,
// whichever is lower: at a quarter of ours pgbench is near its limit. Whoever is due
// comes, whether those before are done or not.
func submissionLatency(ctx context.Context, b *lab) ([]Result, error) {
	rate := min(b.perSecond, b.pgbenchPerSecond) / 4
	if rate == 0 {
		return nil, errors.New("comes after the rates; take all figures of submissions")
	}
	before, ours, after, err := between(
		anew(ctx, b, func(db *database) (float64, error) {
			took, err := db.pgbenchTook(ctx, rate)
			return percentile(took, 99), err
		}),
		anew(ctx, b, func(db *database) (float64, error) {
			took, err := db.pacedSubmissions(ctx, rate)
			return percentile(took, 99), err
		}))
	return []Result{{
		Figure: fmt.Sprintf("p99 of POST /emails at %.0f/s, open model", rate), Unit: "ms", Baseline: "p99 of that pgbench at the same rate",
		Ours: ours, Before: before, After: after, Must: 3, Aim: 1.5, LessIsBetter: true,
	}}, err
}

func (d *database) pacedSubmissions(ctx context.Context, rate float64) ([]time.Duration, error) {
	api, err := d.startAPI(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = api.stop() }()
	c := newClient(api, d.token)
	return paced(ctx, rate, d.lab.paced, func(ctx context.Context, number int64, _ time.Time) error {
		return c.submit(ctx, number)
	})
}

// paced calls f at a rate, each time when it is due, with numbers from 1 on, and returns
// how long it took from then on. Of the first tenth nothing is kept.
func paced(
	ctx context.Context, rate float64, length time.Duration, f func(ctx context.Context, number int64, due time.Time) error,
) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n := int(rate * length.Seconds())
	took := make([]time.Duration, n)
	var all sync.WaitGroup
	began := time.Now()
	for i := range n {
		due := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			if err := f(ctx, int64(i+1), due); err != nil {
				cancel(err)
			}
			took[i] = time.Since(due)
		})
	}
	all.Wait()
	return took[n/10:], context.Cause(ctx)
}
