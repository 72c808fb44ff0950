package outbox_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/resend"
)

// probeNow lets the time pass until providers that are out may be tried.
func (d *delivering) probeNow() {
	d.t.Helper()
	d.exec("UPDATE outbox.providers SET probe_at = now() WHERE reason IS NOT NULL")
	d.deliverer.LookAgain()
}

// due lets the time pass until all emails may be tried.
func (d *delivering) due() { d.exec("UPDATE outbox.emails SET next_attempt_at = now()") }

func (d *delivering) state(name string) outbox.ProviderState {
	d.t.Helper()
	states, err := outbox.ProviderStates(context.Background(), d.pool)
	must(d.t, err)
	for _, s := range states {
		if s.Name == name {
			return s
		}
	}
	return outbox.ProviderState{}
}

// waits checks that the email is left in the queue without an attempt.
func (d *delivering) waits(id uuid.UUID, atLeast time.Duration, reason string) {
	d.t.Helper()
	if wait := d.deliver(id); d.full(wait) < atLeast {
		d.t.Errorf("wait %v, want at least %v", wait, atLeast)
	}
	email := d.get(id)
	if email.Status != outbox.StatusQueued || email.Reason != reason || len(email.Attempts) != 0 {
		d.t.Errorf("status %s (%s), %d attempts; want queued (%s) and none", email.Status, email.Reason, len(email.Attempts), reason)
	}
}

// newResend returns a provider of another name than the bench's own.
func newResend(t *testing.T, url string) providers.Provider {
	t.Helper()
	p, err := resend.New(resend.Config{APIKey: "re_secret", BaseURL: url})
	must(t, err)
	return p
}

