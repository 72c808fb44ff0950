package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/mail"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

func (d *delivering) suppress(reason outbox.SuppressionReason, addresses ...string) {
	d.t.Helper()
	for _, address := range addresses {
		_, err := d.client.Suppress(context.Background(), d.org, outbox.Suppression{Address: address, Reason: reason})
		must(d.t, err)
	}
}

// leftOut are an email's events of the type suppressed: recipient and reason.
func leftOut(email *outbox.Email) []string {
	var list []string
	for _, event := range email.Events {
		if event.Type == "suppressed" {
			list = append(list, event.Recipient+" "+event.Detail)
		}
	}
	return list
}

// relayed is a delivering through a relay, whose envelopes and headers can be
// read.
func relayed(t *testing.T) (*delivering, *providertest.SMTP) {
	t.Helper()
	d, relay := newDelivering(t), providertest.NewSMTP(t, providertest.SMTPOptions{})
	d.deliverer = d.newDeliverer(newSMTP(t, relay))
	return d, relay
}

// Suppressed after submission and before Begin: nobody of them is sent to, the
// others are, and the email says who was left out.
func TestSuppressedRecipientsAreLeftOut(t *testing.T) {
	t.Parallel()
	const a, b, c, x, y = "a@example.org", "b@example.org", "c@example.org", "x@example.org", "y@example.org"
	for _, test := range []struct {
		name         string
		to, cc, bcc  []string
		suppressed   []string
		envelope     []string // none: the email ends as suppressed
		toHeader     string
		reasonDetail string
	}{
		{"the only one", []string{a}, nil, nil, []string{a}, nil, "", ""},
		{"nobody", []string{a}, nil, nil, []string{c}, []string{a}, a, ""},
		{"one of two", []string{a, b}, nil, nil, []string{a}, []string{b}, b, ""},
		{"in other letters, with a name", []string{"Ann <A@Example.ORG>", b}, nil, nil, []string{a}, []string{b}, b, ""},
		{"a copy", []string{a}, []string{b}, []string{c}, []string{b, c}, []string{a}, a, ""},
		{"all of several", []string{a}, []string{b}, []string{c}, []string{a, b, c}, nil, "", ""},
		{"named twice", []string{a}, []string{a, b}, nil, []string{a}, []string{b}, b, ""},
		{"all of To: the first copy moves up", []string{a}, []string{b, c}, nil, []string{a}, []string{b, c}, b, ""},
		{"all but one blind recipient", []string{a}, nil, []string{x}, []string{a}, []string{x}, x, ""},
		{"all but several blind recipients", []string{a}, nil, []string{x, y}, []string{a}, nil, "", "only 2 blind recipients are left"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d, relay := relayed(t)
			id := d.enqueue(func(m *outbox.Message) { m.To, m.Cc, m.Bcc = test.to, test.cc, test.bcc })
			d.suppress(outbox.SuppressionHardBounce, test.suppressed...)
			if wait := d.deliver(id); wait != 0 {
				t.Errorf("wait %v", wait)
			}
			email, accepted := d.get(id), relay.Accepted()
			var want []string
			for _, s := range test.suppressed {
				if test.name != "nobody" {
					want = append(want, s+" hard_bounce")
				}
			}
			if diff := cmp.Diff(want, leftOut(email)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if got := len(email.SuppressedRecipients); got != len(want) {
				t.Errorf("suppressed recipients %v", email.SuppressedRecipients)
			}
			if test.envelope == nil {
				if email.Status != outbox.StatusSuppressed || email.Reason != "hard_bounce" || len(email.Attempts) != 0 || len(accepted) != 0 || email.EndedAt.IsZero() {
					t.Errorf("status %s (%s), %d attempts, %d accepted", email.Status, email.Reason, len(email.Attempts), len(accepted))
				}
				if !strings.Contains(email.ReasonDetail, test.reasonDetail) || strings.Contains(email.ReasonDetail, "@") {
					t.Errorf("detail %q", email.ReasonDetail)
				}
				return
			}
			if email.Status != outbox.StatusSent || len(accepted) != 1 {
				t.Fatalf("status %s (%s), %d accepted", email.Status, email.Reason, len(accepted))
			}
			got := accepted[0]
			if diff := cmp.Diff(test.envelope, got.To); diff != "" {
				t.Errorf("envelope (-want +got):\n%s", diff)
			}
			message, err := mail.ReadMessage(bytes.NewReader(got.Body))
			must(t, err)
			if to := message.Header.Get("To"); !strings.Contains(to, test.toHeader) {
				t.Errorf("To: %s, want %s", to, test.toHeader)
			}
			for _, s := range test.suppressed {
				if bytes.Contains(bytes.ToLower(got.Body), []byte(s)) {
					t.Errorf("the message names %s", s)
				}
			}
		})
	}
}

