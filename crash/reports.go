package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// reports are what the provider tells of a mail at B11. They leave the status
// at sent, so that outcomes read as in the other cells.
var reports = []providers.EventType{providers.EventAccepted, providers.EventDelayed, providers.EventOpened}

// report has the provider report about the first attempt, as the API stores it.
func (x *experiment) report(ctx context.Context) error {
	return x.store(ctx, x.events())
}

// reportCopies has it report many times, shuffled and at once.
func (x *experiment) reportCopies(ctx context.Context) error {
	const requests, copies = 5, 4
	var wg sync.WaitGroup
	errs := make([]error, requests)
	for i := range requests {
		wg.Go(func() {
			var events []providers.Event
			for range copies {
				events = append(events, x.events()...)
			}
			rand.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
			errs[i] = x.store(ctx, events)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (x *experiment) events() []providers.Event {
	key := x.provider.seen()[0].Key
	events := make([]providers.Event, len(reports))
	for i, t := range reports {
		events[i] = providers.Event{
			Type: t, Reference: key, Recipient: canaryTo, OccurredAt: time.Date(2026, 1, 1, 0, 0, i, 0, time.UTC),
		}
	}
	return events
}

func (x *experiment) store(ctx context.Context, events []providers.Event) error {
	client, err := outbox.NewClient(x.db.pool, outbox.Config{})
	if err != nil {
		return err
	}
	name := "sendgrid"
	if x.cell.Kind == Key {
		name = "resend"
	}
	_, err = client.RecordEvents(ctx, name, events)
	return err
}
