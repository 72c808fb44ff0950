package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

func newClient(t *testing.T, pool *pgxpool.Pool) *outbox.Client {
	t.Helper()
	client, err := outbox.NewClient(pool, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func message() outbox.Message {
	return outbox.Message{
		From: "Shop <shop@example.com>", To: []string{"jane@example.org"},
		Subject: "Your receipt", Text: "Thank you.", HTML: "<p>Thank you.</p>",
	}
}

func submission(org uuid.UUID, key string) outbox.Submission {
	return outbox.Submission{Org: org, IdempotencyKey: key, Messages: []outbox.Message{message()}}
}

// querier is what count needs of a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func count(t *testing.T, db querier, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := db.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// tables counts what one submission creates.
func tables(t *testing.T, db querier) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, table := range []string{"emails", "email_contents", "email_terms", "attachments", "idempotency_keys", "river_job"} {
		counts[table] = count(t, db, "SELECT count(*) FROM outbox."+table)
	}
	return counts
}

func TestEnqueueStoresEmailKeyAndJobTogether(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client := newClient(t, nil)
	org := uuid.New()
	s := submission(org, "order-1")
	s.Messages[0].Attachments = []outbox.Attachment{{Filename: "empty.txt"}, {Filename: "a.bin", Content: []byte{0, 1, 2}}}

	receipt, err := client.EnqueueTx(context.Background(), tx, s)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"emails": 1, "email_contents": 1, "email_terms": 1, "attachments": 2, "idempotency_keys": 1, "river_job": 1}
	if diff := cmp.Diff(want, tables(t, tx)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	wantBody := fmt.Sprintf(`{"id":%q,"object":"email","status":"queued"}`, receipt.IDs[0])
	if string(receipt.Response) != wantBody || receipt.Replayed {
		t.Errorf("receipt = %s, replayed %v, want %s", receipt.Response, receipt.Replayed, wantBody)
	}
	if version := receipt.IDs[0].Version(); version != 7 {
		t.Errorf("id has version %d, want 7", version)
	}
	var args string
	if err := tx.QueryRow(context.Background(), "SELECT args::text FROM outbox.river_job").Scan(&args); err != nil {
		t.Fatal(err)
	}
	// F36: job arguments hold an id and nothing else.
	if want := fmt.Sprintf(`{"email_id": %q}`, receipt.IDs[0]); args != want {
		t.Errorf("job args = %s, want %s", args, want)
	}
}

func TestSameKeySameRequestReplays(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client := newClient(t, nil)
	org := uuid.New()

	first, err := client.EnqueueTx(context.Background(), tx, submission(org, "k"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := client.EnqueueTx(context.Background(), tx, submission(org, "k"))
	if err != nil {
		t.Fatal(err)
	}
	first.Replayed = true
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("replay (-first +again):\n%s", diff)
	}
	if n := count(t, tx, "SELECT count(*) FROM outbox.emails"); n != 1 {
		t.Errorf("%d emails, want 1", n)
	}
}

func TestSameKeyOtherRequestIsRefused(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client := newClient(t, nil)
	org := uuid.New()
	if _, err := client.EnqueueTx(context.Background(), tx, submission(org, "k")); err != nil {
		t.Fatal(err)
	}
	other := submission(org, "k")
	other.Messages[0].Subject = "Another"
	if _, err := client.EnqueueTx(context.Background(), tx, other); !errors.Is(err, outbox.ErrIdempotencyKeyReused) {
		t.Errorf("error = %v, want ErrIdempotencyKeyReused", err)
	}
	var subject string
	if err := tx.QueryRow(context.Background(), "SELECT subject FROM outbox.email_contents").Scan(&subject); err != nil {
		t.Fatal(err)
	}
	if subject != "Your receipt" {
		t.Errorf("the first email's subject became %q", subject)
	}
}

func TestKeysAreScopedToOrgAndEndpoint(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client := newClient(t, nil)
	org := uuid.New()
	batch := submission(org, "k")
	batch.Batch = true
	for _, s := range []outbox.Submission{submission(org, "k"), submission(uuid.New(), "k"), batch} {
		receipt, err := client.EnqueueTx(context.Background(), tx, s)
		if err != nil || receipt.Replayed {
			t.Fatalf("replayed %v, error %v; want a new email", receipt.Replayed, err)
		}
	}
	if n := count(t, tx, "SELECT count(*) FROM outbox.emails"); n != 3 {
		t.Errorf("%d emails, want 3", n)
	}
}

func TestRollbackLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	client := newClient(t, pool)
	tx, err := pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s := submission(uuid.New(), "k")
	if _, err := client.EnqueueTx(context.Background(), tx, s); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	for table, n := range tables(t, pool) {
		if n != 0 {
			t.Errorf("%d rows in %s after rollback", n, table)
		}
	}
	if receipt, err := client.Enqueue(context.Background(), s); err != nil || receipt.Replayed {
		t.Errorf("replayed %v, error %v; want the key to be free", receipt.Replayed, err)
	}
}

// I6: one email per live key, however many submit it at once.
func TestConcurrentSubmissionsWithOneKeyMakeOneEmail(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	client := newClient(t, pool)
	org := uuid.New()
	const submitters = 30
	var wg sync.WaitGroup
	receipts, errs := make([]outbox.Receipt, submitters), make([]error, submitters)
	for i := range submitters {
		wg.Go(func() { receipts[i], errs[i] = client.Enqueue(context.Background(), submission(org, "k")) })
	}
	wg.Wait()

	created := 0
	for i := range submitters {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if !receipts[i].Replayed {
			created++
		}
		if string(receipts[i].Response) != string(receipts[0].Response) {
			t.Errorf("answers differ: %s, %s", receipts[i].Response, receipts[0].Response)
		}
	}
	if created != 1 {
		t.Errorf("%d submissions were first, want 1", created)
	}
	want := map[string]int{"emails": 1, "email_contents": 1, "email_terms": 1, "attachments": 0, "idempotency_keys": 1, "river_job": 1}
	if diff := cmp.Diff(want, tables(t, pool)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

func TestValidation(t *testing.T) {
	t.Parallel()
	client := newClient(t, nil)
	tests := []struct {
		name   string
		change func(*outbox.Message)
		field  string
	}{
		{"no from", func(m *outbox.Message) { m.From = "" }, "from"},
		{"bad from", func(m *outbox.Message) { m.From = "nobody" }, "from"},
		{"no to", func(m *outbox.Message) { m.To = nil }, "to"},
		{"bad second to", func(m *outbox.Message) { m.To = []string{"a@example.com", "b@"} }, "to[1]"},
		{"hard input 5: double dot", func(m *outbox.Message) { m.To = []string{"a..b@example.com"} }, "to[0]"},
		{"hard input 7: leading dot", func(m *outbox.Message) { m.To = []string{".a@example.com"} }, "to[0]"},
		{"too many recipients", func(m *outbox.Message) { m.Bcc = make51() }, "to"},
		{"no subject", func(m *outbox.Message) { m.Subject = "" }, "subject"},
		{"hard input 2: line feed in subject", func(m *outbox.Message) { m.Subject = "a\r\nBcc: x@example.com" }, "subject"},
		{"hard input 2: line feed in name", func(m *outbox.Message) { m.From = "a\nb <a@example.com>" }, "from"},
		{"hard input 3: line feed in header name", header("X-A\r\nBcc", "x"), "headers.X-ABcc"},
		{"hard input 3: line feed in header value", header("X-A", "x\r\nBcc: x@example.com"), "headers.X-A"},
		{"hard input 22: header that we write", header("dkim-signature", "x"), "headers.dkim-signature"},
		{"hard input 13: no body", func(m *outbox.Message) { m.HTML, m.Text = "", "" }, "html"},
		{"hard input 23: U+0000", func(m *outbox.Message) { m.Text = "a\x00" }, "text"},
		{"attachment without a name", attached(outbox.Attachment{}), "attachments[0].filename"},
		{"attachment with a wrong type", attached(outbox.Attachment{Filename: "a", ContentType: "pdf"}), "attachments[0].content_type"},
		{"tag", func(m *outbox.Message) { m.Tags = []outbox.Tag{{Name: "a b", Value: "c"}} }, "tags[0].name"},
		{"policy", func(m *outbox.Message) { m.OnUnknown = "resend" }, "on_unknown"},
		{"priority", func(m *outbox.Message) { m.Priority = "urgent" }, "priority"},
		{"too far ahead", func(m *outbox.Message) { m.ScheduledAt = time.Now().Add(91 * 24 * time.Hour) }, "scheduled_at"},
		{"scheduled in the past", func(m *outbox.Message) { m.ScheduledAt = time.Now().Add(-time.Minute) }, "scheduled_at"},
		{"expired", func(m *outbox.Message) { m.ExpiresAt = time.Now().Add(-time.Minute) }, "expires_at"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tx := testdb.Tx(t)
			s := submission(uuid.New(), "k")
			test.change(&s.Messages[0])
			_, err := client.EnqueueTx(context.Background(), tx, s)
			invalid, ok := errors.AsType[*outbox.ValidationError](err)
			if !ok || len(invalid.Fields) != 1 || invalid.Fields[0].Field != test.field {
				t.Fatalf("error = %v, want exactly one about %s", err, test.field)
			}
			for table, n := range tables(t, tx) {
				if n != 0 {
					t.Errorf("%d rows in %s", n, table)
				}
			}
		})
	}
}

func make51() []string {
	addresses := make([]string, 50)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("a%d@example.com", i)
	}
	return addresses
}

func header(name, value string) func(*outbox.Message) {
	return func(m *outbox.Message) { m.Headers = map[string]string{name: value} }
}

func attached(a outbox.Attachment) func(*outbox.Message) {
	return func(m *outbox.Message) { m.Attachments = []outbox.Attachment{a} }
}

// A retry that arrives after the scheduled time is still the same request.
func TestReplayIsNotHeldToTheClock(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client := newClient(t, nil)
	s := submission(uuid.New(), "k")
	s.Messages[0].ScheduledAt = time.Now().Add(300 * time.Millisecond).Truncate(time.Microsecond)
	first, err := client.EnqueueTx(context.Background(), tx, s)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(first.Response), `"scheduled"`) {
		t.Errorf("answer = %s, want status scheduled", first.Response)
	}
	<-time.After(time.Until(s.Messages[0].ScheduledAt) + time.Millisecond)
	again, err := client.EnqueueTx(context.Background(), tx, s)
	if err != nil || !again.Replayed {
		t.Errorf("replayed %v, error %v; want a replay", again.Replayed, err)
	}
}

func TestExpiredKeyIsTakenOver(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client := newClient(t, nil)
	s := submission(uuid.New(), "k")
	first, err := client.EnqueueTx(context.Background(), tx, s)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := tx.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("UPDATE outbox.idempotency_keys SET expires_at = now()")
	if again, err := client.EnqueueTx(context.Background(), tx, s); err != nil || !again.Replayed {
		t.Fatalf("replayed %v, error %v; want a replay while the email has not ended", again.Replayed, err)
	}
	exec("UPDATE outbox.emails SET status = 'sent', ended_at = now() - interval '23 hours'")
	if again, err := client.EnqueueTx(context.Background(), tx, s); err != nil || !again.Replayed {
		t.Fatalf("replayed %v, error %v; want a replay within a day of the end", again.Replayed, err)
	}
	exec("UPDATE outbox.emails SET ended_at = now() - interval '25 hours'")
	second, err := client.EnqueueTx(context.Background(), tx, s)
	if err != nil || second.Replayed || second.IDs[0] == first.IDs[0] {
		t.Errorf("receipt = %+v, error %v; want a new email", second, err)
	}
}