// Suppressed between load and Begin: Begin refuses, and the next look leaves out.
func TestSuppressedBetweenLoadAndBegin(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
	// The preamble of SMTP lies between the load and Begin.
	var once sync.Once
	relay.Respond(func(e providertest.SMTPEvent) providertest.Reaction {
		if e.Stage == providertest.AtRCPT {
			once.Do(func() { d.suppress(outbox.SuppressionComplaint, "jane@example.org") })
		}
		return providertest.Accept()
	})
	d.deliverer = d.newDeliverer(newSMTP(t, relay))
	id := d.enqueue(func(m *outbox.Message) { m.Cc = []string{"joe@example.org"} })
	if wait := d.deliver(id); wait == 0 {
		t.Error("the email is not looked at again")
	}
	if email := d.get(id); len(email.Attempts) != 0 || len(relay.Accepted()) != 0 || email.Status != outbox.StatusQueued {
		t.Fatalf("status %s, %d attempts, %d accepted", email.Status, len(email.Attempts), len(relay.Accepted()))
	}
	d.deliver(id)
	email, accepted := d.get(id), relay.Accepted()
	if email.Status != outbox.StatusSent || len(accepted) != 1 || !slices.Equal(accepted[0].To, []string{"joe@example.org"}) {
		t.Errorf("status %s, accepted %+v", email.Status, accepted)
	}
}

// Another org's suppression is nothing to this one.
func TestSuppressionIsPerOrg(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	_, err := d.client.Suppress(context.Background(), uuid.New(), outbox.Suppression{Address: "jane@example.org", Reason: outbox.SuppressionManual})
	must(t, err)
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusSent || leftOut(email) != nil {
		t.Errorf("status %s, left out %v", email.Status, leftOut(email))
	}
}

// I8: a replay has the bytes of the beginning, whoever was suppressed, or sent to
// again, since.
func TestReplayIsTheSameWhoeverIsSuppressedSince(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*delivering){
		"one more suppressed": func(d *delivering) { d.suppress(outbox.SuppressionComplaint, "joe@example.org") },
		"all suppressed":      func(d *delivering) { d.suppress(outbox.SuppressionComplaint, "joe@example.org", "ann@example.org") },
		"none suppressed":     func(d *delivering) { d.exec("DELETE FROM outbox.suppressions") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			d.kill()
			d.deliverer = d.newDeliverer(keyed{newSendGrid(t, d.provider.URL())})
			id := d.enqueue(func(m *outbox.Message) { m.Cc, m.Bcc = []string{"joe@example.org"}, []string{"ann@example.org"} })
			d.suppress(outbox.SuppressionHardBounce, "jane@example.org")
			d.crashed(id, true)
			change(d)
			d.deliverer = d.newDeliverer(keyed{newSendGrid(t, d.provider.URL())})
			d.deliver(id)

			email, seen := d.get(id), d.provider.Seen()
			if email.Status != outbox.StatusSent || len(email.Attempts) != 1 || email.Attempts[0].Evidence != outbox.EvidenceReplay {
				t.Fatalf("status %s, attempts %+v", email.Status, email.Attempts)
			}
			if len(seen) != 2 || !bytes.Equal(seen[0].Body, seen[1].Body) || bytes.Contains(seen[1].Body, []byte("jane@")) {
				t.Errorf("%d requests, equal bodies without jane wanted", len(seen))
			}
			if diff := cmp.Diff([]string{"jane@example.org"}, email.SuppressedRecipients); diff != "" {
				t.Errorf("suppressed recipients (-want +got):\n%s", diff)
			}
		})
	}
}

