package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// TestIdempotencyTable runs sequences of submissions, expiries, ends of emails
// and purges against a model of the contract's table on idempotency. I6.
func TestIdempotencyTable(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	client := newClient(t, pool)
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t, pool, client)
		t.Repeat(map[string]func(*rapid.T){
			"":                  m.check,
			"submit":            m.submit,
			"submit at once":    m.submitAtOnce,
			"submit no key":     m.submitNoKey,
			"submit invalid":    m.submitInvalid,
			"submit, roll back": m.submitAndRollBack,
			"expire":            m.expire,
			"end an hour ago":   func(t *rapid.T) { m.end(t, endedLately, "1 hour") },
			"end two days ago":  func(t *rapid.T) { m.end(t, endedLongAgo, "2 days") },
			"purge":             m.purge,
		})
	})
}

// scope is what an idempotency key is unique in, with the key.
type scope struct {
	org   uuid.UUID
	batch bool
	key   string
}

func (s scope) endpoint() string {
	if s.batch {
		return outbox.EndpointBatch
	}
	return outbox.EndpointEmails
}

// ended says what became of a submission's emails.
type ended int

const (
	notEnded ended = iota
	endedLately
	endedLongAgo
)

// entry is a key that is stored.
type entry struct {
	request int
	receipt outbox.Receipt
	expired bool
	ended   ended
}

// free means that the next submission makes a new email: the date has passed,
// and the email ended more than a day ago.
func (e *entry) free() bool { return e == nil || e.expired && e.ended == endedLongAgo }

// machine is the database beside the model of it.
type machine struct {
	pool   *pgxpool.Pool
	client *outbox.Client
	scopes []scope

	keys   map[scope]*entry
	emails int
}

func newMachine(t *rapid.T, pool *pgxpool.Pool, client *outbox.Client) *machine {
	m := &machine{pool: pool, client: client, keys: map[scope]*entry{}}
	m.exec(t, "DELETE FROM outbox.emails")
	m.exec(t, "DELETE FROM outbox.idempotency_keys")
	m.exec(t, "DELETE FROM outbox.river_job")
	for _, org := range []uuid.UUID{uuid.New(), uuid.New()} {
		m.scopes = append(m.scopes, scope{org, false, "a"}, scope{org, false, "b"}, scope{org, true, "a"})
	}
	return m
}

func (m *machine) exec(t *rapid.T, sql string, args ...any) {
	t.Helper()
	if _, err := m.pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) anyScope(t *rapid.T) scope { return rapid.SampledFrom(m.scopes).Draw(t, "scope") }

// anyKey draws a scope whose key is stored.
func (m *machine) anyKey(t *rapid.T) (scope, *entry) {
	stored := slices.DeleteFunc(slices.Clone(m.scopes), func(s scope) bool { return m.keys[s] == nil })
	if len(stored) == 0 {
		t.Skip("no key is stored")
	}
	s := rapid.SampledFrom(stored).Draw(t, "stored key")
	return s, m.keys[s]
}

func anyRequest(t *rapid.T) int { return rapid.IntRange(0, 2).Draw(t, "request") }

// request makes a submission; different numbers are different requests.
func (s scope) request(number int) outbox.Submission {
	out := submission(s.org, s.key)
	out.Batch = s.batch
	out.Messages[0].Subject = fmt.Sprint("Request ", number)
	for range number {
		if s.batch {
			out.Messages = append(out.Messages, message())
		}
	}
	return out
}

// submit is the table: the first, the same request again, another one.
func (m *machine) submit(t *rapid.T) {
	s, number := m.anyScope(t), anyRequest(t)
	receipt, err := m.client.Enqueue(context.Background(), s.request(number))
	m.expect(t, s, number, receipt, err)
}

// expect compares an answer with the model, and moves the model on.
func (m *machine) expect(t *rapid.T, s scope, number int, receipt outbox.Receipt, err error) {
	t.Helper()
	switch before := m.keys[s]; {
	case before.free():
		if err != nil || receipt.Replayed {
			t.Fatalf("receipt %+v, error %v; want a new email", receipt, err)
		}
		m.keys[s] = &entry{request: number, receipt: receipt}
		m.emails += len(receipt.IDs)
	case before.request == number:
		expectReplay(t, before, receipt, err)
	case !errors.Is(err, outbox.ErrIdempotencyKeyReused):
		t.Fatalf("receipt %+v, error %v; want ErrIdempotencyKeyReused", receipt, err)
	}
}

func expectReplay(t *rapid.T, first *entry, receipt outbox.Receipt, err error) {
	t.Helper()
	if err != nil || !receipt.Replayed || receipt.StatusCode != first.receipt.StatusCode ||
		string(receipt.Response) != string(first.receipt.Response) || !slices.Equal(receipt.IDs, first.receipt.IDs) {
		t.Fatalf("receipt %+v, error %v; want a replay of %+v", receipt, err, first.receipt)
	}
}

