package outbox_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// keyed is a provider that honours keys.
type keyed struct{ providers.Provider }

func (keyed) Capabilities() providers.Capabilities {
	return providers.Capabilities{KeyWindow: 24 * time.Hour}
}

// searchable is a provider that can be asked.
type searchable struct {
	providers.Provider
	found providers.Found
	asked *string
}

func (s searchable) Find(_ context.Context, key string, _ time.Time) (providers.Receipt, providers.Found, error) {
	*s.asked = key
	return providers.Receipt{ProviderMessageID: "found"}, s.found, nil
}

// honourKeys makes the programmable provider accept each key once; lose, if
// set, then decides what becomes of each first answer.
func honourKeys(p *providertest.HTTP, lose func() providertest.Reaction) {
	var mu sync.Mutex
	seen := map[string]bool{}
	p.Respond(func(r providertest.Seen) providertest.Reaction {
		mu.Lock()
		defer mu.Unlock()
		if seen[r.Reference] {
			return providertest.Reply(202, "")
		}
		seen[r.Reference] = true
		return lose()
	})
}

// crashed leaves the email as a worker does that was killed during the call;
// with accepted the provider has the message.
func (d *delivering) crashed(id uuid.UUID, accepted bool) {
	d.t.Helper()
	honourKeys(d.provider, func() providertest.Reaction {
		if accepted {
			return providertest.Accept().Then(providertest.Reset())
		}
		return providertest.Reset()
	})
	d.deliver(id)
	d.exec("UPDATE outbox.attempts SET in_doubt_at = NULL, status_code = NULL, code = NULL")
	d.exec("UPDATE outbox.emails SET status = 'sending', reason = NULL")
	d.kill()
	d.awaitLocks(0)
}

func (d *delivering) waited() {
	d.t.Helper()
	d.exec(`UPDATE outbox.attempts SET in_doubt_at = now() - interval '2 hours',
		deadline = least(deadline, now() - interval '1 hour') WHERE deadline < now() + interval '10 minutes'`)
}

// A provider that honours keys gets the same bytes under the same key again,
// and the email is accepted exactly once (I3, I8).
func TestReplayWithTheSameKeyAndBytes(t *testing.T) {
	t.Parallel()
	for name, accepted := range map[string]bool{"accepted before": true, "not accepted before": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			d.kill()
			d.deliverer = d.newDeliverer(keyed{newSendGrid(t, d.provider.URL())})
			id := d.enqueue()
			d.crashed(id, accepted)
			if !accepted {
				honourKeys(d.provider, providertest.Accept)
			}
			d.deliverer = d.newDeliverer(keyed{newSendGrid(t, d.provider.URL())})
			d.deliver(id)

			email := d.get(id)
			if email.Status != outbox.StatusSent || len(email.Attempts) != 1 || email.PossibleDuplicate {
				t.Fatalf("status %s, attempts %+v, possible duplicate %v", email.Status, email.Attempts, email.PossibleDuplicate)
			}
			a := email.Attempts[0]
			if a.Evidence != outbox.EvidenceReplay || a.Worker != d.worker || a.Stage != outbox.StageAccepted {
				t.Errorf("attempt = %+v, want accepted by replay, by the new worker", a)
			}
			seen := d.provider.Seen()
			if len(seen) != 2 || string(seen[0].Body) != string(seen[1].Body) || seen[0].Reference != seen[1].Reference {
				t.Errorf("%d requests, equal bodies and keys wanted", len(seen))
			}
			if n := len(d.provider.Accepted()); n != 1 {
				t.Errorf("%d accepted, want 1", n)
			}
		})
	}
}

// What a replay is refused with says nothing about the call before.
func TestRefusedReplayStaysInDoubt(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 409, 429, 500} {
		d := newDelivering(t)
		d.kill()
		d.deliverer = d.newDeliverer(keyed{newSendGrid(t, d.provider.URL())})
		id := d.enqueue()
		d.crashed(id, true)
		d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reply(status, "") })
		d.deliverer = d.newDeliverer(keyed{newSendGrid(t, d.provider.URL())})
		if wait := d.deliver(id); wait == 0 {
			t.Errorf("%d: no next look", status)
		}
		if email := d.get(id); email.Status != outbox.StatusUnknown || email.Attempts[0].Stage != outbox.StageSending {
			t.Errorf("%d: status %s, stage %s", status, email.Status, email.Attempts[0].Stage)
		}
	}
}

// Past the key window, and when the bytes would come out differently, there is
// no replay.
func TestNoReplayWithoutProtection(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"window over": "UPDATE outbox.attempts SET began_at = began_at - interval '25 hours'",
		"other bytes": "UPDATE outbox.attempts SET payload_sha256 = '\\x00'",
	} {
		d := newDelivering(t)
		d.kill()
		d.deliverer = d.newDeliverer(keyed{newSendGrid(t, d.provider.URL())})
		id := d.enqueue()
		d.crashed(id, true)
		d.exec(sql)
		d.deliverer = d.newDeliverer(keyed{newSendGrid(t, d.provider.URL())})
		d.deliver(id)
		if email := d.get(id); email.Status != outbox.StatusUnknown || d.provider.Requests() != 1 {
			t.Errorf("%s: status %s after %d requests, want unknown after 1", name, email.Status, d.provider.Requests())
		}
	}
}

