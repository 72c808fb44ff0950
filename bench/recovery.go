package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

const (
	// held are how many emails are with the provider when a worker is killed.
	held = 20
	// recoveryLimit ends a run in which nothing is taken over.
	recoveryLimit = time.Minute
)

// recovery: a worker is killed while the provider has not answered it. What counts is
// when another worker sends each of its emails again.
func recovery(ctx context.Context, b *lab) (_ []Result, err error) {
	db, err := b.newDatabase(ctx)
	if err != nil {
		return nil, err
	}
	api, err := db.startAPI(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, api.stop()) }()
	r := &recoveries{db: db, client: newClient(api, db.token)}
	defer func() { err = errors.Join(err, r.stop()) }()
	for len(r.workers) < 2 {
		if err := r.startWorker(ctx); err != nil {
			return nil, err
		}
	}
	var took []time.Duration
	for range b.kills {
		again, err := r.kill(ctx)
		if err != nil {
			return nil, err
		}
		took = append(took, again...)
	}
	return []Result{{
		Figure: fmt.Sprintf("SIGKILL of a worker to the next send of its emails, p99 of %d emails in %d kills", len(took), b.kills), Unit: "ms",
		Ours: percentile(took, 99), Must: 2000, Aim: 1000, LessIsBetter: true,
	}}, nil
}

// recoveries kills one of two workers again and again.
type recoveries struct {
	db      *database
	client  *client
	workers map[string]*program // by the name that the provider knows it by
	made    int
}

func (r *recoveries) startWorker(ctx context.Context) error {
	if r.workers == nil {
		r.workers = map[string]*program{}
	}
	r.made++
	name := fmt.Sprint("worker-", r.made)
	path := filepath.Join(r.db.lab.dir, "worker")
	w, err := r.db.start(ctx, "worker", path, nil, "RESEND_BASE_URL="+r.db.lab.provider.url+"/"+name)
	if err == nil {
		r.workers[name] = w
	}
	return err
}

func (r *recoveries) stop() error {
	var err error
	for _, w := range r.workers {
		err = errors.Join(err, w.stop())
	}
	return err
}

// kill kills the worker that most of the emails are with, and returns after how long
// each of them came again. Then there is another worker.
func (r *recoveries) kill(ctx context.Context) ([]time.Duration, error) {
	p := r.db.lab.provider
	complete := p.expect(held)
	answer := p.hold()
	defer answer()
	for range held {
		if err := r.client.submitNext(ctx); err != nil {
			return nil, err
		}
	}
	if err := within(recoveryLimit, complete, "not all emails reached the provider"); err != nil {
		return nil, err
	}
	victim, numbers := p.busiest()
	killed := time.Now()
	if err := r.workers[victim].kill(); err != nil {
		return nil, err
	}
	delete(r.workers, victim)
	if err := within(recoveryLimit, p.expectAgain(numbers), "not all emails came again"); err != nil {
		return nil, err
	}
	took := make([]time.Duration, len(numbers))
	for i, number := range numbers {
		took[i] = p.again(number).Sub(killed)
	}
	return took, r.startWorker(ctx)
}

// within waits until something is done.
func within(limit time.Duration, done <-chan struct{}, otherwise string) error {
	select {
	case <-done:
		return nil
	case <-time.After(limit):
		return errors.New(otherwise)
	}
}
