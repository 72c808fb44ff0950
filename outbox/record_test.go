package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// report has the provider of the bench report events.
func (d *delivering) report(events ...providers.Event) outbox.Recorded {
	d.t.Helper()
	recorded, err := d.client.RecordEvents(context.Background(), "sendgrid", events)
	must(d.t, err)
	return recorded
}

// about returns an event about an attempt of an email, by its number.
func (d *delivering) about(id uuid.UUID, attempt int, t providers.EventType) providers.Event {
	d.t.Helper()
	return providers.Event{
		Type: t, Reference: d.get(id).Attempts[attempt-1].ProviderKey.String(), Recipient: "jane@example.org", OccurredAt: eventTime,
	}
}

var eventTime = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// life is what a provider may report of one mail.
func (d *delivering) life(id uuid.UUID) []providers.Event {
	d.t.Helper()
	var events []providers.Event
	for i, t := range []providers.EventType{
		providers.EventAccepted, providers.EventDelayed, providers.EventDelivered, providers.EventOpened, providers.EventOpened,
		providers.EventClicked, providers.EventClicked, providers.EventBounced, providers.EventComplained, providers.EventUnsubscribed,
	} {
		e := d.about(id, 1, t)
		e.OccurredAt = eventTime.Add(time.Duration(i) * time.Second)
		if t == providers.EventClicked {
			// Two links in the same second.
			e.Detail, e.OccurredAt = fmt.Sprintf("https://example.com/%d", i), eventTime
		}
		events = append(events, e)
	}
	return events
}

// told is what is known of an email, but for ids and times of our own.
func (d *delivering) told(id uuid.UUID) (status outbox.Status, stages []outbox.Stage, events []string) {
	d.t.Helper()
	email := d.get(id)
	for _, a := range email.Attempts {
		stages = append(stages, a.Stage)
	}
	for _, e := range email.Events {
		events = append(events, fmt.Sprint(e.Type, " ", e.Recipient, " ", e.OccurredAt.UTC(), " ", e.Detail))
	}
	slices.Sort(events)
	return email.Status, stages, events
}

// F22: 50 shuffled copies of a mail's ten events, in requests of several and at
// once, some of them before our own Finish: the same as the ten in their order.
func TestF22ShuffledCopiesOfEvents(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	plain, shuffled := d.enqueue(), d.enqueue()
	d.deliver(plain)
	for _, e := range d.life(plain) {
		d.report(e)
	}
	wantStatus, wantStages, wantEvents := d.told(plain)
	if wantStatus != outbox.StatusComplained || len(wantEvents) != 10 {
		t.Fatalf("status %s, events %v", wantStatus, wantEvents)
	}

	d.exec("DELETE FROM outbox.suppressions") // or the other email is not sent
	var copies []providers.Event
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		for range 50 {
			copies = append(copies, d.life(shuffled)...)
		}
		rand.Shuffle(len(copies), func(i, j int) { copies[i], copies[j] = copies[j], copies[i] })
		d.report(copies[:7]...) // Begin has committed, Finish has not
		copies = copies[7:]
		return providertest.Accept()
	})
	d.deliver(shuffled)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var total outbox.Recorded
	for part := range slices.Chunk(copies, 25) {
		wg.Go(func() {
			recorded, err := d.client.RecordEvents(context.Background(), "sendgrid", part)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			total.New += recorded.New
			total.Known += recorded.Known
			total.Stray += recorded.Stray
		})
	}
	wg.Wait()
	status, stages, events := d.told(shuffled)
	if status != wantStatus || !slices.Equal(stages, wantStages) {
		t.Errorf("status %s, stages %v; want %s, %v", status, stages, wantStatus, wantStages)
	}
	if diff := cmp.Diff(wantEvents, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if total.New > 10 || total.Stray != 0 || total.New+total.Known != len(copies) {
		t.Errorf("counted %+v of %d", total, len(copies))
	}
}