// A 429 holds for the provider and not only for the email: every worker leaves
// it alone as long as it asked for, and no attempt is used up.
func TestRateLimitHoldsForAllWorkers(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(always(providertest.Reply(429, "").With("Retry-After", "90")))
	d.deliver(d.enqueue())
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
	d.waits(d.enqueue(), 90*time.Second, "provider_rate_limited")
	if n := d.provider.Requests(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	if s := d.state("sendgrid"); s.Reason != "rate_limited" || d.full(s.ProbeIn) < 90*time.Second {
		t.Errorf("state %+v", s)
	}
}

func always(r providertest.Reaction) func(providertest.Seen) providertest.Reaction {
	return func(providertest.Seen) providertest.Reaction { return r }
}

// A wrong key takes the provider out and raises an alarm. The message is safe:
// another provider takes it, and no other email meets the first one.
func TestMisconfiguredProviderIsTakenOut(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(always(providertest.Reply(401, `{"errors":[{"message":"revoked for a@example.com"}]}`)))
	other := providertest.NewHTTP(t, providertest.Resend)
	var log bytes.Buffer
	d.deliverer = d.newDelivererWith(outbox.WorkerConfig{
		Logger:    slog.New(slog.NewTextHandler(&log, nil)),
		Providers: []providers.Provider{newSendGrid(t, d.provider.URL()), newResend(t, other.URL())},
	})

	first, second := d.enqueue(), d.enqueue()
	d.deliver(first)
	d.deliver(second)
	d.due()
	d.deliver(first)
	for _, id := range []uuid.UUID{first, second} {
		if email := d.get(id); email.Status != outbox.StatusSent || email.Attempts[len(email.Attempts)-1].Provider != "resend" {
			t.Errorf("status %s, attempts %+v", email.Status, email.Attempts)
		}
	}
	if n := d.provider.Requests(); n != 1 {
		t.Errorf("%d requests at the provider with the wrong key, want 1", n)
	}
	if !strings.Contains(log.String(), `level=ERROR msg="provider taken out" provider=sendgrid reason=misconfigured`) {
		t.Errorf("no alarm in the log:\n%s", log.String())
	}
	if s := d.state("sendgrid"); s.Reason != "misconfigured" || s.Detail != "revoked for (address)" {
		t.Errorf("state %+v", s)
	}
}

// A provider that does not answer several times in a row is down. One email of
// all tries it; a failure takes it out for longer, a success puts it back.
func TestBreaker(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(always(providertest.Reply(500, "")))
	for range 4 {
		d.deliver(d.enqueue())
	}
	if s := d.state("sendgrid"); s.Reason != "" {
		t.Fatalf("taken out after 4 failures: %+v", s)
	}
	d.deliver(d.enqueue())
	if s := d.state("sendgrid"); s.Reason != "unavailable" || s.ProbeIn > 7*time.Second {
		t.Fatalf("state after 5 failures: %+v", s)
	}
	waiting := d.enqueue()
	d.waits(waiting, time.Second, "provider_unavailable")

	d.due()
	d.probeNow()
	d.deliver(waiting)
	s := d.state("sendgrid")
	if s.Reason != "unavailable" || d.full(s.ProbeIn) < 7*time.Second {
		t.Errorf("state after a failed probe: %+v, want twice the wait", s)
	}
	if n := d.provider.Requests(); n != 6 {
		t.Errorf("%d requests, want 6", n)
	}

	d.provider.Respond(nil)
	d.probeNow()
	d.deliver(d.enqueue())
	if s := d.state("sendgrid"); s.Reason != "" || s.RecoveredFor == 0 {
		t.Errorf("state after a good probe: %+v", s)
	}
}

// While one email tries a provider, the others wait, in all processes.
func TestOneProbeOfAll(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(always(providertest.Reply(401, "")))
	d.deliver(d.enqueue())
	release := make(chan struct{})
	d.provider.Respond(always(providertest.Accept().When(release)))
	d.probeNow()

	workers := []*outbox.Deliverer{d.deliverer, d.newDeliverer(newSendGrid(t, d.provider.URL()))}
	var wg sync.WaitGroup
	var waited sync.WaitGroup
	const emails = 10
	waited.Add(emails - 1)
	for i := range emails {
		id := d.enqueue()
		wg.Go(func() {
			wait, err := workers[i%2].Deliver(context.Background(), id)
			if err != nil {
				t.Error(err)
			}
			if wait > 0 {
				waited.Done()
			}
		})
	}
	waited.Wait()
	close(release)
	wg.Wait()
	if n := d.provider.Requests(); n != 2 {
		t.Errorf("%d requests, want the one that found out and one probe", n)
	}
	if s := d.state("sendgrid"); s.Reason != "" {
		t.Errorf("state %+v", s)
	}
}

// A probe that could not be made is another email's to make, at once.
func TestProbeThatWasNotMadeIsGivenBack(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(always(providertest.Reply(401, "")))
	d.deliver(d.enqueue())
	d.probeNow()
	d.kill() // the worker no longer owns what it begins
	if _, err := d.deliverer.Deliver(context.Background(), d.enqueue()); err == nil {
		t.Fatal("a worker without its session began an attempt")
	}
	if s := d.state("sendgrid"); s.Reason != "misconfigured" || s.ProbeIn > 0 || d.provider.Requests() != 1 {
		t.Errorf("state %+v, %d requests; want that it may be tried, and one", s, d.provider.Requests())
	}
}

// A message that was refused for its own sake says nothing against the provider.
func TestRefusalsOfMessagesAreNoOutage(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(always(providertest.Reply(400, "")))
	for range 10 {
		d.deliver(d.enqueue())
	}
	if n := d.provider.Requests(); n != 10 || d.state("sendgrid").Reason != "" {
		t.Errorf("%d requests, state %+v; want 10, in order", n, d.state("sendgrid"))
	}
}

// Only what was out is ramped up: a provider that never was has no bound.
func TestProviderThatWasNeverOut(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.exec("INSERT INTO outbox.providers (name) VALUES ('sendgrid')")
	if diff := cmp.Diff(outbox.ProviderState{Name: "sendgrid"}, d.state("sendgrid")); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if d.deliver(d.enqueue()); d.deliverer.IsRamping("sendgrid") {
		t.Error("it is ramped up")
	}
	d.provider.Respond(always(providertest.Reply(401, "")))
	d.deliver(d.enqueue())
	d.provider.Respond(nil)
	d.probeNow()
	if d.deliver(d.enqueue()); !d.deliverer.IsRamping("sendgrid") {
		t.Error("it is not ramped up after an outage")
	}
}

// A worker that starts may have been given the right key.
func TestWrongKeyIsTriedAgainByANewWorker(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(always(providertest.Reply(401, "")))
	d.deliver(d.enqueue())
	d.waits(d.enqueue(), 20*time.Second, "provider_misconfigured")
	must(t, d.deliverer.Register(context.Background()))
	if s := d.state("sendgrid"); s.Reason != "misconfigured" || s.ProbeIn > 0 {
		t.Errorf("state %+v, want that it may be tried", s)
	}
}

// What a call says that began before the recovery is old.
func TestOldFailureDoesNotTakeOutAgain(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.exec("INSERT INTO outbox.providers (name) VALUES ('sendgrid')")
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		d.exec("UPDATE outbox.providers SET recovered_at = now() + interval '1 minute'")
		return providertest.Reply(401, "")
	})
	d.deliver(d.enqueue())
	if s := d.state("sendgrid"); s.Reason != "" {
		t.Errorf("state %+v", s)
	}
}