// An attempt belongs to its worker as long as that lives and has time.
func TestLiveOwnerIsLeftAlone(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	inCall, release := make(chan struct{}), make(chan struct{})
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		close(inCall)
		return providertest.Accept().When(release)
	})
	done := make(chan error, 1)
	first := d.deliverer
	go func() {
		_, err := first.Deliver(context.Background(), id)
		done <- err
	}()
	<-inCall
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
	if wait := d.deliver(id); wait == 0 {
		t.Error("another worker will not look again")
	}
	if email := d.get(id); email.Status != outbox.StatusSending {
		t.Errorf("status %s while its worker is sending", email.Status)
	}
	// Past the deadline and the margin it is in doubt, also while its owner is
	// only paused (section 4 of the design).
	d.exec("UPDATE outbox.attempts SET deadline = now() - interval '11 seconds'")
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusUnknown {
		t.Errorf("status %s past the deadline, want unknown", email.Status)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if email := d.get(id); email.Status != outbox.StatusSent || d.provider.Requests() != 1 {
		t.Errorf("status %s after %d requests: the owner's late answer did not count", email.Status, d.provider.Requests())
	}
}

// F30: what is in doubt is not blindly sent again, but by policy.
func TestPolicies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		policy   outbox.Policy
		org      string // the org's default
		status   outbox.Status
		reason   string
		attempts int
		flagged  bool
	}{
		{"retry", outbox.PolicyRetry, "", outbox.StatusSent, "", 2, true},
		{"hold", outbox.PolicyHold, "", outbox.StatusUnknown, "in_doubt", 1, false},
		{"drop", outbox.PolicyDrop, "", outbox.StatusFailed, "outcome_unknown", 1, false},
		{"the installation's default", "", "", outbox.StatusSent, "", 2, true},
		{"the org's default", "", "hold", outbox.StatusUnknown, "in_doubt", 1, false},
		{"the email's over the org's", outbox.PolicyDrop, "hold", outbox.StatusFailed, "outcome_unknown", 1, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			if test.org != "" {
				d.exec("INSERT INTO outbox.orgs (id, name, on_unknown) VALUES ($1, 'acme', $2)", d.org, test.org)
			}
			id := d.enqueue(func(m *outbox.Message) { m.OnUnknown = test.policy })
			d.crashed(id, true)
			d.provider.Respond(nil)
			d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))

			if wait := d.deliver(id); wait == 0 {
				t.Error("no next look while there is time for evidence")
			}
			if email := d.get(id); email.Status != outbox.StatusUnknown || d.provider.Requests() != 1 {
				t.Fatalf("status %s after %d requests before the time is over", email.Status, d.provider.Requests())
			}
			d.waited()
			wait := d.deliver(id)
			email := d.get(id)
			if email.Status != test.status || email.Reason != test.reason || len(email.Attempts) != test.attempts {
				t.Fatalf("status %s, reason %q, attempts %+v", email.Status, email.Reason, email.Attempts)
			}
			if (wait > 0) == email.Status.Ended() {
				t.Errorf("wait %v for status %s", wait, email.Status)
			}
			last := email.Attempts[len(email.Attempts)-1]
			if email.PossibleDuplicate != test.flagged || last.PossibleDuplicate != test.flagged {
				t.Errorf("possible duplicate: email %v, last attempt %v, want %v", email.PossibleDuplicate, last.PossibleDuplicate, test.flagged)
			}
			if test.attempts == 2 && (email.Attempts[0].Stage != outbox.StageUnknown || email.Attempts[0].Evidence != outbox.EvidencePolicy ||
				email.Attempts[0].ProviderKey == last.ProviderKey) {
				t.Errorf("attempts = %+v", email.Attempts)
			}
		})
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		found    providers.Found
		status   outbox.Status
		requests int
	}{
		{"accepted", providers.FoundAccepted, outbox.StatusSent, 1},
		{"not accepted, past the deadline", providers.FoundNotAccepted, outbox.StatusSent, 2},
		{"nothing found, which proves nothing", providers.FoundNothing, outbox.StatusUnknown, 1},
	}
	for _, test := range tests {
		d := newDelivering(t)
		id := d.enqueue()
		d.crashed(id, test.found != providers.FoundNotAccepted)
		d.provider.Respond(nil)
		asked := ""
		d.deliverer = d.newDeliverer(searchable{newSendGrid(t, d.provider.URL()), test.found, &asked})
		d.exec("UPDATE outbox.attempts SET deadline = now() - interval '1 minute'")
		d.deliver(id)
		email := d.get(id)
		if email.Status != test.status || d.provider.Requests() != test.requests || len(d.provider.Accepted()) != 1 || email.PossibleDuplicate {
			t.Errorf("%s: status %s, %d requests, %d accepted, possible duplicate %v",
				test.name, email.Status, d.provider.Requests(), len(d.provider.Accepted()), email.PossibleDuplicate)
		}
		if asked != email.Attempts[0].ProviderKey.String() {
			t.Errorf("%s: the provider was asked for %q", test.name, asked)
		}
	}
}

