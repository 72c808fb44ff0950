package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers/providertest"
)

func (d *delivering) delete() uuid.UUID {
	d.t.Helper()
	id, err := outbox.DeleteOrg(context.Background(), d.pool, "acme")
	must(d.t, err)
	if id != d.org {
		d.t.Fatalf("deleted %s, want %s", id, d.org)
	}
	return id
}

func (d *delivering) purge(wantLeft int) {
	d.t.Helper()
	left, err := d.client.PurgeOrg(context.Background(), d.org, nil)
	must(d.t, err)
	if left != wantLeft {
		d.t.Fatalf("%d emails are left, want %d", left, wantLeft)
	}
}

// rowsOf counts what there is of an org, table by table.
func (d *delivering) rowsOf(org uuid.UUID) map[string]int {
	d.t.Helper()
	rows, err := d.pool.Query(context.Background(), `SELECT c.table_name, c.column_name FROM information_schema.columns c
		JOIN information_schema.tables t USING (table_schema, table_name)
		WHERE c.table_schema = 'outbox' AND t.table_type = 'BASE TABLE' AND c.column_name IN ('org_id', 'email_id')`)
	must(d.t, err)
	columns := map[string]string{}
	for rows.Next() {
		var table, column string
		must(d.t, rows.Scan(&table, &column))
		if columns[table] != "org_id" {
			columns[table] = column
		}
	}
	must(d.t, rows.Err())
	found := map[string]int{}
	for table, column := range columns {
		condition := "org_id = $1"
		if column == "email_id" {
			condition = "email_id IN (SELECT id FROM outbox.emails WHERE org_id = $1)"
		}
		if n := d.count(fmt.Sprintf("SELECT count(*) FROM outbox.%s WHERE %s", table, condition), org); n > 0 {
			found[table] = n
		}
	}
	return found
}

// An org goes with all that it has, but not under a send: that one ends first. Of
// another org nothing goes.
func TestDeletedOrg(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	ctx := context.Background()
	other := *d
	other.org = uuid.New()
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES ($1, 'other')", other.org)
	for _, b := range []*delivering{d, &other} {
		b.exec(`INSERT INTO outbox.api_keys (id, org_id, secret_hash, scopes) VALUES ($1::uuid::text, $1, '', '{send}')`, b.org)
		b.suppress(outbox.SuppressionManual, "joe@example.org")
		if _, err := b.client.CreateWebhook(ctx, b.org, "https://hooks.example.com/", []outbox.WebhookEvent{"email.sent"}); err != nil {
			t.Fatal(err)
		}
		_, err := b.client.Enqueue(ctx, submission(b.org, "key"))
		must(t, err)
		sent := b.enqueue(func(m *outbox.Message) { m.Attachments = []outbox.Attachment{{Filename: "a", Content: []byte("b")}} })
		b.deliver(sent)
		b.report(b.about(sent, 1, "delivered"))
		b.enqueue(func(m *outbox.Message) { m.ScheduledAt = time.Now().Add(time.Hour) })
	}
	doubt := d.inDoubt()
	before := other.rowsOf(other.org)

	release, arrived := make(chan struct{}), make(chan struct{}, 1)
	d.provider.Respond(func(providertest.Seen) providertest.Reaction {
		arrived <- struct{}{}
		return providertest.Accept().When(release)
	})
	sending, ended := d.enqueue(), make(chan error, 1)
	go func() { _, err := d.deliverer.Deliver(ctx, sending); ended <- err }()
	<-arrived

	d.delete()
	d.purge(1)
	if email := d.get(sending); email.Status != outbox.StatusSending {
		t.Errorf("status %s of what is being sent", email.Status)
	}
	if _, err := d.client.Get(ctx, d.org, doubt); !errors.Is(err, outbox.ErrNotFound) {
		t.Errorf("the one in doubt: %v", err)
	}
	close(release)
	must(t, <-ended)
	d.purge(0)
	if found := d.rowsOf(d.org); len(found) != 0 {
		t.Errorf("left of the org: %v", found)
	}
	if n := d.count("SELECT count(*) FROM outbox.river_job WHERE kind = 'deliver_email' AND state <> 'running'"); n != 3 {
		t.Errorf("%d jobs, want the other org's 3", n)
	}
	if after := other.rowsOf(other.org); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the other org has %v, had %v", after, before)
	}
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES (gen_random_uuid(), 'acme')")
}

// From its mark on an org submits nothing over SQL, and no attempt of its emails
// begins, whoever comes first: the worker or the purge.
func TestDeletedOrgEnds(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	waiting, doubt := d.enqueue(), d.inDoubt()
	d.delete()
	d.delete() // again is no error
	if _, err := enqueueSQL(t, d.pool, submission(d.org, "")); nameOf(err) != "not_found" {
		t.Errorf("SQL: %v, want not_found", err)
	}
	d.deliverer.LookAgain()
	d.deliver(waiting)
	d.deliver(doubt)
	if email := d.get(waiting); email.Status != outbox.StatusCanceled || email.Reason != "org_deleted" || len(email.Attempts) != 0 {
		t.Errorf("waiting: status %s (%s)", email.Status, email.Reason)
	}
	if email := d.get(doubt); email.Status != outbox.StatusFailed || email.Reason != "outcome_unknown" {
		t.Errorf("in doubt: status %s (%s)", email.Status, email.Reason)
	}
	if n := d.provider.Requests(); n != 1 {
		t.Errorf("%d requests, want the one before", n)
	}
}

// A transaction that was open all the time commits an email of an org that is gone.
// It ends like the others, and the next purge removes it. The row goes at last.
func TestLateSubmissionToADeletedOrg(t *testing.T) {
	t.Parallel()
	d := newAcme(t)
	d.delete()
	d.purge(0)
	late := d.enqueue()
	d.deliver(late)
	if email := d.get(late); email.Status != outbox.StatusCanceled || d.provider.Requests() != 0 {
		t.Errorf("status %s, %d requests", email.Status, d.provider.Requests())
	}
	must(t, outbox.PurgeDeletedOrgs(context.Background(), d.client))
	if found := d.rowsOf(d.org); len(found) != 0 {
		t.Errorf("left of the org: %v", found)
	}
	if n := d.count("SELECT count(*) FROM outbox.orgs"); n != 1 {
		t.Errorf("%d rows of orgs, want the one that remembers", n)
	}
	d.exec("UPDATE outbox.orgs SET deleted_at = now() - interval '31 days'")
	must(t, outbox.PurgeDeletedOrgs(context.Background(), d.client))
	if n := d.count("SELECT count(*) FROM outbox.orgs"); n != 0 {
		t.Errorf("%d rows of orgs, want none", n)
	}
}
