package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

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
		return providertest.Reply(400, `{"errors":[{"message":"`+word+` looks like spam"}]}`)
	})
	failed := d.enqueue(speaking(word))
	d.deliver(failed)
	d.provider.Respond(nil)
	sent := d.enqueue(speaking(word))
	d.deliver(sent)
	for _, address := range []string{word + "-to@example.org", word + "-two@example.org"} {
		for _, event := range d.life(sent) {
			event.Recipient, event.Detail = address, event.Detail+" says "+word
			d.report(event)
		}
	}
	// The list of an org outlives its emails, so it may show no word here.
	bounced := d.enqueue(speaking(word), func(m *outbox.Message) { m.To, m.Cc, m.Bcc = []string{"gone@example.org"}, nil, nil })
	d.exec("DELETE FROM outbox.suppressions WHERE org_id = $1", d.org)
	d.deliver(bounced)
	bounce := d.about(bounced, 1, providers.EventBounced)
	bounce.Recipient, bounce.Permanent, bounce.Detail = "gone@example.org", true, "550 "+word+" is unknown"
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

	if found := findings(t, d.pool, "canary"); len(found) == 0 {
		t.Fatal("the search finds nothing before the purge")
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
	for _, to := range []string{"canary-to@example.org", "gone@example.org"} {
		q := outbox.Query{Org: d.org, To: to, Limit: 100}
		if emails, _, err := d.client.List(ctx, q); err != nil || anyPurged(emails) {
			t.Errorf("a search for %s finds what is purged: %v", to, err)
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

var (
	_ = errors.Is
	_ pgx.Rows
)