// I5: whatever the order, the status only goes up.
func TestStatusFollowsFromTheSetOfEvents(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	for _, test := range []struct {
		types []providers.EventType
		want  outbox.Status
	}{
		{[]providers.EventType{providers.EventAccepted}, outbox.StatusSent},
		{[]providers.EventType{providers.EventOpened}, outbox.StatusSent},
		{[]providers.EventType{providers.EventDelivered, providers.EventAccepted}, outbox.StatusDelivered},
		{[]providers.EventType{providers.EventBounced, providers.EventDelivered}, outbox.StatusBounced},
		{[]providers.EventType{providers.EventComplained, providers.EventBounced, providers.EventDelayed}, outbox.StatusComplained},
	} {
		id := d.enqueue()
		d.deliver(id)
		ended := d.get(id).EndedAt
		for _, e := range test.types {
			d.report(d.about(id, 1, e))
		}
		if email := d.get(id); email.Status != test.want || !email.EndedAt.Equal(ended) {
			t.Errorf("%v: status %s, ended %v; want %s, %v", test.types, email.Status, email.EndedAt, test.want, ended)
		}
	}
}

// An event finds its attempt by the provider's id where it carries no reference
// of ours, and is kept where it finds none.
func TestEventsByProviderMessageID(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	event := providers.Event{Type: providers.EventDelivered, ProviderMessageID: "sendgrid-1", OccurredAt: eventTime}
	if got := d.report(event); got.Stray != 1 {
		t.Errorf("before the id is known: %+v", got)
	}
	d.deliver(id)
	if got := d.report(event); got.New != 1 {
		t.Errorf("once it is known: %+v", got)
	}
	other := event
	other.Reference, other.ProviderMessageID = uuid.NewString(), "nobody's"
	for range 2 {
		if got := d.report(other); got.Stray != 1 {
			t.Errorf("nobody's: %+v", got)
		}
	}
	var stray int
	must(t, d.pool.QueryRow(context.Background(), "SELECT count(*) FROM outbox.stray_events").Scan(&stray))
	if email := d.get(id); email.Status != outbox.StatusDelivered || stray != 2 {
		t.Errorf("status %s, %d stray events, want delivered and 2", email.Status, stray)
	}
	// Another provider's id may be the same.
	recorded, err := d.client.RecordEvents(context.Background(), "resend", []providers.Event{event})
	if err != nil || recorded.Stray != 1 {
		t.Errorf("of another provider: %+v, %v", recorded, err)
	}
}

// An event that came before its attempt was known is recorded a little later.
func TestStrayEventsAreAdopted(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.report(providers.Event{Type: providers.EventDelivered, ProviderMessageID: "sendgrid-1", OccurredAt: eventTime},
		providers.Event{Type: providers.EventDelivered, ProviderMessageID: "nobody's", OccurredAt: eventTime})
	for _, want := range []int{0, 1, 0} {
		if adopted, err := d.client.AdoptStrayEvents(context.Background()); err != nil || adopted != want {
			t.Errorf("adopted %d, %v; want %d", adopted, err, want)
		}
		if want == 0 {
			d.deliver(id)
		}
	}
	if email := d.get(id); email.Status != outbox.StatusDelivered {
		t.Errorf("status %s", email.Status)
	}
	d.exec("UPDATE outbox.stray_events SET received_at = now() - interval '31 days'")
	_, err := d.client.AdoptStrayEvents(context.Background())
	must(t, err)
	var stray int
	must(t, d.pool.QueryRow(context.Background(), "SELECT count(*) FROM outbox.stray_events").Scan(&stray))
	if stray != 0 {
		t.Errorf("%d stray events are kept for ever", stray)
	}
}

// inDoubt delivers an email whose provider accepts it and does not say so.
func (d *delivering) inDoubt(change ...func(*outbox.Message)) uuid.UUID {
	d.t.Helper()
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		return providertest.Accept().Then(providertest.Reset())
	})
	id := d.enqueue(change...)
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusUnknown {
		d.t.Fatalf("status %s, want unknown", email.Status)
	}
	return id
}

