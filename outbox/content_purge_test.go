package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// atOnce is a retention by which everything that has ended is due.
const atOnce = time.Microsecond

func (d *delivering) purgeContents(want int) {
	d.t.Helper()
	n, err := outbox.PurgeContents(context.Background(), d.pool, atOnce)
	must(d.t, err)
	if n != want {
		d.t.Fatalf("%d emails were purged, want %d", n, want)
	}
}

// speaking is the message of canaries, with another word.
func speaking(word string) func(*outbox.Message) {
	return func(m *outbox.Message) {
		text, _ := json.Marshal(canaries())
		replaced := strings.NewReplacer("canary", word, "Canary", word).Replace(string(text))
		*m = outbox.Message{}
		_ = json.Unmarshal([]byte(replaced), m)
		m.Attachments[0].Content = []byte(word)
	}
}

// gossip lets an email live a life of which everybody talks with that word: its
// provider, who refuses or takes it, its events, a suppression of its recipient.
func (d *delivering) gossip(word string) (ids []uuid.UUID) {
	d.t.Helper()
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		return providertest.Reply(400, "")
	})
	failed := d.enqueue(speaking(word))
	d.deliver(failed)
	// What is not known for an address or a quotation is not scrubbed.
	for _, sql := range []string{
		"UPDATE outbox.emails SET reason_detail = $2 WHERE id = $1", "UPDATE outbox.attempts SET detail = $2 WHERE email_id = $1",
		"UPDATE outbox.webhook_messages SET reason_detail = $2 WHERE email_id = $1",
	} {
		d.exec(sql, failed, word+" looks like spam")
	}
	d.provider.Respond(nil)
	sent := d.enqueue(speaking(word))
	d.deliver(sent)
	for _, address := range []string{word + "-to@example.org", word + "-two@example.org"} {
		for _, event := range d.life(sent) {
			event.Recipient, event.Detail = address, event.Detail+" says "+word
			d.report(event)
		}
	}
	// The list of an org outlives its emails, so no address on it has the word.
	d.exec("DELETE FROM outbox.suppressions WHERE address LIKE $1", word+"%")
	gone := "gone-" + sent.String() + "@example.org"
	bounced := d.enqueue(speaking(word), func(m *outbox.Message) { m.To, m.Cc, m.Bcc = []string{gone}, nil, nil })
	d.deliver(bounced)
	bounce := d.about(bounced, 1, providers.EventBounced)
	bounce.Recipient, bounce.Permanent, bounce.Detail = gone, true, "550 "+word+" is unknown"
	d.report(bounce)
	return []uuid.UUID{failed, sent, bounced}
}

