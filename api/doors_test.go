package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

// The three doors are POST /emails, Client.EnqueueTx and the SQL function
// outbox.enqueue_email. What is submitted through one of them is what it would
// be through another.

// submitted is the answer at a door.
type submitted struct {
	id       uuid.UUID
	replayed bool
	refusal  refusal
	words    string // of the refusal
}

// refusal is an error, the same at every door.
type refusal struct {
	Name   string              `json:"name"`
	Errors []outbox.FieldError `json:"errors"`
}

// doors are the ways into one org.
type doors struct {
	*service
	org    uuid.UUID
	client *outbox.Client
}

func newDoors(t *testing.T, org api.Org) *doors { return newSealedDoors(t, org, nil) }

// newSealedDoors seal content, but for that of SQL, which has no key.
func newSealedDoors(t *testing.T, org api.Org, keys *outbox.KeyRing) *doors {
	t.Helper()
	d := &doors{service: newSealedService(t, org, api.Key{}, keys)}
	if err := d.pool.QueryRow(context.Background(), "SELECT id FROM outbox.orgs").Scan(&d.org); err != nil {
		t.Fatal(err)
	}
	var err error
	if d.client, err = outbox.NewClient(nil, outbox.Config{PublicURL: publicURL, Keys: keys}); err != nil {
		t.Fatal(err)
	}
	return d
}

// door submits a body of POST /emails; an empty key is none.
type door func(body, key string) (submitted, error)

func (d *doors) all() map[string]door {
	return map[string]door{"HTTP": d.http, "Go": d.golang, "SQL": d.sql}
}

func (d *doors) http(body, key string) (submitted, error) {
	a := d.do("POST", "/emails", body, "Idempotency-Key", key)
	var got struct {
		ID      uuid.UUID `json:"id"`
		Message string    `json:"message"`
		refusal
	}
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		return submitted{}, fmt.Errorf("%w in %s", err, a.body)
	}
	return submitted{got.ID, a.header.Get("Idempotent-Replayed") == "true", got.refusal, got.Message}, nil
}

func (d *doors) golang(body, key string) (got submitted, err error) {
	m, err := api.DecodeEmail([]byte(body))
	if err != nil {
		return got, err
	}
	err = pgx.BeginFunc(context.Background(), d.pool, func(tx pgx.Tx) error {
		receipt, err := d.client.EnqueueTx(context.Background(), tx, outbox.Submission{
			Org: d.org, IdempotencyKey: key, Messages: []outbox.Message{m},
		})
		if err == nil {
			got.id, got.replayed = receipt.IDs[0], receipt.Replayed
			return nil
		}
		answer := api.ErrorOf(err)
		got.refusal = refusal{answer.Name, answer.Errors}
		return nil // a refusal is an answer
	})
	return got, err
}

func (d *doors) sql(body, key string) (submitted, error) {
	var keyOrNull *string
	if key != "" {
		keyOrNull = &key
	}
	return d.call(d.org, body, keyOrNull)
}

// call is the SQL door with every argument. What the transaction did not write
// itself is a replay.
func (d *doors) call(org uuid.UUID, body string, key *string) (got submitted, err error) {
	ctx := context.Background()
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		const call = "SELECT outbox.enqueue_email(org => $1, message => $2::text::jsonb, idempotency_key => $3)"
		if err := tx.QueryRow(ctx, call, org, body, key).Scan(&got.id); err != nil {
			return err
		}
		const replayed = "SELECT xmin IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid FROM outbox.emails WHERE id = $1"
		return tx.QueryRow(ctx, replayed, got.id).Scan(&got.replayed)
	})
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !strings.HasPrefix(pgErr.Code, "OB") {
		return got, err
	}
	if err := json.Unmarshal([]byte(pgErr.Detail), &got.refusal); err != nil {
		return got, err
	}
	var named bool
	if got.words, named = strings.CutPrefix(pgErr.Message, got.refusal.Name+": "); !named || pgErr.Hint == "" {
		return got, fmt.Errorf("no name or no hint: %w", pgErr)
	}
	return got, nil
}

// sqlEverything is all that one submission stored. What must differ, or may, is
// left out; what must hold between the columns is kept.
const sqlEverything = `
SELECT replace(jsonb_build_object(
    'email', to_jsonb(e) - 'created_at',
    'created_at is the time in the id',
        extract(epoch FROM e.created_at) * 1000 = ('x' || substr(replace(e.id::text, '-', ''), 1, 12))::bit(48)::bigint,
    'UUIDv7', substr(e.id::text, 15, 1) = '7' AND substr(e.id::text, 20, 1) IN ('8', '9', 'a', 'b'),
    'content', to_jsonb(c),
    'terms', (SELECT jsonb_agg(t.term ORDER BY t.term) FROM outbox.email_terms t WHERE t.email_id = e.id),
    'attachments', (SELECT jsonb_agg(to_jsonb(a) ORDER BY position) FROM outbox.attachments a WHERE a.email_id = e.id),
    'key', to_jsonb(k) - '{key,submission_id,created_at,expires_at}'::text[],
    'key kept for', k.expires_at - k.created_at,
    'submission is UUIDv7', substr(k.submission_id::text, 15, 1) = '7' AND k.submission_id <> e.id,
    'key created with it', k.created_at BETWEEN e.created_at - interval '1 minute' AND e.created_at + interval '1 minute',
    'job', to_jsonb(j) - '{id,created_at,scheduled_at,priority}'::text[],
    'job goes by the priority, or beyond the share', j.priority IN (e.priority, 4),
    'job created with it', j.created_at BETWEEN e.created_at - interval '1 minute' AND e.created_at + interval '1 minute',
    'job due', CASE WHEN e.scheduled_at IS NULL THEN to_jsonb(j.scheduled_at = j.created_at) ELSE to_jsonb(j.scheduled_at) END
)::text, e.id::text, 'ID')
FROM outbox.emails e
LEFT JOIN outbox.email_contents c ON c.email_id = e.id
LEFT JOIN outbox.idempotency_keys k ON k.org_id = e.org_id AND k.endpoint = 'POST /emails' AND k.key = $2
LEFT JOIN outbox.river_job j ON j.args = jsonb_build_object('email_id', e.id)
WHERE e.id = $1`

