package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/sendgrid"
	"github.com/outboxd/outboxd/providers/smtp"
)

// delivering is a deliverer with a programmable provider.
type delivering struct {
	t         *testing.T
	pool      *pgxpool.Pool
	client    *outbox.Client
	provider  *providertest.HTTP
	deliverer *outbox.Deliverer
	worker    string // the id of the newest deliverer
	kill      func() // ends its session as a crash does
	org       uuid.UUID
	began     time.Time
}

func newDelivering(t *testing.T) *delivering {
	t.Helper()
	d := &delivering{
		t: t, pool: testdb.New(t), org: uuid.New(), provider: providertest.NewHTTP(t, providertest.SendGrid), began: time.Now(),
	}
	d.client = newClient(t, d.pool)
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
	return d
}

// full is a remaining time as it was at its beginning, or longer: what the test
// has taken so far has shortened it by no more.
func (d *delivering) full(remaining time.Duration) time.Duration {
	return remaining + time.Since(d.began)
}

func newSendGrid(t *testing.T, url string) providers.Provider {
	t.Helper()
	p, err := sendgrid.New(sendgrid.Config{APIKey: "SG.secret", BaseURL: url})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newSMTP(t *testing.T, relay *providertest.SMTP) providers.Provider {
	t.Helper()
	cfg, err := smtp.ParseURL(relay.URL())
	if err != nil {
		t.Fatal(err)
	}
	p, err := smtp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newDeliverer returns a deliverer with a liveness session of its own.
func (d *delivering) newDeliverer(list ...providers.Provider) *outbox.Deliverer {
	d.t.Helper()
	return d.newDelivererWith(outbox.WorkerConfig{Providers: list})
}

func (d *delivering) newDelivererWith(cfg outbox.WorkerConfig) *outbox.Deliverer {
	d.t.Helper()
	cfg.SendTimeout, cfg.UnknownWait = 5*time.Second, time.Hour
	deliverer, err := outbox.NewDeliverer(d.pool, cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	id, kill, err := deliverer.Attach(context.Background())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(kill)
	d.worker, d.kill = id, kill
	return deliverer
}

func (d *delivering) enqueue(change ...func(*outbox.Message)) uuid.UUID {
	d.t.Helper()
	s := submission(d.org, "")
	for _, c := range change {
		c(&s.Messages[0])
	}
	receipt, err := d.client.Enqueue(context.Background(), s)
	if err != nil {
		d.t.Fatal(err)
	}
	return receipt.IDs[0]
}

func (d *delivering) deliver(id uuid.UUID) time.Duration {
	d.t.Helper()
	wait, err := d.deliverer.Deliver(context.Background(), id)
	if err != nil {
		d.t.Fatal(err)
	}
	return wait
}

func (d *delivering) get(id uuid.UUID) *outbox.Email {
	d.t.Helper()
	email, err := d.client.Get(context.Background(), d.org, id)
	if err != nil {
		d.t.Fatal(err)
	}
	return email
}

func (d *delivering) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.pool.Exec(context.Background(), sql, args...); err != nil {
		d.t.Fatal(err)
	}
}

// I4: each reaction of a provider becomes the one true state.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	accept, reply := providertest.Accept, providertest.Reply
	tests := []struct {
		name     string
		reaction providertest.Reaction
		status   outbox.Status
		stage    outbox.Stage
		reason   string
		accepted int
	}{
		{"202", accept(), outbox.StatusSent, outbox.StageAccepted, "", 1},
		{"F3: another 2xx", accept().Then(reply(200, "")), outbox.StatusSent, outbox.StageAccepted, "", 1},
		{"F6: accepted, garbage for an answer", accept().Then(reply(202, "<html>\x00")), outbox.StatusSent, outbox.StageAccepted, "", 1},
		{"F2: 400", reply(400, `{"errors":[{"message":"bad"}]}`), outbox.StatusFailed, outbox.StageRejected, "rejected", 0},
		{"413", reply(413, ""), outbox.StatusFailed, outbox.StageRejected, "rejected", 0},
		{"401", reply(401, ""), outbox.StatusQueued, outbox.StageDeferred, "", 0},
		{"403", reply(403, ""), outbox.StatusQueued, outbox.StageDeferred, "", 0},
		{"F2: 429", reply(429, ""), outbox.StatusQueued, outbox.StageDeferred, "", 0},
		{"500", reply(500, ""), outbox.StatusUnknown, outbox.StageSending, "in_doubt", 0},
		{"503 that nobody documented", reply(503, ""), outbox.StatusUnknown, outbox.StageSending, "in_doubt", 0},
		{"accepted, says 500", accept().Then(reply(500, "")), outbox.StatusUnknown, outbox.StageSending, "in_doubt", 1},
		{"F19: accepted, reset", accept().Then(providertest.Reset()), outbox.StatusUnknown, outbox.StageSending, "in_doubt", 1},
		{"not accepted, reset", providertest.Reset(), outbox.StatusUnknown, outbox.StageSending, "in_doubt", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			d.provider.Respond(func(providertest.Seen) providertest.Reaction { return test.reaction })
			id := d.enqueue()
			wait := d.deliver(id)
			email := d.get(id)
			if email.Status != test.status || email.Reason != test.reason {
				t.Errorf("status %s, reason %q; want %s, %q", email.Status, email.Reason, test.status, test.reason)
			}
			if len(email.Attempts) != 1 || email.Attempts[0].Stage != test.stage {
				t.Fatalf("attempts = %+v, want one in stage %s", email.Attempts, test.stage)
			}
			if queued := test.status == outbox.StatusQueued; email.NextAttemptAt.IsZero() == queued {
				t.Errorf("next attempt at %v for status %s", email.NextAttemptAt, email.Status)
			}
			if (wait > 0) == email.Status.Ended() {
				t.Errorf("wait %v for status %s", wait, email.Status)
			}
			if ended := email.Status.Ended(); email.EndedAt.IsZero() == ended || email.Attempts[0].EndedAt.IsZero() != (test.stage == outbox.StageSending) {
				t.Errorf("email ended at %v, attempt at %v", email.EndedAt, email.Attempts[0].EndedAt)
			}
			// Nothing is sent again: what is in doubt stays so, what has ended
			// too, and what is queued has a time, which full jitter may have
			// put into this very moment.
			d.exec("UPDATE outbox.emails SET next_attempt_at = next_attempt_at + interval '1 hour'")
			d.deliver(id)
			if n, requests := len(d.provider.Accepted()), d.provider.Requests(); n != test.accepted || requests != 1 {
				t.Errorf("%d accepted with %d requests, want %d with 1", n, requests, test.accepted)
			}
		})
	}
}