// After its retention nothing of an email can be read in any table, in clear or
// sealed, but the proof of its delivery; and nothing is missing of any other.
func TestPurgedContentIsNowhere(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	ctx := context.Background()
	other := *d
	other.org = uuid.New()
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES ($1, 'other')", other.org)
	keep := outbox.KeepContent
	must(t, outbox.SetContentRetention(ctx, d.pool, "other", &keep))
	for _, org := range []uuid.UUID{d.org, other.org} {
		_, err := d.client.CreateWebhook(ctx, org, "https://hooks.example.com/", outbox.WebhookEvents)
		must(t, err)
	}
	due := d.gossip("canary")
	kept := append(other.gossip("keeper"), d.enqueue(speaking("keeper")), d.inDoubt(speaking("keeper")))
	d.useKeys("k1")
	other.deliverer, other.client = d.deliverer, d.client
	due = append(due, d.gossip("canary")...)
	kept = append(kept, other.gossip("keeper")...)
	recent := d.gossip("keeper")
	d.exec("UPDATE outbox.emails SET ended_at = now() + interval '1 hour' WHERE id = ANY ($1)", recent)
	kept = append(kept, recent...)

	// Otherwise that nothing is found would say nothing.
	for _, table := range []string{"emails", "email_contents", "attachments", "attempts", "events", "webhook_messages", "suppressions"} {
		if !slices.Contains(findings(t, d.pool, "canary"), table+": canary") {
			t.Fatalf("before the purge, the search finds nothing in %s", table)
		}
	}
	before, proofs := findings(t, d.pool, "keeper"), map[uuid.UUID]*outbox.Email{}
	for _, id := range due {
		proofs[id] = d.get(id)
	}
	d.purgeContents(len(due))
	d.purgeContents(0)
	if found := findings(t, d.pool, "canary"); found != nil {
		t.Errorf("it can still be read: %v", found)
	}
	if diff := cmp.Diff(before, findings(t, d.pool, "keeper")); diff != "" {
		t.Errorf("of other emails:\n%s", diff)
	}
	for _, table := range []string{"email_contents", "attachments", "email_terms"} {
		if n := d.count("SELECT count(*) FROM outbox."+table+" WHERE email_id = ANY ($1)", due); n != 0 {
			t.Errorf("%d rows of %s are left", n, table)
		}
		if n := d.count("SELECT count(DISTINCT email_id) FROM outbox."+table+" WHERE email_id = ANY ($1)", kept); n != len(kept) {
			t.Errorf("%d of %d other emails are in %s", n, len(kept), table)
		}
	}
	for id, was := range proofs {
		d.isPurged(was, d.get(id))
	}
	for _, q := range []outbox.Query{{To: "canary-to@example.org"}, {Tag: "kind:receipt"}} {
		q.Org, q.Limit = d.org, 100
		if emails, _, err := d.client.List(ctx, q); err != nil || anyPurged(emails) {
			t.Errorf("%+v finds what is purged: %v", q, err)
		}
	}
	if emails, _, err := d.client.List(ctx, outbox.Query{Org: d.org, Limit: 100}); err != nil || !anyPurged(emails) {
		t.Errorf("a list without a filter leaves them out: %v", err)
	}
}

func anyPurged(emails []outbox.Email) bool {
	for _, e := range emails {
		if !e.ContentPurgedAt.IsZero() {
			return true
		}
	}
	return false
}

// isPurged compares an email with what it was: the proof of its delivery is the same.
func (d *delivering) isPurged(was, is *outbox.Email) {
	d.t.Helper()
	if is.ContentPurgedAt.IsZero() {
		d.t.Errorf("%s does not say that it is purged", is.ID)
	}
	want := *was
	want.ContentPurgedAt, want.ReasonDetail, want.SuppressedRecipients = is.ContentPurgedAt, "", nil
	want.Message = outbox.Message{Priority: was.Message.Priority}
	want.Attempts, want.Events = append([]outbox.Attempt{}, was.Attempts...), append([]outbox.Event{}, was.Events...)
	for i := range want.Attempts {
		want.Attempts[i].Detail = ""
	}
	for i := range want.Events {
		want.Events[i].Recipient, want.Events[i].Detail = "", ""
	}
	if diff := cmp.Diff(&want, is); diff != "" {
		d.t.Errorf("a purged email:\n%s", diff)
	}
}

// blocked runs something that has to wait for a lock, as the so-manieth.
func (d *delivering) blocked(n int, run func() error) (ended <-chan error) {
	d.t.Helper()
	done := make(chan error, 1)
	go func() { done <- run() }()
	d.await(fmt.Sprintf(`SELECT count(*) = %d FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`, n))
	return done
}

// whileHolding runs something while a transaction holds what a statement locks.
func (d *delivering) whileHolding(run func(), sql string, args ...any) {
	d.t.Helper()
	must(d.t, pgx.BeginFunc(context.Background(), d.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), sql, args...)
		run()
		return err
	}))
}

// failed is an email that its provider refused.
func (d *delivering) failed() uuid.UUID {
	d.t.Helper()
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reply(400, "") })
	id := d.enqueue()
	d.deliver(id)
	d.provider.Respond(nil)
	return id
}