// An email that is pinned waits for its provider, and expires in time.
func TestPinnedEmailWaitsForItsProvider(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	other := providertest.NewHTTP(t, providertest.Resend)
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()), newResend(t, other.URL()))
	d.provider.Respond(always(providertest.Reply(429, "").With("Retry-After", "90")))
	pin := func(m *outbox.Message) { m.Provider = "sendgrid" }
	d.deliver(d.enqueue(pin))
	d.waits(d.enqueue(pin), 90*time.Second, "provider_rate_limited")

	soon := d.enqueue(pin, func(m *outbox.Message) { m.ExpiresAt = time.Now().Add(time.Minute) })
	if wait := d.deliver(soon); wait > time.Minute+time.Second {
		t.Errorf("wait %v, longer than the email lives", wait)
	}
	if n := len(other.Accepted()); n != 0 {
		t.Errorf("the other provider got %d", n)
	}
}

// Nobody waits for ever, except for a person to mend a key.
func TestWaitingForAProviderEnds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status int
		want   outbox.Status
	}{{429, outbox.StatusFailed}, {401, outbox.StatusQueued}} {
		d := newDelivering(t)
		d.provider.Respond(always(providertest.Reply(test.status, "").With("Retry-After", "600")))
		d.deliver(d.enqueue())
		id := d.enqueue()
		d.exec("UPDATE outbox.emails SET created_at = now() - interval '25 hours' WHERE id = $1", id)
		d.deliver(id)
		email := d.get(id)
		if email.Status != test.want || len(email.Attempts) != 0 {
			t.Errorf("%d: status %s (%s)", test.status, email.Status, email.Reason)
		}
		if test.want == outbox.StatusFailed && email.Reason != "gave_up" {
			t.Errorf("%d: reason %s", test.status, email.Reason)
		}
	}
}

// A rate holds for all workers together. Turns are never given early, so the
// last send is not before its time.
func TestRateOfAllWorkers(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	const emails, rate = 30, 60
	workers := make([]*outbox.Deliverer, 3)
	for i := range workers {
		workers[i] = d.newDelivererWith(outbox.WorkerConfig{
			Providers: []providers.Provider{newSendGrid(t, d.provider.URL())}, Rates: map[string]float64{"sendgrid": rate},
		})
	}
	ids := make([]uuid.UUID, emails)
	for i := range ids {
		ids[i] = d.enqueue()
	}
	start := time.Now()
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			for {
				wait, err := workers[i%len(workers)].Deliver(context.Background(), id)
				if err != nil {
					t.Error(err)
				}
				if err != nil || wait == 0 {
					return
				}
				d.due()
			}
		})
	}
	wg.Wait()
	accepted := d.provider.Accepted()
	if len(accepted) != emails {
		t.Fatalf("%d accepted, want %d", len(accepted), emails)
	}
	if took, least := accepted[emails-1].At.Sub(start), (emails-1)*time.Second/rate; took < least {
		t.Errorf("%d emails in %v, at %v a second that takes %v", emails, took, rate, least)
	}
}