// The next attempt goes by what holds then: who is sent to again gets the mail,
// who was suppressed since does not, and each is told of once.
func TestNextAttemptLooksAgain(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.provider.Respond(func(r providertest.Seen) providertest.Reaction {
		if r.Number < 4 {
			return providertest.Reply(429, "")
		}
		return providertest.Accept()
	})
	id := d.enqueue(func(m *outbox.Message) { m.To = []string{"a@example.org", "b@example.org", "c@example.org"} })
	again := func() {
		d.exec("UPDATE outbox.emails SET next_attempt_at = now()")
		d.probeNow()
		d.deliver(id)
	}
	d.suppress(outbox.SuppressionManual, "a@example.org")
	again()
	again() // the same: no other event
	d.suppress(outbox.SuppressionUnsubscribe, "b@example.org")
	must(t, d.client.Unsuppress(context.Background(), d.org, "a@example.org"))
	again()
	must(t, d.client.Unsuppress(context.Background(), d.org, "B@example.org"))
	again()
	email := d.get(id)
	if diff := cmp.Diff([]string{"a@example.org manual", "b@example.org unsubscribe"}, leftOut(email)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	var got [][]string
	for _, seen := range d.provider.Seen() {
		got = append(got, seen.To)
	}
	want := [][]string{
		{"b@example.org", "c@example.org"},
		{"b@example.org", "c@example.org"},
		{"a@example.org", "c@example.org"},
		{"a@example.org", "b@example.org", "c@example.org"},
	}
	if diff := cmp.Diff(want, got); diff != "" || email.Status != outbox.StatusSent || email.SuppressedRecipients != nil {
		t.Errorf("status %s, suppressed %v, recipients (-want +got):\n%s", email.Status, email.SuppressedRecipients, diff)
	}
}

// I4: an email that may have been accepted has not ended as suppressed.
func TestSuppressedAfterADoubt(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.crashed(id, true)
	d.waited()
	d.suppress(outbox.SuppressionHardBounce, "jane@example.org")
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
	d.deliver(id)
	email := d.get(id)
	if email.Status != outbox.StatusFailed || email.Reason != "outcome_unknown" || d.provider.Requests() != 1 {
		t.Errorf("status %s (%s) after %d requests", email.Status, email.Reason, d.provider.Requests())
	}
	if diff := cmp.Diff([]string{"jane@example.org hard_bounce"}, leftOut(email)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// The SQL door can write neither a domain in ASCII nor every letter in lower
// case, and whoever is suppressed is left out all the same.
func TestSuppressedRecipientsFromSQL(t *testing.T) {
	t.Parallel()
	d, relay := relayed(t)
	d.org = newOrg(t, d.pool)
	s := submission(d.org, "")
	s.Messages[0].To = []string{"Ann <ann@MÜLLER.example>", "ÉVA@example.org", "joe@example.org"}
	id, err := enqueueSQL(t, d.pool, s)
	must(t, err)
	d.suppress(outbox.SuppressionHardBounce, "ann@müller.example", "éva@example.org")
	d.deliver(id)
	if email, accepted := d.get(id), relay.Accepted(); len(accepted) != 1 || !slices.Equal(accepted[0].To, []string{"joe@example.org"}) {
		t.Errorf("status %s (%s), accepted %+v", email.Status, email.ReasonDetail, accepted)
	}
}

// Logs name no recipient.
func TestNoSuppressedAddressInLogs(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	var log bytes.Buffer
	d.deliverer = d.newDelivererWith(outbox.WorkerConfig{
		Providers: []providers.Provider{newSendGrid(t, d.provider.URL())}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	d.suppress(outbox.SuppressionHardBounce, "jane@example.org")
	d.deliver(d.enqueue())
	d.deliver(d.enqueue(func(m *outbox.Message) { m.Cc = []string{"joe@example.org"} }))
	if text := log.String(); !strings.Contains(text, "suppressed") || strings.Contains(text, "jane") || strings.Contains(text, "joe@") {
		t.Errorf("log:\n%s", text)
	}
}

// suppressTx takes many rows at once, in any order and any number of times, and
// the strongest reason stays: 50 orders, one result.
func TestSuppressInAnyOrder(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	org, other, email := uuid.New(), uuid.New(), uuid.New()
	list := []outbox.SuppressionOf{
		{Org: org, Suppression: outbox.Suppression{Address: "A <a@example.org>", Reason: outbox.SuppressionHardBounce, Detail: "550 <a@example.org> unknown"}},
		{Org: org, Suppression: outbox.Suppression{Address: "a@EXAMPLE.org", Reason: outbox.SuppressionComplaint, EmailID: email}},
		{Org: org, Suppression: outbox.Suppression{Address: "a@example.org", Reason: outbox.SuppressionUnsubscribe}},
		{Org: org, Suppression: outbox.Suppression{Address: "b@example.org", Reason: outbox.SuppressionHardBounce, Detail: "550 <b@example.org> unknown"}},
		{Org: other, Suppression: outbox.Suppression{Address: "a@example.org", Reason: outbox.SuppressionManual}},
		{Org: org, Suppression: outbox.Suppression{Address: "no address", Reason: outbox.SuppressionManual}},
	}
	want := []string{
		org.String() + " a@example.org complaint " + email.String(), org.String() + " b@example.org hard_bounce 550 <(address)> unknown",
		other.String() + " a@example.org manual",
	}
	slices.Sort(want)
	for order := range 50 {
		for range 2 {
			shuffled := slices.Clone(list)
			for i := range shuffled {
				j := (i*7 + order) % len(shuffled)
				shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
			}
			cut := order % len(shuffled)
			must(t, outbox.SuppressTx(context.Background(), tx, shuffled[:cut]))
			must(t, outbox.SuppressTx(context.Background(), tx, shuffled[cut:]))
		}
		rows, err := tx.Query(context.Background(), `SELECT concat_ws(' ', org_id, address, reason, email_id, detail) FROM outbox.suppressions`)
		must(t, err)
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("order %d (-want +got):\n%s", order, diff)
		}
		_, err = tx.Exec(context.Background(), "DELETE FROM outbox.suppressions")
		must(t, err)
	}
}

// What a provider reports suppresses as the installation says.
func TestSuppressOn(t *testing.T) {
	t.Parallel()
	hard := providers.Event{Type: providers.EventBounced, Permanent: true}
	soft := providers.Event{Type: providers.EventBounced}
	complained, unsubscribed := providers.Event{Type: providers.EventComplained}, providers.Event{Type: providers.EventUnsubscribed}
	delivered := providers.Event{Type: providers.EventDelivered, Permanent: true}
	for name, test := range map[string]struct {
		on   []outbox.SuppressionReason
		want []outbox.SuppressionReason // of hard, soft, complained, unsubscribed, delivered
	}{
		"default":    {nil, []outbox.SuppressionReason{"hard_bounce", "", "complaint", "unsubscribe", ""}},
		"off":        {[]outbox.SuppressionReason{}, []outbox.SuppressionReason{"", "", "", "", ""}},
		"complaints": {[]outbox.SuppressionReason{"complaint"}, []outbox.SuppressionReason{"", "", "complaint", "", ""}},
	} {
		client, err := outbox.NewClient(nil, outbox.Config{SuppressOn: test.on})
		must(t, err)
		var got []outbox.SuppressionReason
		for _, event := range []providers.Event{hard, soft, complained, unsubscribed, delivered} {
			got = append(got, client.SuppressionOf(event))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestSuppressErrors(t *testing.T) {
	t.Parallel()
	client := newClient(t, testdb.New(t))
	for field, s := range map[string]outbox.Suppression{
		"address": {Address: "nobody", Reason: outbox.SuppressionManual},
		"reason":  {Address: "a@example.org", Reason: "spite"},
	} {
		_, err := client.Suppress(context.Background(), uuid.New(), s)
		if invalid, ok := errors.AsType[*outbox.ValidationError](err); !ok || invalid.Fields[0].Field != field {
			t.Errorf("%s: error %v", field, err)
		}
	}
	for _, address := range []string{"nobody", "a@example.org"} {
		if err := client.Unsuppress(context.Background(), uuid.New(), address); !errors.Is(err, outbox.ErrNotSuppressed) {
			t.Errorf("%s: error %v, want ErrNotSuppressed", address, err)
		}
	}
}