// I7, and no transaction or connection is held during the call: the only
// connection of the pool is free while the provider thinks.
func TestAttemptIsCommittedBeforeTheCall(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	cfg := d.pool.Config()
	cfg.MaxConns = 1
	single, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer single.Close()
	id := d.enqueue()
	d.pool, d.client = single, newClient(t, single)
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))

	var during *outbox.Email
	var reference string
	d.provider.Respond(func(r providertest.Seen) providertest.Reaction {
		during, reference = d.get(id), r.Reference
		return providertest.Accept()
	})
	d.deliver(id)
	if during == nil || during.Status != outbox.StatusSending || len(during.Attempts) != 1 {
		t.Fatalf("during the call the email was %+v, want one open attempt", during)
	}
	a := during.Attempts[0]
	if a.Stage != outbox.StageSending || a.ProviderKey.String() != reference || a.Worker != d.worker || a.Number != 1 {
		t.Errorf("during the call the attempt was %+v, the provider saw %s", a, reference)
	}
}

// F21: two workers with the same email in the same moment.
func TestTwoWorkersSendOnce(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	workers := []*outbox.Deliverer{d.deliverer, d.newDeliverer(newSendGrid(t, d.provider.URL()))}
	for range 20 {
		id := d.enqueue()
		var wg sync.WaitGroup
		for _, w := range workers {
			wg.Go(func() {
				if _, err := w.Deliver(context.Background(), id); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if requests := d.provider.Requests(); requests != 20 {
		t.Errorf("%d requests for 20 emails", requests)
	}
}

// A worker whose attempt was ended by somebody else meanwhile changes nothing
// but adds the evidence that it has (F33).
func TestLateOutcome(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		reaction providertest.Reaction
		status   outbox.Status
		stage    outbox.Stage
	}{
		{"refused", providertest.Reply(400, ""), outbox.StatusFailed, outbox.StageUnknown},
		{"in doubt", providertest.Reply(500, ""), outbox.StatusFailed, outbox.StageUnknown},
		{"accepted", providertest.Accept(), outbox.StatusSent, outbox.StageAccepted},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			id := d.enqueue()
			d.provider.Respond(func(providertest.Seen) providertest.Reaction {
				d.exec("UPDATE outbox.attempts SET stage = 'unknown', evidence = 'policy', ended_at = now()")
				d.exec("UPDATE outbox.emails SET status = 'failed', reason = 'outcome_unknown', ended_at = now()")
				return test.reaction
			})
			d.deliver(id)
			if email := d.get(id); email.Status != test.status || email.Attempts[0].Stage != test.stage {
				t.Errorf("email %s (%s), attempt %s", email.Status, email.Reason, email.Attempts[0].Stage)
			}
		})
	}
}

// F15: a temporary error, then success: one mail, two attempts, two keys.
func TestTemporaryErrorThenSuccess(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(func(r providertest.Seen) providertest.Reaction {
		if r.Number == 1 {
			return providertest.Reply(429, "").With("Retry-After", "60")
		}
		return providertest.Accept()
	})
	id := d.enqueue()
	if wait := d.deliver(id); wait < time.Minute {
		t.Errorf("wait %v, want the 60 s that the provider asked for", wait)
	}
	d.exec("UPDATE outbox.emails SET next_attempt_at = now()")
	d.probeNow()
	if wait := d.deliver(id); wait != 0 {
		t.Errorf("wait %v after success", wait)
	}
	email := d.get(id)
	var stages []outbox.Stage
	for _, a := range email.Attempts {
		stages = append(stages, a.Stage)
	}
	if diff := cmp.Diff([]outbox.Stage{outbox.StageDeferred, outbox.StageAccepted}, stages); diff != "" || email.Status != outbox.StatusSent {
		t.Fatalf("status %s, stages (-want +got):\n%s", email.Status, diff)
	}
	if email.Attempts[0].ProviderKey == email.Attempts[1].ProviderKey || email.PossibleDuplicate {
		t.Errorf("keys %v and %v, possible duplicate %v", email.Attempts[0].ProviderKey, email.Attempts[1].ProviderKey, email.PossibleDuplicate)
	}
}

// An attempt that was begun and never finished is in doubt, not to be repeated.
func TestOpenAttemptIsNotRepeated(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.exec(`UPDATE outbox.emails SET status = 'sending', attempts = 1`)
	d.exec(`INSERT INTO outbox.attempts (email_id, number, provider, provider_key, worker, began_at, deadline, payload_sha256)
		VALUES ($1, 1, 'sendgrid', gen_random_uuid(), 'dead worker', now(), now(), '')`, id)
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusUnknown || d.provider.Requests() != 0 {
		t.Errorf("status %s after %d requests, want unknown and none", email.Status, d.provider.Requests())
	}
}

func TestEmailsThatAreNotSent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		sql    string
		status outbox.Status
		reason string
	}{
		{"canceled", "UPDATE outbox.emails SET status = 'canceled', ended_at = now()", outbox.StatusCanceled, ""},
		{"expired", "UPDATE outbox.emails SET expires_at = now()", outbox.StatusExpired, ""},
		{"not yet due", "UPDATE outbox.emails SET status = 'scheduled', scheduled_at = now() + interval '1 hour'", outbox.StatusScheduled, ""},
		{"bad address from SQL", `UPDATE outbox.email_contents SET to_addresses = '["nobody"]'`, outbox.StatusFailed, "validation_error"},
		{"unknown provider", "UPDATE outbox.emails SET provider = 'pigeon'", outbox.StatusFailed, "validation_error"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			id := d.enqueue()
			d.exec(test.sql)
			wait := d.deliver(id)
			email := d.get(id)
			if email.Status != test.status || email.Reason != test.reason || len(email.Attempts) != 0 {
				t.Errorf("status %s, reason %q, %d attempts", email.Status, email.Reason, len(email.Attempts))
			}
			if (wait > 0) != (test.status == outbox.StatusScheduled) || d.provider.Requests() != 0 {
				t.Errorf("wait %v, %d requests", wait, d.provider.Requests())
			}
		})
	}
}

