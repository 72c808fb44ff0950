package outbox_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers/providertest"
)

// The request that an endpoint gets, member by member, and that the official
// library takes it.
func TestWebhookRequest(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	r := newReceiver(t, status(http.StatusNoContent))
	w := d.webhook(r.server.URL + "/hooks?from=outboxd")
	email := d.sent(func(m *outbox.Message) {
		m.Tags = []outbox.Tag{{Name: "kind", Value: "receipt"}}
		m.Metadata = map[string]string{"order": "7 < 8"}
	})
	m := d.message(w)
	if wait := d.tell(m.ID); wait != 0 {
		t.Errorf("wait %v after it was taken", wait)
	}
	got := r.got()[0]
	if err := got.verify(w.Secret); err != nil {
		t.Error(err)
	}
	if err := got.verify("whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldA=="); err == nil {
		t.Error("another secret verifies it")
	}
	if got.id != m.ID.String() || got.header.Get("svix-signature") != got.header.Get("webhook-signature") ||
		got.header.Get("Content-Type") != "application/json" || strings.Contains(string(got.body), `\u003c`) {
		t.Errorf("request %v %s", got.header, got.body)
	}
	stored := d.get(email)
	want := map[string]any{
		"type": "email.sent", "created_at": m.CreatedAt.UTC().Format(time.RFC3339Nano),
		"data": map[string]any{
			"email_id": email.String(), "created_at": stored.CreatedAt.UTC().Format(time.RFC3339Nano),
			"message_id": stored.Attempts[0].ProviderMessageID, "from": "Shop <shop@example.com>",
			"to": []any{"jane@example.org"}, "subject": "Your receipt", "tags": map[string]any{"kind": "receipt"},
			"status": "sent", "reason": nil, "reason_detail": nil, "provider": "sendgrid", "recipient": nil, "detail": nil,
			"occurred_at": m.CreatedAt.UTC().Format(time.RFC3339Nano), "possible_duplicate": false,
			"metadata": map[string]any{"order": "7 < 8"},
		},
	}
	if diff := cmp.Diff(want, got.json(t)); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
	if read, err := d.client.GetWebhookMessage(context.Background(), d.org, w.ID, m.ID); err != nil ||
		string(read.Payload) != string(got.body) || read.DeliveredAt.IsZero() || read.LastStatus != http.StatusNoContent {
		t.Errorf("message %+v, %v, with another payload than %s", read, err, got.body)
	}
	d.tell(m.ID) // as a second job would
	if n := len(r.got()); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// Each change makes the messages that it should, in its own transaction.
func TestWebhookMessages(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	all := d.webhook("http://127.0.0.1:1/all")
	some := d.webhook("http://127.0.0.1:1/some", outbox.WebhookFailed, outbox.WebhookClicked)
	off := d.webhook("http://127.0.0.1:1/off")
	if err := d.client.UpdateWebhook(context.Background(), d.org, off.ID, outbox.WebhookChange{Status: outbox.WebhookDisabled}); err != nil {
		t.Fatal(err)
	}
	email := d.sent()
	d.exec("UPDATE outbox.emails SET status = 'sent' WHERE id = $1", email) // no change
	d.exec("UPDATE outbox.emails SET status = 'delivered' WHERE id = $1", email)
	for _, kind := range []string{"delivery_delayed", "delivered", "opened", "clicked", "bounced", "complained", "accepted", "resolved"} {
		d.report(email, kind, "jane@example.org", "https://example.com/offer")
	}
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reply(400, "") })
	d.deliver(d.enqueue())
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reset() })
	doubt := d.enqueue()
	d.deliver(doubt)
	d.exec("UPDATE outbox.emails SET status = 'bounced' WHERE id = $1", doubt) // as by an event: it was accepted
	tx, err := d.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "UPDATE outbox.emails SET status = 'failed' WHERE id = $1", email); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}

	for w, want := range map[*outbox.Webhook][]outbox.WebhookEvent{
		all: {
			"email.sent", "email.sent", "email.delivery_delayed", "email.delivered", "email.opened", "email.clicked", "email.bounced",
			"email.complained", "email.failed", "email.unknown",
		},
		some: {"email.clicked", "email.failed"},
		off:  nil,
	} {
		var got []outbox.WebhookEvent
		for _, m := range d.messages(w) {
			got = append(got, m.Type)
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", w.Endpoint, diff)
		}
	}
	if n := count(t, d.pool, `SELECT count(*) FROM outbox.river_job WHERE kind = 'deliver_webhook' AND queue = 'webhooks'
		AND state = 'available' AND (SELECT array_agg(key) FROM jsonb_object_keys(args) AS k (key)) = '{message_id}'`); n != 12 {
		t.Errorf("%d jobs with nothing but an id, want 12", n)
	}
}