// A purge and a person who has an email sent again meet: whoever comes first. What is
// sent has its content, and what has none is not sent.
func TestPurgeMeetsRetry(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	ctx := context.Background()
	retry := func(id uuid.UUID) error { return d.client.Retry(ctx, d.org, id, "ann") }

	retried := d.failed()
	var purge <-chan error
	d.whileHolding(func() {
		purge = d.blocked(1, func() error {
			n, err := outbox.PurgeContents(ctx, d.pool, atOnce)
			if n != 0 {
				t.Errorf("%d emails were purged", n)
			}
			return err
		})
	}, "UPDATE outbox.emails SET status = 'queued', ended_at = NULL WHERE id = $1", retried)
	must(t, <-purge)
	d.deliver(retried)
	if email := d.get(retried); email.Status != outbox.StatusSent || len(d.provider.Accepted()) != 1 {
		t.Errorf("status %s (%s), %d accepted", email.Status, email.ReasonDetail, len(d.provider.Accepted()))
	}
	d.exec("UPDATE outbox.emails SET ended_at = now() + interval '1 hour'")

	purged := d.failed()
	var late <-chan error
	d.whileHolding(func() {
		purge = d.blocked(1, func() error { _, err := outbox.PurgeContents(ctx, d.pool, atOnce); return err })
		late = d.blocked(2, func() error { return retry(purged) })
	}, "SELECT FROM outbox.email_contents WHERE email_id = $1 FOR UPDATE", purged)
	must(t, <-purge)
	if err := <-late; !errors.Is(err, outbox.ErrContentPurged) {
		t.Errorf("the retry of a purged email: %v", err)
	}
	if email := d.get(purged); email.Status != outbox.StatusFailed || email.ContentPurgedAt.IsZero() || len(email.Events) != 0 {
		t.Errorf("status %s, purged at %v, %d events", email.Status, email.ContentPurgedAt, len(email.Events))
	}
}

// What has not ended is not purged, whatever becomes of it: waiting, on its way, in
// doubt, of a paused org; nor an email that has ended while an attempt is open, unless
// nobody comes for that any more.
func TestPurgeLeavesWhatMayBeSent(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	ctx := context.Background()
	d.enqueue()
	d.enqueue(func(m *outbox.Message) { m.ScheduledAt = time.Now().Add(time.Hour) })
	accepted, not, open := d.inDoubt(), d.inDoubt(), d.inDoubt()
	d.exec("UPDATE outbox.emails SET status = 'sent', ended_at = now() WHERE id = $1", open)
	d.pause()
	d.purgeContents(0)
	d.resume(0)
	must(t, d.client.Resolve(ctx, d.org, not, outbox.OutcomeNotAccepted, "ann"))
	must(t, d.client.Resolve(ctx, d.org, accepted, outbox.OutcomeAccepted, "ann"))
	d.purgeContents(1)
	if email := d.get(accepted); email.ContentPurgedAt.IsZero() || len(email.Events) != 1 || email.Events[0].Detail != "accepted by ann" {
		t.Errorf("purged at %v, events %+v; want to know who resolved it", email.ContentPurgedAt, email.Events)
	}
	d.exec("UPDATE outbox.attempts SET deadline = now() - interval '2 days' WHERE email_id = $1", open)
	d.purgeContents(1)
	if a := d.get(open).Attempts[0]; a.Stage != outbox.StageUnknown || a.Evidence != outbox.EvidencePolicy || a.EndedAt.IsZero() {
		t.Errorf("the open attempt: %+v", a)
	}
	d.provider.Respond(nil)
	d.deliver(not)
	if email := d.get(not); email.Status != outbox.StatusSent {
		t.Errorf("status %s (%s: %s)", email.Status, email.Reason, email.ReasonDetail)
	}
	d.purgeContents(1)
}