func TestGivesUpOnOldEmails(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reply(429, "") })
	id := d.enqueue()
	d.exec("UPDATE outbox.emails SET created_at = now() - interval '25 hours'")
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusFailed || email.Reason != "gave_up" {
		t.Errorf("status %s, reason %q; want failed, gave_up", email.Status, email.Reason)
	}
}

// A definite "not accepted" lets the next provider try.
func TestFailoverAfterDefiniteFailure(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
	second := newSMTP(t, relay)
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reply(401, "") })
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()), second)
	id := d.enqueue()
	d.deliver(id)
	d.exec("UPDATE outbox.emails SET next_attempt_at = now()")
	d.deliver(id)
	email := d.get(id)
	if email.Status != outbox.StatusSent || len(email.Attempts) != 2 || email.Attempts[1].Provider != "smtp" || len(relay.Accepted()) != 1 {
		t.Errorf("status %s, attempts %+v, %d accepted by the second", email.Status, email.Attempts, len(relay.Accepted()))
	}
}

// A relay that cannot be reached is a definite failure, recorded as an attempt.
func TestUnreachableRelayIsNoDoubt(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
	p := newSMTP(t, relay)
	relay.Close()
	d.deliverer = d.newDeliverer(p)
	id := d.enqueue()
	d.deliver(id)
	email := d.get(id)
	if email.Status != outbox.StatusQueued || len(email.Attempts) != 1 || email.Attempts[0].Stage != outbox.StageDeferred {
		t.Errorf("status %s, attempts %+v; want queued after one deferred", email.Status, email.Attempts)
	}
}