// I4: an event about an attempt in doubt proves that the provider has it, and
// ends a hold at once.
func TestEventEndsHold(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.inDoubt(func(m *outbox.Message) { m.OnUnknown = outbox.PolicyHold })
	d.report(d.about(id, 1, providers.EventDelivered))
	email := d.get(id)
	if email.Status != outbox.StatusDelivered || email.Reason != "" || email.Attempts[0].Stage != outbox.StageAccepted || email.Attempts[0].Evidence != outbox.EvidenceWebhook {
		t.Errorf("status %s (%s), attempt %+v", email.Status, email.Reason, email.Attempts[0])
	}
	if wait := d.deliver(id); wait != 0 || d.provider.Requests() != 1 {
		t.Errorf("wait %v, %d requests", wait, d.provider.Requests())
	}
}

// giveUp lets the time for evidence pass, so that the policy closes the attempt.
func (d *delivering) giveUp(id uuid.UUID) {
	d.t.Helper()
	d.exec("UPDATE outbox.attempts SET in_doubt_at = now() - interval '2 hours', deadline = now() - interval '1 hour'")
	d.exec("UPDATE outbox.emails SET scheduled_at = now() + interval '1 hour' WHERE id = $1", id) // the resend waits
	d.deliver(id)
}

// F33: a resend that has not begun is dropped when evidence comes; one that has
// is shown. A drop turns out to have been sent.
func TestEventAfterThePolicyDecided(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.inDoubt()
	d.giveUp(id)
	if email := d.get(id); email.Status != outbox.StatusQueued || email.Attempts[0].Stage != outbox.StageUnknown {
		t.Fatalf("status %s, attempt %s", email.Status, email.Attempts[0].Stage)
	}
	d.report(d.about(id, 1, providers.EventAccepted))
	d.exec("UPDATE outbox.emails SET scheduled_at = NULL, next_attempt_at = NULL")
	if wait := d.deliver(id); wait != 0 {
		t.Errorf("wait %v", wait)
	}
	if email := d.get(id); email.Status != outbox.StatusSent || len(email.Attempts) != 1 || email.PossibleDuplicate || d.provider.Requests() != 1 {
		t.Errorf("status %s, %d attempts, possible duplicate %v, %d requests", email.Status, len(email.Attempts), email.PossibleDuplicate, d.provider.Requests())
	}

	dropped := d.inDoubt(func(m *outbox.Message) { m.OnUnknown = outbox.PolicyDrop })
	d.giveUp(dropped)
	if email := d.get(dropped); email.Status != outbox.StatusFailed || email.Reason != "outcome_unknown" {
		t.Fatalf("status %s (%s)", email.Status, email.Reason)
	}
	d.report(d.about(dropped, 1, providers.EventBounced))
	if email := d.get(dropped); email.Status != outbox.StatusBounced || email.Reason != "" {
		t.Errorf("status %s (%s)", email.Status, email.Reason)
	}

	resent := d.inDoubt()
	d.giveUp(resent)
	d.exec("UPDATE outbox.emails SET scheduled_at = NULL, next_attempt_at = NULL")
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		d.report(d.about(resent, 1, providers.EventDelivered))
		return providertest.Accept()
	})
	d.deliver(resent)
	email := d.get(resent)
	if email.Status != outbox.StatusDelivered || !email.PossibleDuplicate || len(email.Attempts) != 2 ||
		email.Attempts[0].Stage != outbox.StageAccepted || email.Attempts[1].Stage != outbox.StageAccepted {
		t.Errorf("status %s, possible duplicate %v, attempts %+v", email.Status, email.PossibleDuplicate, email.Attempts)
	}
}

