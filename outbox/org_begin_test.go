package outbox_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// interrupted is a provider that something happens before: between the worker's
// look at the email and the beginning of its attempt.
type interrupted struct {
	providers.Provider
	before func()
}

func (p interrupted) Render(r providers.Request) ([]byte, error) {
	p.before()
	return p.Provider.Render(r)
}

// A worker that had loaded the email already begins no attempt once the org is
// paused or deleted, and takes no doubt over.
func TestStoppedOrgBeginsNothing(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*delivering){
		"paused":  (*delivering).pause,
		"deleted": func(d *delivering) { d.delete() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newAcme(t)
			d.deliverer = d.newDeliverer(interrupted{newSendGrid(t, d.provider.URL()), func() { stop(d) }})
			id := d.enqueue()
			if wait := d.deliver(id); wait <= 0 {
				t.Errorf("wait %v: nobody looks at the email again", wait)
			}
			if email := d.get(id); email.Status != outbox.StatusQueued || len(email.Attempts) != 0 || d.provider.Requests() != 0 {
				t.Errorf("status %s, %d attempts, %d requests", email.Status, len(email.Attempts), d.provider.Requests())
			}
		})
		t.Run(name+" in doubt", func(t *testing.T) {
			t.Parallel()
			d := newAcme(t)
			doubt := d.inDoubtAt(providertest.NewHTTP(t, providertest.Resend))
			d.deliverer = d.newDeliverer(interrupted{newResend(t, doubt.provider.URL()), func() { stop(d) }})
			d.exec("UPDATE outbox.attempts SET worker = $1", uuid.NewString()) // a dead one's
			if wait := d.deliver(doubt.id); wait <= 0 {
				t.Errorf("wait %v: nobody looks at the email again", wait)
			}
			if email := d.get(doubt.id); email.Status != outbox.StatusUnknown || doubt.provider.Requests() != 1 {
				t.Errorf("status %s, %d requests", email.Status, doubt.provider.Requests())
			}
		})
	}
}

// Whoever pauses an org stops what waits for its turn, and nobody else.
func TestPauseStopsOneOrg(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	other := *d
	other.org = uuid.New()
	other.deliverer = d.newDeliverer(interrupted{newSendGrid(t, d.provider.URL()), d.pause})
	id := other.enqueue()
	if _, err := other.deliverer.Deliver(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	if email := other.get(id); email.Status != outbox.StatusSent {
		t.Errorf("status %s of another org's email", email.Status)
	}
}