func (d *doors) everything(id uuid.UUID, key string) (stored map[string]any, err error) {
	var text string
	if err := d.pool.QueryRow(context.Background(), sqlEverything, id, key).Scan(&text); err != nil {
		return nil, err
	}
	return stored, json.Unmarshal([]byte(text), &stored)
}

// Every field of every row is the same through the three doors, whatever the
// spelling. OUTBOXD_TEST_DOORS says how many messages are tried.
func TestThreeDoorsStoreTheSame(t *testing.T) {
	t.Parallel()
	d := newDoors(t, api.Org{})
	messages := 300
	if text := os.Getenv("OUTBOXD_TEST_DOORS"); text != "" {
		var err error
		if messages, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	const checks = 100 // rapid's default
	number := 0
	rapid.Check(t, func(t *rapid.T) {
		for range max(1, messages/checks) {
			number++
			d.compare(t, anyWireMessage(t), number)
		}
	})
	// rapid stops early, and is content, when the time of the tests runs out.
	if os.Getenv("OUTBOXD_TEST_DOORS") != "" && number < messages {
		t.Errorf("only %d of %d messages were tried: give the test more time, with -timeout", number, messages)
	}
}

func (d *doors) compare(t *rapid.T, m outbox.Message, number int) {
	keyed := rapid.Bool().Draw(t, "keyed")
	var first map[string]any
	for _, name := range []string{"HTTP", "Go", "SQL"} {
		key := ""
		if keyed {
			key = fmt.Sprint(name, number)
		}
		body := spell(t, m)
		got, err := d.all()[name](body, key)
		if err != nil || got.id == uuid.Nil || got.replayed {
			t.Fatalf("%s: %+v, error %v; want a new email of %s", name, got, err, body)
		}
		stored, err := d.everything(got.id, key)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = stored
			for condition, holds := range stored {
				if holds == false {
					t.Fatalf("%s: not so: %s", name, condition)
				}
			}
		}
		if diff := cmp.Diff(first, stored); diff != "" {
			t.Fatalf("rows (-HTTP +%s) of %s:\n%s", name, body, diff)
		}
	}
}

// anyWireMessage is anyMessage with addresses and options in more variety.
func anyWireMessage(t *rapid.T) outbox.Message {
	m := anyMessage(t)
	odd := rapid.SampledFrom([]string{
		"UPPER@EXAMPLE.COM", " <a@example.org> ", "\u00a0b@localhost\u3000", `"quoted@local"@example.com`, "=?utf-8?q?J=C3=BCrgen?= <j@example.com>",
		"a@example.com.", "Name with > <c@example.com>", "Müller, Jürgen <Juergen@Example.com>", "o'brien+x@sub.example.co.uk", "d@xn--mller-kva.example",
	})
	for _, list := range []*[]string{&m.To, &m.Cc, &m.Bcc, &m.ReplyTo} {
		*list = append(*list, rapid.SliceOfN(odd, 0, 3).Draw(t, "odd addresses")...)
	}
	m.OnUnknown = rapid.SampledFrom([]outbox.Policy{"", outbox.PolicyRetry, outbox.PolicyHold, outbox.PolicyDrop}).Draw(t, "on_unknown")
	m.Priority = rapid.SampledFrom([]outbox.Priority{"", outbox.PriorityHigh, outbox.PriorityNormal, outbox.PriorityLow}).Draw(t, "priority")
	if len(m.Attachments) > 0 {
		m.Attachments[0].ContentID = rapid.SampledFrom([]string{"", "logo"}).Draw(t, "content_id")
	}
	return forOne(m)
}

// One key space: what one door stored under a key, the others replay, and
// refuse for another request.
func TestKeysAreSharedByTheDoors(t *testing.T) {
	t.Parallel()
	d := newDoors(t, api.Org{})
	other := strings.Replace(simple, "Hello", "Another", 1)
	scheduled := added("scheduled_at", `"2000-01-01T00:00:00Z"`)
	for firstName, first := range d.all() {
		for secondName, second := range d.all() {
			key := firstName + secondName
			one, err := first(simple, key)
			if err != nil || one.id == uuid.Nil || one.replayed {
				t.Fatalf("%s: %+v, error %v", key, one, err)
			}
			if again, err := second(simple, key); err != nil || again.id != one.id || !again.replayed {
				t.Errorf("%s, then %s: %+v, error %v; want a replay of %s", firstName, secondName, again, err, one.id)
			}
			for _, body := range []string{other, scheduled} {
				if got, err := second(body, key); err != nil || got.refusal.Name != "invalid_idempotent_request" {
					t.Errorf("%s, then %s with another request: %+v, error %v", firstName, secondName, got, err)
				}
			}
		}
	}
	if n := d.emails(); n != 3*9 {
		t.Errorf("%d rows, want an email, a job and a key for each of 9 pairs", n)
	}
	a := d.do("POST", "/emails", simple, "Idempotency-Key", "SQLHTTP")
	id := strings.TrimPrefix(a.header.Get("Location"), "/emails/")
	if want := fmt.Sprintf(`{"id":%q,"object":"email","status":"queued"}`, id); a.body != want || a.status != http.StatusAccepted {
		t.Errorf("answer %d %s to a replay of what SQL stored, want %s", a.status, a.body, want)
	}
}
