package outbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/providers"
)

// An attempt that was begun and not finished is in doubt: the provider may
// have accepted the message. What is done about it, in this order: leave it to
// its worker while that may be sending; send the same bytes under the same key
// again, where the provider recognises the key; ask the provider; wait for
// evidence; at last, what the email's policy says. Never is another provider
// tried while there is doubt.

// replayMargin is how long before the end of a provider's key window a key
// counts as forgotten.
const replayMargin = 10 * time.Minute

// resolve decides about an email with an open attempt. It returns how long to
// wait before the next look.
func (d *deliverer) resolve(ctx context.Context, e *delivery) (time.Duration, error) {
	busy, dead, err := d.busy(ctx, e)
	if err != nil {
		return 0, err
	}
	if busy > 0 {
		return busy, nil
	}
	if e.open.Reported {
		return 0, d.settleReported(ctx, e)
	}
	if e.unreadable != nil {
		// A replay may settle it, for which the content is needed.
		return d.waitForKey(ctx, e)
	}
	provider := d.provider(e.open.Provider)
	if replay := d.replayOf(e, provider); replay != nil {
		return d.replay(ctx, replay)
	}
	if settled, err := d.search(ctx, e, provider, dead); settled || err != nil {
		return 0, err
	}
	return d.waitOrDecide(ctx, e)
}

// busy returns how long to leave the attempt to its worker, which may be
// sending; zero: nobody is. A paused worker stays the owner, until the
// deadline after which it refuses to send. dead means that the worker is gone
// for good.
func (d *deliverer) busy(ctx context.Context, e *delivery) (wait time.Duration, dead bool, err error) {
	// This process may be sending it, whoever owns the attempt by now: it may
	// have been taken over and be back.
	if d.underWay.has(e.open.Key) {
		return time.Second, false, nil
	}
	if e.open.Worker == d.worker {
		return 0, false, nil
	}
	alive, err := isAlive(ctx, d.pool, e.open.Worker)
	if err != nil {
		return 0, false, err
	}
	if !alive || e.open.InDoubtAt != nil {
		return 0, !alive, nil
	}
	if left := e.timeLeft(); left > 0 {
		return min(left, 2*time.Second), false, nil
	}
	return 0, false, nil
}

// timeLeft returns how long until the open attempt is past its deadline and the
// margin behind it; zero or less: it is.
func (e *delivery) timeLeft() time.Duration {
	return e.open.Deadline.Add(attemptMargin).Sub(e.now)
}

// replayOf returns the attempt as it was, if its provider still recognises the
// key and the bytes come out the same. A release in between may render
// differently; then it is no replay.
func (d *deliverer) replayOf(e *delivery, p providers.Provider) *attempt {
	if p == nil {
		return nil
	}
	window := keyWindow(p)
	if window == 0 || e.now.After(e.open.BeganAt.Add(window)) {
		return nil
	}
	message, err := e.compose(d.cfg.PublicURL)
	if err != nil {
		return nil
	}
	// Whoever is suppressed by now: the bytes are those of the beginning.
	leaveOut(&message, e.wasLeftOut)
	a, err := d.render(e, p, message, e.open.Key, e.open.BeganAt)
	if err != nil || !bytes.Equal(a.payloadHash[:], e.open.PayloadHash) {
		return nil
	}
	a.number, a.evidence = e.open.Number, EvidenceReplay
	return a
}

// keyWindow is how long a provider is trusted to recognise a key.
func keyWindow(p providers.Provider) time.Duration {
	window := p.Capabilities().KeyWindow
	return window - min(replayMargin, window/4)
}

// settleReported ends the doubt about an attempt that the provider has reported
// something of: it has the message.
func (d *deliverer) settleReported(ctx context.Context, e *delivery) error {
	d.log.InfoContext(ctx, "doubt settled by an event", "email", e.ID)
	return d.finish(ctx, ending{
		email: e.ID, number: e.open.Number, key: e.open.Key, worker: e.open.Worker,
		stage: StageAccepted, status: StatusSent, evidence: EvidenceWebhook,
	})
}