// submitAtOnce submits one request several times at once: at most one is first.
func (m *machine) submitAtOnce(t *rapid.T) {
	s, number := m.anyScope(t), anyRequest(t)
	const submitters = 3
	receipts, errs := make([]outbox.Receipt, submitters), make([]error, submitters)
	var wg sync.WaitGroup
	for i := range submitters {
		wg.Go(func() { receipts[i], errs[i] = m.client.Enqueue(context.Background(), s.request(number)) })
	}
	wg.Wait()
	// Whoever was first comes first; the model then expects replays.
	first := max(0, slices.IndexFunc(receipts, func(r outbox.Receipt) bool { return r.IDs != nil && !r.Replayed }))
	receipts[0], receipts[first] = receipts[first], receipts[0]
	errs[0], errs[first] = errs[first], errs[0]
	for i := range submitters {
		m.expect(t, s, number, receipts[i], errs[i])
	}
}

// submitNoKey always makes an email.
func (m *machine) submitNoKey(t *rapid.T) {
	s := m.anyScope(t)
	s.key = ""
	receipt, err := m.client.Enqueue(context.Background(), s.request(anyRequest(t)))
	if err != nil || receipt.Replayed {
		t.Fatalf("receipt %+v, error %v; want a new email", receipt, err)
	}
	m.emails += len(receipt.IDs)
}

// submitInvalid stores nothing and leaves the key as it is.
func (m *machine) submitInvalid(t *rapid.T) {
	s := m.anyScope(t).request(anyRequest(t))
	s.Messages[0].Subject = ""
	_, err := m.client.Enqueue(context.Background(), s)
	if _, ok := errors.AsType[*outbox.ValidationError](err); !ok {
		t.Fatalf("error %v, want a ValidationError", err)
	}
}

// submitAndRollBack answers as submit does, and then nothing has happened.
func (m *machine) submitAndRollBack(t *rapid.T) {
	s, number := m.anyScope(t), anyRequest(t)
	tx, err := m.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	before, emails := m.keys[s], m.emails
	receipt, err := m.client.EnqueueTx(context.Background(), tx, s.request(number))
	if rollback := tx.Rollback(context.Background()); rollback != nil {
		t.Fatal(rollback)
	}
	m.expect(t, s, number, receipt, err)
	if m.keys[s], m.emails = before, emails; before == nil {
		delete(m.keys, s)
	}
}

func (m *machine) expire(t *rapid.T) {
	s, e := m.anyKey(t)
	m.exec(t, "UPDATE outbox.idempotency_keys SET expires_at = now() WHERE org_id = $1 AND endpoint = $2 AND key = $3",
		s.org, s.endpoint(), s.key)
	e.expired = true
}

// end ends the emails of a submission.
func (m *machine) end(t *rapid.T, how ended, ago string) {
	_, e := m.anyKey(t)
	m.exec(t, "UPDATE outbox.emails SET status = 'sent', ended_at = now() - $2::interval WHERE id = ANY($1)",
		e.receipt.IDs, ago)
	e.ended = how
}

// purge deletes the keys that are free, and no other.
func (m *machine) purge(t *rapid.T) {
	purged, err := outbox.PurgeKeys(context.Background(), m.pool)
	if err != nil {
		t.Fatal(err)
	}
	before := len(m.keys)
	maps.DeleteFunc(m.keys, func(_ scope, e *entry) bool { return e.free() })
	if want := before - len(m.keys); int(purged) != want {
		t.Fatalf("%d keys were purged, want %d", purged, want)
	}
}

// sqlRows counts rows; an email without its content or job counts for nothing.
const sqlRows = `
SELECT (SELECT count(*) FROM outbox.emails),
    (SELECT count(*) FROM outbox.emails e JOIN outbox.email_contents c ON c.email_id = e.id AND c.org_id = e.org_id),
    (SELECT count(*) FROM outbox.emails e JOIN outbox.river_job j ON j.args = jsonb_build_object('email_id', e.id)),
    (SELECT count(*) FROM outbox.river_job),
    (SELECT count(*) FROM outbox.idempotency_keys),
    (SELECT count(*) FROM outbox.idempotency_keys k, unnest(k.email_ids) id JOIN outbox.emails e USING (id)
        WHERE e.org_id = k.org_id)`

// check holds after every step: each email has one content and one job, each
// key its emails, and nothing else is there.
func (m *machine) check(t *rapid.T) {
	keyed := 0
	for _, e := range m.keys {
		keyed += len(e.receipt.IDs)
	}
	want := [6]int{m.emails, m.emails, m.emails, m.emails, len(m.keys), keyed}
	var got [6]int
	row := m.pool.QueryRow(context.Background(), sqlRows)
	if err := row.Scan(&got[0], &got[1], &got[2], &got[3], &got[4], &got[5]); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("emails, with content, with job, jobs, keys, emails of keys = %v, want %v", got, want)
	}
}
