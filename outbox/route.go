package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// refusalError is why no provider can carry a message, now or later.
type refusalError struct{ err error }

func (e *refusalError) Error() string { return e.err.Error() }
func (e *refusalError) Unwrap() error { return e.err }

// route picks the provider and renders the message for it. Each definite "not
// accepted" moves on to the next provider in order. One that is taken out, or
// that cannot carry the message, is passed over; a rate is waited for. Without
// an attempt, the hold says why and how long the email should wait; a
// [refusalError] that there is nothing to wait for.
func (d *deliverer) route(ctx context.Context, e *delivery, m providers.Message) (*attempt, hold, error) {
	candidates, err := d.candidates(e)
	if err != nil {
		return nil, hold{}, &refusalError{err}
	}
	var refusals []error
	var waits []hold
	for _, p := range candidates {
		if closed := d.flow.closed(ctx, p.Name()); closed.wait > 0 {
			waits = append(waits, closed)
			continue
		}
		a, err := d.render(e, p, m, newID(), e.now)
		if err != nil {
			refusals = append(refusals, err)
			continue
		}
		permit, wait, err := d.flow.admit(ctx, p.Name(), e.lane)
		if permit != nil || err != nil {
			a.permit = permit
			return a, hold{}, err
		}
		waits = append(waits, wait)
		if wait.reason == reasonRateLimited && !d.flow.isRamping(p.Name()) {
			break
		}
	}
	if len(waits) == 0 {
		return nil, hold{}, &refusalError{errors.Join(refusals...)}
	}
	return nil, slices.MinFunc(waits, func(a, b hold) int { return int(a.wait - b.wait) }), nil
}

// candidates are the providers that the email may go to, the next one first.
func (d *deliverer) candidates(e *delivery) ([]providers.Provider, error) {
	list, err := pinned(d.cfg.Providers, e.Message.Provider)
	if err != nil {
		return nil, err
	}
	first := int(e.attempts) % len(list)
	return slices.Concat(list[first:], list[:first]), nil
}

// provider returns the configured provider of that name, or nil.
func (d *deliverer) provider(name string) providers.Provider {
	if list, err := pinned(d.cfg.Providers, name); err == nil && name != "" {
		return list[0]
	}
	return nil
}

// sqlPostpone shows why an email waits.
const sqlPostpone = `
UPDATE outbox.emails SET next_attempt_at = now() + $3::interval, reason = $4
WHERE id = $1 AND attempts = $2 AND status IN ('queued', 'scheduled')`

// postpone lets the email wait for a provider, as long as that makes sense.
func (d *deliverer) postpone(ctx context.Context, e *delivery, h hold) (time.Duration, error) {
	// A wrong key is our fault, and so is what it costs to wait.
	if h.reason != reasonMisconfigured && e.now.After(e.giveUpAt(d.cfg.GiveUpAfter)) {
		return 0, d.end(ctx, e, StatusFailed, reasonGaveUp, errors.New("no provider took it: "+h.reason))
	}
	return d.putOff(ctx, e, h.wait, reasonProvider+h.reason)
}

// putOff shows why the email waits. No attempt is used up.
func (d *deliverer) putOff(ctx context.Context, e *delivery, wait time.Duration, reason string) (time.Duration, error) {
	if expires := e.Message.ExpiresAt; !expires.IsZero() {
		wait = min(wait, max(expires.Sub(e.now), 0)+time.Millisecond)
	}
	if _, err := d.pool.Exec(ctx, sqlPostpone, e.ID, e.attempts, wait, reason); err != nil {
		return 0, fmt.Errorf("postpone email: %w", err)
	}
	return wait, nil
}

const (
	// reasonProvider begins why an email waits for a provider.
	reasonProvider   = "provider_"
	reasonKeyMissing = "key_missing"
	reasonUnreadable = "content_unreadable"

	// keyWait is how often an email is looked at whose content cannot be opened.
	keyWait = time.Minute
)

// waitForKey lets the email wait until its content can be opened, by this worker or
// by another. It is not given up: that it waits is our fault.
func (d *deliverer) waitForKey(ctx context.Context, e *delivery) (time.Duration, error) {
	reason := reasonUnreadable
	if e.unreadable.Missing {
		reason = reasonKeyMissing
	}
	d.log.ErrorContext(ctx, "email waits: its content cannot be opened", "email", e.ID,
		"reason", reason, "key", e.unreadable.KeyID, "error", e.unreadable)
	if e.open != nil {
		return keyWait, nil
	}
	return d.putOff(ctx, e, keyWait, reason)
}