// sqlTakeOver makes this worker the owner of an open attempt, unless another
// was faster. What the former owner may still say is then only heard if it is
// "accepted". The key window and the org are checked here again: this process
// may have been paused since it looked, and so may the org.
const sqlTakeOver = `
UPDATE outbox.attempts SET worker = $4, deadline = now() + $5::interval, in_doubt_at = NULL
WHERE email_id = $1 AND number = $2 AND stage = 'sending' AND worker = $3
    AND in_doubt_at IS NOT DISTINCT FROM $6 AND began_at > now() - $7::interval
    AND NOT EXISTS (SELECT FROM outbox.emails e WHERE e.id = $1 AND ` + stoppedSQL + `)`

// replay sends the attempt again under its own key. The provider accepts it
// for the first time or answers as it did before. It waits like any other call
// while the provider is out, at most until the key is forgotten.
func (d *deliverer) replay(ctx context.Context, a *attempt) (wait time.Duration, err error) {
	permit, hold, err := d.flow.admit(ctx, a.provider.Name(), a.lane)
	if err != nil {
		return 0, err
	}
	if permit == nil {
		left := a.open.BeganAt.Add(keyWindow(a.provider)).Sub(a.now)
		return min(hold.wait, left+time.Second), nil
	}
	a.permit = permit
	defer d.flow.giveBack(ctx, permit)
	ctx, span := d.traceAttempt(ctx, a)
	defer func() { endSpan(span, err) }()
	a.deadline = deadlineIn(d.cfg.SendTimeout)
	defer d.underWay.add(a.key)()
	tag, err := d.pool.Exec(ctx, sqlTakeOver, a.email, a.number, a.open.Worker, a.worker, a.budget, a.open.InDoubtAt,
		keyWindow(a.provider))
	if err != nil {
		return 0, fmt.Errorf("take over attempt: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return time.Second, nil
	}
	send, drop := d.prepare(ctx, a)
	defer drop()
	return d.send(ctx, a, send)
}

// search asks the provider what became of the attempt. That it has no such
// message counts only if nobody can send it any more, and if what the dead
// worker sent last has had the time to be accepted.
func (d *deliverer) search(ctx context.Context, e *delivery, p providers.Provider, dead bool) (settled bool, err error) {
	finder, ok := p.(providers.Finder)
	if !ok {
		return false, nil
	}
	searchCtx, cancel := context.WithTimeout(ctx, d.cfg.SendTimeout)
	defer cancel()
	receipt, found, err := finder.Find(searchCtx, e.open.Key.String(), e.open.BeganAt)
	if err != nil {
		d.log.WarnContext(ctx, "search at the provider failed", "email", e.ID, "provider", e.open.Provider,
			"error", e.Message.scrub(err.Error()))
		return false, nil
	}
	end := ending{
		email: e.ID, number: e.open.Number, key: e.open.Key, worker: e.open.Worker, evidence: EvidenceSearch,
		statusCode: receipt.Status, providerMessageID: plain(receipt.ProviderMessageID, maxName),
	}
	switch {
	case found == providers.FoundAccepted:
		end.stage, end.status = StageAccepted, StatusSent
	case found == providers.FoundNotAccepted && dead && e.timeLeft() <= 0:
		end.stage, end.status, end.code = StageDeferred, StatusQueued, "not_found"
	default:
		return false, nil
	}
	if err := d.finish(ctx, end); err != nil {
		return false, err
	}
	d.log.InfoContext(ctx, "doubt settled by a search", "email", e.ID, "stage", end.stage)
	if end.status == StatusQueued {
		_, err = d.deliver(ctx, e.ID, e.lane)
	}
	return true, err
}

const (
	// sqlMarkDoubt shows a doubt that no worker reported: its own is gone.
	sqlMarkDoubt = `
WITH marked AS (
    UPDATE outbox.attempts SET in_doubt_at = coalesce(in_doubt_at, now())
    WHERE email_id = $1 AND number = $2 AND stage = 'sending' AND worker = $3
    RETURNING email_id, in_doubt_at
), email AS (
    UPDATE outbox.emails e SET status = 'unknown', reason = $4
    FROM marked m WHERE e.id = m.email_id AND e.status IN ('sending', 'unknown')
)
SELECT in_doubt_at FROM marked`

	// sqlGiveUpOn closes an attempt whose outcome stays unknown.
	sqlGiveUpOn = `
WITH closed AS (
    UPDATE outbox.attempts SET stage = 'unknown', evidence = 'policy', ended_at = now()
    WHERE email_id = $1 AND number = $2 AND stage = 'sending' AND worker = $3
    RETURNING email_id
)
UPDATE outbox.emails e
SET status = $4, reason = nullif($5, ''), next_attempt_at = NULL,
    ended_at = CASE WHEN $4 = 'failed' THEN now() END
FROM closed c WHERE e.id = c.email_id AND e.ended_at IS NULL`
)

// holdInterval is how often an email that waits for a person is looked at.
const holdInterval = 15 * time.Minute

// waitOrDecide shows the doubt, and after the time for evidence does what the
// policy says.
func (d *deliverer) waitOrDecide(ctx context.Context, e *delivery) (time.Duration, error) {
	var since time.Time
	err := d.pool.QueryRow(ctx, sqlMarkDoubt, e.ID, e.open.Number, e.open.Worker, reasonInDoubt).Scan(&since)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Second, nil // settled or taken over in this moment
	}
	if err != nil {
		return 0, fmt.Errorf("mark doubt: %w", err)
	}
	// Not before the deadline either: until then what a dead worker sent last
	// may still be accepted, and a search may show it.
	if left := max(since.Add(d.cfg.UnknownWait).Sub(e.now), e.timeLeft()); left > 0 {
		return min(left, 15*time.Second), nil
	}
	policy := cmp.Or(e.Message.OnUnknown, e.orgPolicy, d.cfg.OnUnknown)
	status, reason := StatusQueued, ""
	switch policy {
	case PolicyHold:
		return holdInterval, nil
	case PolicyDrop:
		status, reason = StatusFailed, reasonUnknown
	}
	tag, err := d.pool.Exec(ctx, sqlGiveUpOn, e.ID, e.open.Number, e.open.Worker, string(status), reason)
	if err != nil {
		return 0, fmt.Errorf("apply policy %s: %w", policy, err)
	}
	d.cfg.Metrics.settled(EvidencePolicy, int(tag.RowsAffected()))
	d.log.WarnContext(ctx, "doubt ended by policy", "email", e.ID, "attempt", e.open.Number, "policy", policy)
	if status == StatusFailed {
		return 0, nil
	}
	return d.deliver(ctx, e.ID, e.lane)
}

