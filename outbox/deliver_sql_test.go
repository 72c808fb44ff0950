package outbox_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// enqueueFromSQL submits a message for a recipient through the SQL function.
func (d *delivering) enqueueFromSQL(to string) uuid.UUID {
	d.t.Helper()
	s := submission(newOrg(d.t, d.pool), "")
	d.org = s.Org
	s.Messages[0].To = []string{to}
	id, err := enqueueSQL(d.t, d.pool, s)
	must(d.t, err)
	return id
}

func (d *delivering) foundBy(address string) bool {
	d.t.Helper()
	emails, _, err := d.client.List(context.Background(), outbox.Query{Org: d.org, To: address, Limit: 10})
	must(d.t, err)
	return len(emails) == 1
}

// What only Go can judge fails the email before its first attempt, under the
// name that HTTP would have refused it with, and an event says so.
func TestSQLMessageThatOnlyGoCanRefuse(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"a@exa..mple.com", "a@-x.example", "a@xn--a.example", `"a@example.com`, "a@ü..example"} {
		d := newDelivering(t)
		id := d.enqueueFromSQL(to)
		for range 2 { // again changes nothing
			if wait := d.deliver(id); wait != 0 {
				t.Errorf("%s: wait %v", to, wait)
			}
		}
		email := d.get(id)
		if email.Status != outbox.StatusFailed || email.Reason != "validation_error" || len(email.Attempts) != 0 || d.provider.Requests() != 0 {
			t.Errorf("%s: status %s (%s), attempts %v, %d requests", to, email.Status, email.Reason, email.Attempts, d.provider.Requests())
		}
		if len(email.Events) != 1 || email.Events[0].Type != "failed" || !strings.HasPrefix(email.Events[0].Detail, "validation_error: to[0]: ") {
			t.Errorf("%s: events %+v, want one that says why", to, email.Events)
		}
		if !d.foundBy(to) {
			t.Errorf("%s: not found by its address", to)
		}
	}
}

// An email that ends by its own wish is no failure that an event has to tell.
func TestExpiredEmailHasNoEvent(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	id := d.enqueue()
	d.exec("UPDATE outbox.emails SET expires_at = now()")
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusExpired || len(email.Events) != 0 {
		t.Errorf("status %s, events %+v; want expired and none", email.Status, email.Events)
	}
}

// SQL cannot write a domain in ASCII; the worker does, so that searching finds
// the email. Who has nothing to correct writes nothing.
func TestSQLRecipientsAreCorrectedAtTheFirstLook(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		to, sql, worker string
	}{
		{"Jürgen <J@MÜLLER.example>", "j@mÜller.example", "j@xn--mller-kva.example"},
		{"ÉVA@example.com", "Éva@example.com", "éva@example.com"},
		{"a@ｅxample.com", "a@ｅxample.com", "a@example.com"},
		{"Zoë <Zoe@Example.com.>", "zoe@example.com", "zoe@example.com"},
		{"zoe@example.com", "zoe@example.com", "zoe@example.com"},
	} {
		d := newDelivering(t)
		id := d.enqueueFromSQL(test.to)
		recipients := func() (list []string, version string) {
			t.Helper()
			must(t, d.pool.QueryRow(context.Background(), "SELECT recipients, xmin::text FROM outbox.email_contents").Scan(&list, &version))
			return list, version
		}
		before, version := recipients()
		d.deliver(id)
		after, newVersion := recipients()
		if !slices.Equal(before, []string{test.sql}) || !slices.Equal(after, []string{test.worker}) {
			t.Errorf("%s: recipients %v, then %v; want %s, then %s", test.to, before, after, test.sql, test.worker)
		}
		if (version != newVersion) != (test.sql != test.worker) {
			t.Errorf("%s: the row was written %v", test.to, version != newVersion)
		}
		if !d.foundBy(test.worker) {
			t.Errorf("%s: not found by %s", test.to, test.worker)
		}
	}
}
