package main

import (
	"context"
	"errors"
	"fmt"
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
func recovery(ctx context.Context, b *lab) ([]Result, error) {
	took, err := anew(ctx, b, func(db *database) ([]time.Duration, error) { return db.recoveries(ctx) })()
	if err != nil {
		return nil, err
	}
	return []Result{{
		Figure: fmt.Sprintf("SIGKILL of a worker to the next send of its emails, p99 of %d emails in %d kills", len(took), b.kills), Unit: "ms",
		Ours: percentile(took, 99), Must: 2000, Aim: 1000, LessIsBetter: true,
	}}, nil
}

// recoveries kills one worker after the other.
func (d *database) recoveries(ctx context.Context) (took []time.Duration, err error) {
	in, err := d.startInstallation(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.stop()) }()
	for range d.lab.kills {
		again, err := in.recover(ctx)
		if err != nil {
			return nil, err
		}
		took = append(took, again...)
	}
	return took, nil
}

// recover kills the worker that most of the emails are with, and returns after how long
// each of them came again. Then there is another worker.
func (in *installation) recover(ctx context.Context) ([]time.Duration, error) {
	p := in.db.lab.provider
	complete := p.expect(held)
	answer := p.hold()
	defer answer()
	for range held {
		if err := in.client.submitNext(ctx); err != nil {
			return nil, err
		}
	}
	if err := within(recoveryLimit, complete, "not all emails reached the provider"); err != nil {
		return nil, err
	}
	victim, numbers := p.busiest()
	killed := time.Now()
	if err := in.killWorker(victim); err != nil {
		return nil, err
	}
	if err := within(recoveryLimit, p.expectAgain(numbers), "not all emails came again"); err != nil {
		return nil, err
	}
	took := make([]time.Duration, len(numbers))
	for i, number := range numbers {
		took[i] = p.again(number).Sub(killed)
	}
	return took, in.startWorker(ctx)
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