// F22: an endpoint is told each event once, however often and early it is
// reported, and that the email was accepted also when an event says so first.
func TestWebhookTellsRepeatedEventsOnce(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	w := d.webhook("http://127.0.0.1:1/")
	id := d.enqueue()
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		d.delivering.report(d.life(id)...) // Begin has committed, Finish has not
		return providertest.Accept()
	})
	d.deliver(id)
	for range 3 {
		d.delivering.report(d.life(id)...)
	}
	got := map[outbox.WebhookEvent]int{}
	for _, m := range d.messages(w) {
		got[m.Type]++
	}
	want := map[outbox.WebhookEvent]int{
		"email.sent": 1, "email.delivery_delayed": 1, "email.delivered": 1, "email.opened": 2, "email.clicked": 2,
		"email.bounced": 1, "email.complained": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// What the types add to the payload.
func TestWebhookPayloads(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	w := d.webhook("http://127.0.0.1:1/")
	email := d.sent(func(m *outbox.Message) { m.To = []string{"jane@example.org", "joe@example.org"} })
	for kind, detail := range map[string]string{"bounced": "550 no such user", "clicked": "https://example.com/offer"} {
		d.report(email, kind, "joe@example.org", detail)
	}
	d.exec("UPDATE outbox.events SET permanent = true WHERE type = 'bounced'")
	d.provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Reply(400, "") })
	d.deliver(d.enqueue())
	got := map[outbox.WebhookEvent]map[string]any{}
	for _, m := range d.messages(w) {
		read, err := d.client.GetWebhookMessage(context.Background(), d.org, w.ID, m.ID)
		if err != nil {
			t.Fatal(err)
		}
		got[m.Type], _ = told{body: read.Payload}.json(t)["data"].(map[string]any)
	}
	for event, members := range map[outbox.WebhookEvent]map[string]any{
		"email.sent":    {"to": []any{"jane@example.org", "joe@example.org"}, "status": "sent"},
		"email.bounced": {"to": []any{"joe@example.org"}, "recipient": "joe@example.org", "provider": "sendgrid", "detail": "550 no such user"},
		"email.failed":  {"status": "failed", "reason": "rejected", "failed": map[string]any{"reason": "rejected"}},
	} {
		for name, want := range members {
			if diff := cmp.Diff(want, got[event][name]); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", event, name, diff)
			}
		}
	}
	if bounce := got["email.bounced"]["bounce"].(map[string]any); bounce["message"] != "550 no such user" || bounce["type"] != "Permanent" {
		t.Errorf("bounce %v", bounce)
	}
	if click := got["email.clicked"]["click"].(map[string]any); click["link"] != "https://example.com/offer" {
		t.Errorf("click %v", click)
	}
}

// Addresses stay where the content's purge finds them.
func TestWebhookRowsHoldNoAddress(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	r := newReceiver(t, status(http.StatusInternalServerError))
	w := d.webhook(r.server.URL)
	email := d.sent()
	d.report(email, "bounced", "jane@example.org", "550 <jane@example.org> unknown")
	for _, m := range d.messages(w) {
		d.tell(m.ID)
	}
	if n := count(t, d.pool, `SELECT (SELECT count(*) FROM outbox.webhook_messages m WHERE m::text ~ '@|receipt') +
		(SELECT count(*) FROM outbox.river_job j WHERE j::text ~ 'example.org|receipt')`); n != 0 {
		t.Errorf("%d rows hold an address or the subject", n)
	}
	d.exec("DELETE FROM outbox.email_contents")
	d.exec("UPDATE outbox.events SET recipient = NULL, detail = NULL")
	for _, m := range d.messages(w) {
		read, err := d.client.GetWebhookMessage(context.Background(), d.org, w.ID, m.ID)
		if err != nil || strings.Contains(string(read.Payload), "@") || !strings.Contains(string(read.Payload), email.String()) {
			t.Errorf("after the purge: %s, %v", read.Payload, err)
		}
	}
}