// A purge works in transactions of bounded size, and in turns that go on where the
// last one ended.
func TestPurgeInSteps(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	ctx := context.Background()
	for range 5 {
		d.failed()
	}
	d.exec("UPDATE outbox.emails SET ended_at = now() + interval '1 hour' WHERE id = (SELECT max(id::text)::uuid FROM outbox.emails)")
	turns, err := outbox.PurgeContentsInTurns(ctx, d.pool, atOnce, 2)
	must(t, err)
	if diff := cmp.Diff([]int{2, 2, 0}, turns); diff != "" {
		t.Errorf("emails purged by turn:\n%s", diff)
	}
	// One transaction has one time.
	if n := d.count("SELECT count(DISTINCT content_purged_at) FROM outbox.emails"); n != 2 {
		t.Errorf("they were purged in %d transactions, want 2", n)
	}
	large := func(m *outbox.Message) {
		m.Attachments = []outbox.Attachment{{Filename: "a", Content: make([]byte, 5<<20)}}
	}
	for range 2 {
		d.deliver(d.enqueue(large))
	}
	d.purgeContents(2)
	if n := d.count("SELECT count(DISTINCT content_purged_at) FROM outbox.emails"); n != 4 {
		t.Errorf("two large ones were purged in %d transactions, want one each", n-2)
	}
}

// Workers purge by themselves: by their own retention, or that of the org. What takes
// more than one turn goes on, and is counted.
func TestWorkersPurge(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	registry := prometheus.NewRegistry()
	other := *d
	other.org = uuid.New()
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES ($1, 'other')", other.org)
	week := 7 * 24 * time.Hour
	must(t, outbox.SetContentRetention(context.Background(), d.pool, "other", &week))
	for range 3 {
		d.failed()
		other.failed()
	}
	w, err := outbox.NewWorker(d.pool, outbox.WorkerConfig{
		Providers:        []providers.Provider{newSendGrid(t, d.provider.URL())},
		ContentRetention: atOnce, Metrics: outbox.NewMetrics(registry),
	})
	must(t, err)
	w.SetPurgePages(2)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, nil) }()
	d.await("SELECT count(*) = 1 FROM outbox.river_job WHERE kind = 'purge_contents' AND state = 'completed'")
	stop()
	must(t, <-ended)
	const purged = "SELECT count(*) FROM outbox.emails WHERE org_id = $1 AND content_purged_at IS NOT NULL"
	if mine, theirs := d.count(purged, d.org), d.count(purged, other.org); mine != 3 || theirs != 0 {
		t.Errorf("purged %d, want 3, and %d of the org that keeps them for a week", mine, theirs)
	}
	if got := figures(t, registry)["contents_purged_total"]; got != 3 {
		t.Errorf("counted %v", got)
	}
	other.exec("UPDATE outbox.emails SET ended_at = ended_at - interval '8 days' WHERE org_id = $1", other.org)
	keep := outbox.KeepContent
	must(t, outbox.SetContentRetention(context.Background(), d.pool, "other", &keep))
	d.purgeContents(0)
	must(t, outbox.SetContentRetention(context.Background(), d.pool, "other", nil))
	d.purgeContents(3)
	if err := outbox.SetContentRetention(context.Background(), d.pool, "nobody", nil); !errors.Is(err, outbox.ErrNoOrg) {
		t.Errorf("of no org: %v", err)
	}
}