// "Not found" is no proof while the owner is only paused: it may still send.
func TestSearchProvesNothingWhileTheOwnerLives(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reset() })
	d.deliver(id)
	asked := ""
	d.deliverer = d.newDeliverer(searchable{newSendGrid(t, d.provider.URL()), providers.FoundNotAccepted, &asked})
	d.deliver(id)
	if email := d.get(id); asked == "" || email.Status != outbox.StatusUnknown || d.provider.Requests() != 1 {
		t.Errorf("asked %q, status %s, %d requests", asked, email.Status, d.provider.Requests())
	}
}

// A doubt never moves on to another provider: no two share a key.
func TestNoFailoverInDoubt(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	second := providertest.NewSMTP(t, providertest.SMTPOptions{})
	list := []providers.Provider{newSendGrid(t, d.provider.URL()), newSMTP(t, second)}
	d.kill()
	d.deliverer = d.newDeliverer(list...)
	id := d.enqueue(func(m *outbox.Message) { m.OnUnknown = outbox.PolicyHold })
	d.crashed(id, true)
	d.deliverer = d.newDeliverer(list...)
	for range 3 {
		d.deliver(id)
		d.waited()
	}
	if n := second.Requests(); n != 0 {
		t.Errorf("the second provider saw %d hand-overs", n)
	}
}

// "Not found" is no proof either until what the dead worker sent last has had
// its time: it may be in the provider's hands and not yet in its index.
func TestSearchProvesNothingBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.crashed(id, true)
	d.exec("UPDATE outbox.attempts SET deadline = now() + interval '1 hour'")
	asked := ""
	d.deliverer = d.newDeliverer(searchable{newSendGrid(t, d.provider.URL()), providers.FoundNotAccepted, &asked})
	d.waited()
	d.deliver(id)
	if email := d.get(id); asked == "" || email.Status != outbox.StatusUnknown || d.provider.Requests() != 1 {
		t.Errorf("asked %q, status %s, %d requests", asked, email.Status, d.provider.Requests())
	}
}

// I4: an email that fails after a doubt may have been accepted, and says so.
func TestFailureAfterADoubtIsNoCertainFailure(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue(func(m *outbox.Message) { m.OnUnknown = outbox.PolicyRetry })
	d.crashed(id, true)
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reply(400, "") })
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
	d.deliver(id)
	d.waited()
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusFailed || email.Reason != "outcome_unknown" || !email.PossibleDuplicate {
		t.Errorf("status %s, reason %s, possible duplicate %v", email.Status, email.Reason, email.PossibleDuplicate)
	}
}

// Evidence about the first attempt ends the email, whatever becomes of the
// second that is on its way.
func TestLateAcceptanceDuringAResend(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]providertest.Reaction{
		"refused":  providertest.Reply(400, ""),
		"deferred": providertest.Reply(429, ""),
		"in doubt": providertest.Reply(500, ""),
		"accepted": providertest.Accept(),
	} {
		d := newDelivering(t)
		id := d.enqueue()
		inFirst, answerFirst := make(chan struct{}), make(chan struct{})
		d.provider.Respond(func(r providertest.Seen) providertest.Reaction {
			if r.Number == 1 {
				close(inFirst)
				return providertest.Accept().When(answerFirst)
			}
			return second
		})
		paused, done := d.deliverer, make(chan error, 1)
		go func() {
			_, err := paused.Deliver(context.Background(), id)
			done <- err
		}()
		<-inFirst
		// The owner does not answer past its deadline, so the policy decides.
		d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
		d.exec("UPDATE outbox.attempts SET deadline = now() - interval '1 minute', in_doubt_at = now() - interval '2 hours'")
		d.exec("UPDATE outbox.emails SET status = 'unknown'")
		d.deliver(id)
		close(answerFirst)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		d.exec("UPDATE outbox.emails SET next_attempt_at = now() WHERE next_attempt_at IS NOT NULL")
		requests := d.provider.Requests()
		d.deliver(id)
		email := d.get(id)
		open := count(t, d.pool, "SELECT count(*) FROM outbox.attempts WHERE stage = 'sending'")
		if email.Status != outbox.StatusSent || d.provider.Requests() != requests || open != 0 {
			t.Errorf("%s: status %s (%s), attempts %+v, %d open", name, email.Status, email.Reason, email.Attempts, open)
		}
	}
}