func TestWithoutWebhookThereIsNoMessageAndNoJob(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	other := uuid.New()
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES ($1, 'other')", other)
	if _, err := d.client.CreateWebhook(context.Background(), other, "http://127.0.0.1:1/", outbox.WebhookEvents); err != nil {
		t.Fatal(err)
	}
	d.webhook("http://127.0.0.1:1/", outbox.WebhookOpened)
	d.report(d.sent(), "delivered", "jane@example.org", "")
	if n := count(t, d.pool, `SELECT (SELECT count(*) FROM outbox.webhook_messages) +
		(SELECT count(*) FROM outbox.river_job WHERE kind = 'deliver_webhook')`); n != 0 {
		t.Errorf("%d messages and jobs", n)
	}
}

// For a day after a rotation both secrets verify what is told.
func TestWebhookRotation(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	r := newReceiver(t, status(http.StatusOK))
	w := d.webhook(r.server.URL)
	rotate := func() string {
		secret, err := d.client.RotateWebhookSecret(context.Background(), d.org, w.ID)
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	verifies := func(secrets ...string) (verified []bool) {
		d.sent()
		list := d.messages(w)
		d.tell(list[len(list)-1].ID)
		requests := r.got()
		for _, secret := range secrets {
			verified = append(verified, requests[len(requests)-1].verify(secret) == nil)
		}
		return verified
	}
	second := rotate()
	if got := verifies(w.Secret, second); !slices.Equal(got, []bool{true, true}) {
		t.Errorf("after the rotation the old and the new secret verify: %v", got)
	}
	third := rotate()
	if got := verifies(w.Secret, second, third); !slices.Equal(got, []bool{false, true, true}) {
		t.Errorf("after another, the three verify: %v", got)
	}
	d.exec("UPDATE outbox.webhooks SET previous_secret_until = now()")
	if got := verifies(second, third); !slices.Equal(got, []bool{false, true}) {
		t.Errorf("after the overlap the old and the new secret verify: %v", got)
	}
	if read := d.read(w); read.Secret != third {
		t.Error("another secret is shown than the newest")
	}
}

func TestWebhookLimit(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	results := make(chan error, outbox.MaxWebhooks+5)
	for range cap(results) {
		go func() {
			_, err := d.client.CreateWebhook(context.Background(), d.org, "http://127.0.0.1:1/", outbox.WebhookEvents)
			results <- err
		}()
	}
	refused := 0
	for range cap(results) {
		err := <-results
		if validation, ok := errors.AsType[*outbox.ValidationError](err); ok && strings.Contains(validation.Error(), "at most 20 webhooks") {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if list, err := d.client.ListWebhooks(context.Background(), d.org); err != nil || len(list) != outbox.MaxWebhooks || refused != 5 {
		t.Errorf("%d webhooks, %d refused, %v", len(list), refused, err)
	}
}

// Nothing of an org is seen or changed by another.
func TestWebhooksAreTheOrgsOwn(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	w := d.webhook("http://127.0.0.1:1/")
	d.sent()
	m := d.message(w)
	ctx, stranger := context.Background(), uuid.New()
	_, getErr := d.client.GetWebhook(ctx, stranger, w.ID)
	_, rotateErr := d.client.RotateWebhookSecret(ctx, stranger, w.ID)
	_, _, listErr := d.client.ListWebhookMessages(ctx, stranger, w.ID, uuid.Nil, 10)
	_, _, replayErr := d.client.ReplayWebhook(ctx, stranger, w.ID, time.Time{})
	for name, err := range map[string]error{
		"get": getErr, "rotate": rotateErr, "list": listErr, "replay": replayErr,
		"update": d.client.UpdateWebhook(ctx, stranger, w.ID, outbox.WebhookChange{Status: outbox.WebhookDisabled}),
		"delete": d.client.DeleteWebhook(ctx, stranger, w.ID), "replay one": d.client.ReplayWebhookMessage(ctx, stranger, w.ID, m.ID),
	} {
		if !errors.Is(err, outbox.ErrWebhookNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.client.GetWebhookMessage(ctx, stranger, w.ID, m.ID); !errors.Is(err, outbox.ErrWebhookMessageNotFound) {
		t.Errorf("message: %v", err)
	}
	if diff := cmp.Diff(w, d.read(w)); diff != "" {
		t.Errorf("the webhook changed (-was +is):\n%s", diff)
	}
}