// What is learned after the purge moves the status, and is stored without address and
// text. Copies of what came before are known.
func TestEventsAfterThePurge(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	ctx := context.Background()
	id := d.enqueue(speaking("canary"))
	d.deliver(id)
	event := func(kind providers.EventType) providers.Event {
		e := d.about(id, 1, kind)
		e.Recipient, e.Detail = "canary-to@example.org", "canary"
		return e
	}
	both := []providers.Event{event("delivered"), event("delivered")} // in the same second
	both[1].Recipient = "canary-two@example.org"
	d.report(both...)
	d.purgeContents(1)
	if got := d.report(both...); got.New != 0 || got.Known != 2 {
		t.Errorf("copies of events from before: %+v", got)
	}
	complaint := event("complained")
	if got := d.report(complaint); got.New != 1 {
		t.Errorf("a late complaint: %+v", got)
	}
	if got := d.report(complaint); got.New != 0 || got.Known != 1 {
		t.Errorf("its copy: %+v", got)
	}
	email := d.get(id)
	last := email.Events[len(email.Events)-1]
	if email.Status != outbox.StatusComplained || len(email.Events) != 3 || last.Type != "complained" || last.Recipient+last.Detail != "" {
		t.Errorf("status %s, events %+v", email.Status, email.Events)
	}
	// Whoever complains gets no more mail.
	if got := d.suppressed("canary-to@example.org"); got != "complaint" {
		t.Errorf("suppressed for %q", got)
	}
	d.exec("UPDATE outbox.suppressions SET address = 'somebody@example.org'")
	if found := findings(t, d.pool, "canary"); found != nil {
		t.Errorf("it can be read again: %v", found)
	}

	// The two at once, in both orders.
	for name, eventFirst := range map[string]bool{"event, purge": true, "purge, event": false} {
		id = d.enqueue(speaking("canary"))
		d.deliver(id)
		bounce := event("bounced")
		bounce.Permanent = true
		report := func() error { _, err := d.client.RecordEvents(ctx, "sendgrid", []providers.Event{bounce}); return err }
		purge := func() error { _, err := outbox.PurgeContents(ctx, d.pool, atOnce); return err }
		first, second := purge, report
		held := "SELECT FROM outbox.email_contents FOR UPDATE"
		if eventFirst {
			first, second = report, purge
			held = "INSERT INTO outbox.suppressions (org_id, address, reason) SELECT org_id, 'canary-to@example.org', 'manual' FROM outbox.emails LIMIT 1"
		}
		var one, two <-chan error
		d.whileHolding(func() { one, two = d.blocked(1, first), d.blocked(2, second) }, held)
		must(t, <-one)
		must(t, <-two)
		d.exec("DELETE FROM outbox.suppressions")
		if email := d.get(id); email.Status != outbox.StatusBounced || email.ContentPurgedAt.IsZero() {
			t.Errorf("%s: status %s, purged at %v", name, email.Status, email.ContentPurgedAt)
		}
		if found := findings(t, d.pool, "canary"); found != nil {
			t.Errorf("%s: it can be read: %v", name, found)
		}
	}
}

// Whoever unsubscribes by a link in an email that is purged gets no more mail, and the
// email does not learn the address again.
func TestUnsubscribeAfterThePurge(t *testing.T) {
	t.Parallel()
	d, relay := relayed(t)
	d.reachable(newSMTP(t, relay))
	ctx := context.Background()
	id := d.enqueue(unsubscribable)
	d.deliver(id)
	_, token := linkIn(t, relay.Accepted()[0].Body)
	d.purgeContents(1)
	for range 2 {
		must(t, d.client.Unsubscribe(ctx, token))
	}
	email := d.get(id)
	if len(email.Events) != 1 || email.Events[0].Type != "unsubscribed" || email.Events[0].Recipient != "" {
		t.Errorf("events %+v", email.Events)
	}
	if n := d.count("SELECT count(*) FROM outbox.suppressions WHERE reason = 'unsubscribe'"); n != 1 {
		t.Errorf("%d suppressions", n)
	}
	if from, err := d.client.UnsubscribeSender(ctx, token); from != "" || err != nil {
		t.Errorf("sender %q, %v", from, err)
	}
}

// A worker that was paused since it read an email writes no search terms of one that
// is purged.
func TestRecipientsOfPurgedEmailsStayForgotten(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueueFromSQL("jane@müller.example")
	var paused <-chan error
	d.whileHolding(func() {
		paused = d.blocked(1, func() error { _, err := d.deliverer.Deliver(context.Background(), id); return err })
	}, `WITH ended AS (UPDATE outbox.emails SET status = 'canceled', ended_at = now() WHERE id = $1),
		forgotten AS (SELECT outbox.forget_terms(ARRAY[$1::uuid]))
		DELETE FROM outbox.email_contents USING forgotten WHERE email_id = $1`, id)
	must(t, <-paused)
	if n := d.count("SELECT count(*) FROM outbox.email_terms"); n != 0 {
		t.Errorf("%d terms", n)
	}
}