// closeOpen closes an attempt that stayed in doubt while evidence about an
// earlier one ended the email.
func (d *deliverer) closeOpen(ctx context.Context, e *delivery) (time.Duration, error) {
	busy, _, err := d.busy(ctx, e)
	if err != nil || busy > 0 {
		return busy, err
	}
	_, err = d.pool.Exec(ctx, sqlGiveUpOn, e.ID, e.open.Number, e.open.Worker, string(e.Status), "")
	if err != nil {
		return 0, fmt.Errorf("close attempt: %w", err)
	}
	return 0, nil
}

// sqlSettle makes a late "accepted" count: for an attempt that was closed as
// unknown, and for its email, also when another attempt has begun since.
const sqlSettle = `
WITH settled AS (
    UPDATE outbox.attempts
    SET stage = 'accepted', evidence = $4, provider_message_id = coalesce(provider_message_id, nullif($5, '')),
        ended_at = now()
    WHERE email_id = $1 AND number = $2 AND provider_key = $3 AND stage = 'unknown'
    RETURNING email_id, number
)
UPDATE outbox.emails e
SET status = ` + acceptedSQL + `, reason = NULL, reason_detail = NULL, next_attempt_at = NULL, ended_at = now()
FROM settled s
WHERE e.id = s.email_id AND (e.ended_at IS NULL OR e.status = 'failed')`

// settle records that an attempt was accepted after all.
func (d *deliverer) settle(ctx context.Context, e ending) error {
	tag, err := d.pool.Exec(ctx, sqlSettle, e.email, e.number, e.key, string(e.evidence), e.providerMessageID)
	if err != nil {
		return fmt.Errorf("settle attempt: %w", err)
	}
	d.cfg.Metrics.settled(e.evidence, int(tag.RowsAffected()))
	return nil
}

// keySet counts what this process is sending, by key.
type keySet struct {
	mu   sync.Mutex
	keys map[uuid.UUID]int
}

// add returns the function that takes the key out again.
func (s *keySet) add(key uuid.UUID) (remove func()) {
	s.count(key, 1)
	return func() { s.count(key, -1) }
}

func (s *keySet) count(key uuid.UUID, change int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = map[uuid.UUID]int{}
	}
	if s.keys[key] += change; s.keys[key] == 0 {
		delete(s.keys, key)
	}
}

func (s *keySet) has(key uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key] > 0
}