// An event about an attempt that its worker is sending changes nothing yet: the
// worker will say what it heard. If it dies, the event is the evidence.
func TestEventBeforeTheWorkerDies(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		d.report(d.about(id, 1, providers.EventDelivered))
		if email := d.get(id); email.Status != outbox.StatusSending || email.Attempts[0].Stage != outbox.StageSending {
			t.Errorf("status %s, attempt %s while it is being sent", email.Status, email.Attempts[0].Stage)
		}
		return providertest.Accept().Then(providertest.Reset())
	})
	d.deliver(id)
	// The next look finds the event.
	d.deliver(id)
	email := d.get(id)
	if email.Status != outbox.StatusDelivered || email.Attempts[0].Evidence != outbox.EvidenceWebhook || d.provider.Requests() != 1 {
		t.Errorf("status %s, attempt %+v, %d requests", email.Status, email.Attempts[0], d.provider.Requests())
	}
}

// What a provider writes fits the tables, and addresses in it go no further.
func TestEventDetailIsScrubbed(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.deliver(id)
	e := d.about(id, 1, providers.EventBounced)
	e.Detail = "550 5.1.1 <jane@example.org>\x00 unknown\xff"
	d.report(e)
	if got := d.get(id).Events[0].Detail; got != "550 5.1.1 <(address)>  unknown" {
		t.Errorf("detail %q", got)
	}
}

// suppressed returns the reason for which an address is suppressed, if it is.
func (d *delivering) suppressed(address string) (reason string) {
	d.t.Helper()
	must(d.t, d.pool.QueryRow(context.Background(),
		"SELECT coalesce((SELECT reason FROM outbox.suppressions WHERE org_id = $1 AND address = $2), '')", d.org, address).Scan(&reason))
	return reason
}

// A hard bounce, a complaint and a wish to unsubscribe suppress the recipient:
// the one that the event is about, if that is certain.
func TestEventsSuppress(t *testing.T) {
	t.Parallel()
	several := func(m *outbox.Message) { m.Cc = []string{"Joe@Example.org"} }
	one := func(*outbox.Message) {}
	for name, test := range map[string]struct {
		message func(*outbox.Message)
		change  func(*providers.Event)
		want    map[string]string
	}{
		"hard bounce": {one, func(e *providers.Event) { e.Permanent = true }, map[string]string{"jane@example.org": "hard_bounce"}},
		"soft bounce": {one, func(*providers.Event) {}, map[string]string{"jane@example.org": ""}},
		"complaint":   {one, func(e *providers.Event) { e.Type = providers.EventComplained }, map[string]string{"jane@example.org": "complaint"}},
		"unsubscribe": {one, func(e *providers.Event) { e.Type = providers.EventUnsubscribed }, map[string]string{"jane@example.org": "unsubscribe"}},
		"delivered":   {one, func(e *providers.Event) { e.Type = providers.EventDelivered }, map[string]string{"jane@example.org": ""}},
		"one of several": {
			several, func(e *providers.Event) { e.Permanent, e.Recipient = true, "JOE@example.org" },
			map[string]string{"jane@example.org": "", "joe@example.org": "hard_bounce"},
		},
		"the message, of one":     {one, func(e *providers.Event) { e.Permanent, e.Recipient = true, "" }, map[string]string{"jane@example.org": "hard_bounce"}},
		"the message, of several": {several, func(e *providers.Event) { e.Permanent, e.WholeMessage = true, true }, map[string]string{"jane@example.org": "", "joe@example.org": ""}},
		"nobody's":                {one, func(e *providers.Event) { e.Permanent, e.Recipient = true, "else@example.org" }, map[string]string{"else@example.org": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			id := d.enqueue(func(m *outbox.Message) { m.To = []string{"jane@example.org"} }, test.message)
			d.deliver(id)
			event := d.about(id, 1, providers.EventBounced)
			test.change(&event)
			d.report(event)
			for address, want := range test.want {
				if got := d.suppressed(address); got != want {
					t.Errorf("%s is suppressed for %q, want %q", address, got, want)
				}
			}
			// Whoever takes it off the list is not overruled by a copy.
			d.exec("DELETE FROM outbox.suppressions")
			d.report(event)
			for address := range test.want {
				if got := d.suppressed(address); got != "" {
					t.Errorf("%s is suppressed again for %q", address, got)
				}
			}
		})
	}
}
