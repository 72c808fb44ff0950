package outbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[outbox.Outcome]struct {
		status outbox.Status
		stage  outbox.Stage
	}{
		outbox.OutcomeAccepted:    {outbox.StatusSent, outbox.StageAccepted},
		outbox.OutcomeNotAccepted: {outbox.StatusQueued, outbox.StageDeferred},
	} {
		d := newDelivering(t)
		id := d.enqueue(func(m *outbox.Message) { m.OnUnknown = outbox.PolicyHold })
		d.crashed(id, false)
		resolve := func() error { return d.client.Resolve(context.Background(), d.org, id, outcome, "jane") }
		if err := resolve(); !errors.Is(err, outbox.ErrNotUnknown) {
			t.Errorf("%s before the doubt is established: %v", outcome, err)
		}
		d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
		d.deliver(id)
		if err := resolve(); err != nil {
			t.Fatal(err)
		}
		email := d.get(id)
		a := email.Attempts[0]
		if email.Status != want.status || a.Stage != want.stage || a.Evidence != outbox.EvidencePerson {
			t.Errorf("%s: status %s, attempt %+v", outcome, email.Status, a)
		}
		if len(email.Events) != 1 || email.Events[0].Type != "resolved" || email.Events[0].Detail != string(outcome)+" by jane" {
			t.Errorf("%s: events %+v", outcome, email.Events)
		}
		if err := resolve(); !errors.Is(err, outbox.ErrNotUnknown) {
			t.Errorf("%s again: %v", outcome, err)
		}
		d.provider.Respond(nil)
		d.deliver(id)
		// A person vouched: the further attempt is not flagged.
		if email := d.get(id); email.Status != outbox.StatusSent || email.PossibleDuplicate {
			t.Errorf("%s: in the end %s, possible duplicate %v", outcome, email.Status, email.PossibleDuplicate)
		}
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	retry := func() error { return d.client.Retry(context.Background(), d.org, id, "jane") }
	if err := retry(); !errors.Is(err, outbox.ErrNotFailed) {
		t.Errorf("retry of a queued email: %v", err)
	}
	d.exec("UPDATE outbox.emails SET status = 'failed', reason = 'rejected', ended_at = now()")
	if err := retry(); err != nil {
		t.Fatal(err)
	}
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.river_job"); n != 2 {
		t.Errorf("%d jobs, want one for the submission and one for the retry", n)
	}
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusSent || len(email.Events) != 1 {
		t.Errorf("status %s, events %+v", email.Status, email.Events)
	}
	if err := d.client.Retry(context.Background(), uuid.New(), id, "a stranger"); !errors.Is(err, outbox.ErrNotFound) {
		t.Errorf("retry by another org: %v", err)
	}
}