// One org's flood goes behind the other orgs' mail, and behind its own mail of a
// higher priority.
func TestLanes(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	flood := func(door func(int, outbox.Submission) uuid.UUID, org uuid.UUID) {
		t.Helper()
		lane := func(i int, change func(*outbox.Message)) (lane int) {
			t.Helper()
			s := submission(org, "")
			change(&s.Messages[0])
			id := door(i, s)
			must(t, d.pool.QueryRow(context.Background(),
				"SELECT priority FROM outbox.river_job WHERE args ->> 'email_id' = $1::text", id.String()).Scan(&lane))
			return lane
		}
		normal := func(*outbox.Message) {}
		for i := range 55 {
			want := 2
			if i >= 50 {
				want = 4
			}
			if got := lane(i, normal); got != want {
				t.Errorf("email %d is in lane %d, want %d", i, got, want)
			}
		}
		for name, c := range map[string]struct {
			change func(*outbox.Message)
			want   int
		}{
			"high":      {func(m *outbox.Message) { m.Priority = outbox.PriorityHigh }, 1},
			"low":       {func(m *outbox.Message) { m.Priority = outbox.PriorityLow }, 3},
			"scheduled": {func(m *outbox.Message) { m.ScheduledAt = time.Now().Add(time.Hour) }, 2},
		} {
			if got := lane(0, c.change); got != c.want {
				t.Errorf("%s: lane %d, want %d", name, got, c.want)
			}
		}
		org = newOrg(t, d.pool)
		if got := lane(0, normal); got != 2 {
			t.Errorf("another org's email is in lane %d", got)
		}
	}
	fromGo := func(_ int, s outbox.Submission) uuid.UUID {
		receipt, err := d.client.Enqueue(context.Background(), s)
		must(t, err)
		return receipt.IDs[0]
	}
	fromSQL := func(_ int, s outbox.Submission) uuid.UUID {
		id, err := enqueueSQL(t, d.pool, s)
		must(t, err)
		return id
	}
	flood(fromGo, newOrg(t, d.pool))
	flood(fromSQL, newOrg(t, d.pool))
	flood(func(i int, s outbox.Submission) uuid.UUID {
		if i%2 == 0 {
			// What others have submitted meanwhile is counted after a second.
			d.client = newClient(t, d.pool)
			return fromGo(i, s)
		}
		return fromSQL(i, s)
	}, newOrg(t, d.pool))
}

// A replay waits like any other call, and uses nothing up.
func TestReplayWaitsForTheProvider(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	other := providertest.NewHTTP(t, providertest.Resend)
	d.deliverer = d.newDeliverer(newResend(t, other.URL()))
	other.Respond(always(providertest.Accept().Then(providertest.Reset())))
	id := d.enqueue()
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusUnknown {
		t.Fatalf("status %s", email.Status)
	}
	d.exec(`INSERT INTO outbox.providers (name, reason, out_since, probe_at)
		VALUES ('resend', 'rate_limited', now(), now() + interval '1 minute')`)
	d.deliverer.LookAgain()
	if wait := d.deliver(id); d.full(wait) < time.Minute || other.Requests() != 1 {
		t.Errorf("wait %v, %d requests", wait, other.Requests())
	}
	other.Respond(nil)
	d.probeNow()
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusSent || len(email.Attempts) != 1 || len(other.Accepted()) != 1 {
		t.Errorf("status %s, %d attempts, %d accepted", email.Status, len(email.Attempts), len(other.Accepted()))
	}
}