// Providers quote addresses; what is kept does not.
func TestDetailHoldsNoAddress(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	text := fmt.Sprintf(`{"errors":[{"message":"<jane@example.org> is on a list%s"}]}`, strings.Repeat(" x", 1000))
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reply(400, text) })
	id := d.enqueue()
	d.deliver(id)
	email := d.get(id)
	for _, detail := range []string{email.ReasonDetail, email.Attempts[0].Detail} {
		if strings.Contains(detail, "jane") || !strings.Contains(detail, "(address)") || len(detail) > 510 {
			t.Errorf("detail = %q", detail)
		}
	}
}

// What a provider says can always be recorded, or a known outcome would become
// a doubt.
func TestOddMessageIDIsRecorded(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		return providertest.Accept().Then(providertest.Raw(
			"HTTP/1.1 202 Accepted\r\nX-Message-Id: \xff" + strings.Repeat("x", 300) + "\r\nContent-Length: 0\r\n\r\n"))
	})
	id := d.enqueue()
	d.deliver(id)
	email := d.get(id)
	if got := email.Attempts[0].ProviderMessageID; email.Status != outbox.StatusSent || strings.Contains(got, "\xff") || len(got) > 300 {
		t.Errorf("status %s, message id %q", email.Status, got)
	}
}

// The message that arrives is the one that was submitted.
func TestMessageArrivesWhole(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
	p := newSMTP(t, relay)
	d.deliverer = d.newDeliverer(p)
	id := d.enqueue(func(m *outbox.Message) {
		// Hard input 10, F40: one address in several lists.
		m.To, m.Cc, m.Bcc = []string{"Jane <jane@Example.org>"}, []string{"JANE@example.org", "joe@example.org"}, []string{"joe@example.org", "ann@example.org"}
		m.Headers = map[string]string{"X-Order": "7", "List-Unsubscribe": "<https://example.com/u>"}
		m.Attachments = []outbox.Attachment{{Filename: "empty.txt"}, {Filename: "b.bin", Content: bytes.Repeat([]byte{0, 255}, 100)}}
	})
	d.deliver(id)
	accepted := relay.Accepted()
	if len(accepted) != 1 {
		t.Fatalf("%d accepted, email %+v", len(accepted), d.get(id))
	}
	if diff := cmp.Diff([]string{"jane@example.org", "joe@example.org", "ann@example.org"}, accepted[0].To); diff != "" {
		t.Errorf("recipients (-want +got):\n%s", diff)
	}
	message := d.get(id).Message
	if diff := cmp.Diff([]string{"JANE@example.org", "joe@example.org"}, message.RepeatedRecipients()); diff != "" {
		t.Errorf("repeated recipients (-want +got):\n%s", diff)
	}
	for _, want := range []string{"X-Order: 7", "List-Unsubscribe: <https://example.com/u>", "empty.txt", "b.bin"} {
		if !bytes.Contains(accepted[0].Body, []byte(want)) {
			t.Errorf("the message has no %q", want)
		}
	}
	if bytes.Contains(accepted[0].Body, []byte("ann@example.org")) {
		t.Error("the message names a blind recipient")
	}
}
