package outbox_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// useKeys gives a new client and a new deliverer a ring of those keys; none: no ring.
func (d *delivering) useKeys(ids ...string) {
	d.t.Helper()
	d.kill()
	d.deliverer, d.client = d.withKeys(ids...)
}

func (d *delivering) withKeys(ids ...string) (*outbox.Deliverer, *outbox.Client) {
	d.t.Helper()
	var keys *outbox.KeyRing
	if len(ids) > 0 {
		keys = ring(d.t, ids...)
	}
	client, err := outbox.NewClient(d.pool, outbox.Config{Keys: keys})
	must(d.t, err)
	return d.newDelivererWith(outbox.WorkerConfig{
		Providers: []providers.Provider{newSendGrid(d.t, d.provider.URL())}, Keys: keys,
	}), client
}

// canaries is a message whose every field that is sealed holds the word.
func canaries() outbox.Message {
	return outbox.Message{
		From: "Canary-From <canary-from@example.com>", To: []string{"Canary-To <canary-to@example.org>", "Canary-Two@Example.org"},
		Cc: []string{"canary-cc@example.org"}, Bcc: []string{"canary-bcc@example.org"}, ReplyTo: []string{"canary-reply@example.com"},
		Subject: "canary-subject <&> ☃", HTML: "<p>canary-html\r\n &amp; \u2028</p>", Text: "canary-text \"quoted\"\n",
		Headers:  map[string]string{"X-Canary": "canary-header"},
		Metadata: map[string]string{"canary": "canary-value"},
		Tags:     []outbox.Tag{{Name: "kind", Value: "receipt"}},
		Attachments: []outbox.Attachment{
			{Filename: "canary-file.txt", ContentType: "text/plain", ContentID: "canary-id", Content: []byte("canary-content\x00\xff")},
			{Filename: "canary-two.txt", Content: []byte("2")},
		},
	}
}

// findings are the places in all tables where the word can be read, in clear or in
// an encoding.
func findings(t *testing.T, pool *pgxpool.Pool, word string) (found []string) {
	t.Helper()
	ctx := context.Background()
	rows, err := pool.Query(ctx, "SELECT tablename FROM pg_tables WHERE schemaname = 'outbox'")
	must(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	forms := []string{word, hex.EncodeToString([]byte(word))}
	for shift := range 3 { // base64 depends on what is before
		whole := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + word))
		forms = append(forms, strings.ToLower(whole[4*((shift+2)/3):len(whole)-4]))
	}
	for _, table := range tables {
		rows, err := pool.Query(ctx, "SELECT lower(t::text) FROM "+pgx.Identifier{"outbox", table}.Sanitize()+" t")
		must(t, err)
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		for _, text := range texts {
			for _, form := range forms {
				if strings.Contains(text, form) {
					found = append(found, table+": "+form)
				}
			}
		}
	}
	return found
}

var anyID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// With a ring, the provider gets the same, readers get the same, and the database
// holds nothing that can be read.
func TestSealedEmailIsTheSame(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	get := func(id uuid.UUID) outbox.Message { return d.get(id).Message }
	write := func(m *outbox.Message) { *m = canaries() }
	plain := d.enqueue(write)
	if len(findings(t, d.pool, "canary")) == 0 {
		t.Fatal("the search finds nothing where everything is in clear")
	}
	d.deliver(plain)
	want := get(plain)
	d.exec("DELETE FROM outbox.emails")
	d.exec("DELETE FROM outbox.email_terms")

	d.useKeys("k1")
	id := d.enqueue(write)
	s := submission(d.org, "batch")
	s.Batch, s.Messages = true, []outbox.Message{canaries(), canaries()}
	receipt, err := d.client.Enqueue(context.Background(), s)
	must(t, err)
	ids := append([]uuid.UUID{id}, receipt.IDs...)
	for _, id := range ids {
		d.deliver(id)
		if email := d.get(id); email.Status != outbox.StatusSent {
			t.Fatalf("status %s (%s: %s)", email.Status, email.Reason, email.ReasonDetail)
		}
		if diff := cmp.Diff(want, get(id)); diff != "" {
			t.Errorf("it reads differently:\n%s", diff)
		}
	}
	seen := d.provider.Seen()
	if len(seen) != 4 {
		t.Fatalf("%d requests, want 4", len(seen))
	}
	for _, r := range seen[1:] {
		if a, b := anyID.ReplaceAll(seen[0].Body, nil), anyID.ReplaceAll(r.Body, nil); !bytes.Equal(a, b) {
			t.Errorf("the provider got\n%s\nwant\n%s", b, a)
		}
	}
	if found := findings(t, d.pool, "canary"); found != nil {
		t.Errorf("it can be read: %v", found)
	}
	for _, q := range []outbox.Query{{To: "canary-bcc@example.org"}, {To: "CANARY-TWO@example.org"}, {Tag: "kind"}, {Tag: "kind:receipt"}} {
		q.Org, q.Limit = d.org, 10
		emails, _, err := d.client.List(context.Background(), q)
		if err != nil || len(emails) != 3 || emails[0].Message.Subject != want.Subject {
			t.Errorf("%+v: %d emails, error %v; want all 3", q, len(emails), err)
		}
	}
	if count(t, d.pool, "SELECT count(*) FROM outbox.email_terms WHERE term IN (SELECT outbox.enqueue_term($1, 'to', 'canary-bcc@example.org'))", d.org) != 0 {
		t.Error("an address can be tried out without a key")
	}
}

// A sealed row that stands in for another does not open, and a changed one does not
// either. The reader is told that it cannot be had now, and delivery waits.
func TestSealedRowsCannotBeExchanged(t *testing.T) {
	t.Parallel()
	for name, exchange := range map[string]string{
		"envelope": "UPDATE outbox.email_contents c SET sealed = o.sealed FROM outbox.email_contents o WHERE o.email_id <> c.email_id",
		"body":     "UPDATE outbox.email_contents c SET sealed_body = o.sealed_body FROM outbox.email_contents o WHERE o.email_id <> c.email_id",
		"bit":      "UPDATE outbox.email_contents SET sealed = set_bit(sealed, 200, 1 - get_bit(sealed, 200))",
		"attachment": `UPDATE outbox.attachments a SET sealed = o.sealed FROM outbox.attachments o
			WHERE o.email_id = a.email_id AND o.position <> a.position`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			d.useKeys("k1")
			id := d.enqueue(func(m *outbox.Message) { *m = canaries() })
			d.enqueue()
			d.exec(exchange)
			_, err := d.client.Get(context.Background(), d.org, id)
			if sealErr, ok := errors.AsType[*outbox.SealError](err); name != "attachment" && (!ok || sealErr.Missing || sealErr.KeyID != "k1") {
				t.Errorf("get: error %v", err)
			}
			if wait := d.deliver(id); wait < time.Second || d.provider.Requests() != 0 {
				t.Errorf("wait %v, %d requests", wait, d.provider.Requests())
			}
			if count(t, d.pool, "SELECT count(*) FROM outbox.emails WHERE id = $1 AND status = 'queued' AND reason = 'content_unreadable'", id) != 1 {
				t.Error("it does not wait")
			}
		})
	}
}

// I1: without the key nothing is lost. The email waits and says why, a doubt is not
// decided, an event is not swallowed; with the key all goes on.
func TestMissingKey(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	with, client := d.withKeys("k1")
	d.client = client
	id := d.enqueue()
	for _, ids := range [][]string{nil, {"k2"}} {
		var log bytes.Buffer
		cfg := outbox.WorkerConfig{
			Providers: []providers.Provider{newSendGrid(t, d.provider.URL())}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			GiveUpAfter: time.Nanosecond,
		}
		if ids != nil {
			cfg.Keys = ring(t, ids...)
		}
		d.deliverer = d.newDelivererWith(cfg)
		d.waits(id, time.Second, "key_missing")
		d.due()
		if !strings.Contains(log.String(), "key=k1") {
			t.Errorf("the log does not name the key: %s", &log)
		}
		_, without := d.withKeys(ids...)
		for what, read := range map[string]func() error{
			"get": func() error { _, err := without.Get(context.Background(), d.org, id); return err },
			"list": func() error {
				_, _, err := without.List(context.Background(), outbox.Query{Org: d.org, Limit: 10})
				return err
			},
		} {
			if err := read(); !outbox.IsUnavailable(err) || !strings.Contains(err.Error(), `"k1"`) {
				t.Errorf("%s: error %v", what, err)
			}
		}
	}
	d.deliverer = with
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusSent || len(email.Attempts) != 1 {
		t.Errorf("with the key: status %s (%s), %d attempts", email.Status, email.Reason, len(email.Attempts))
	}
	bounce := d.about(id, 1, providers.EventBounced)
	bounce.Permanent = true
	_, without := d.withKeys()
	if _, err := without.RecordEvents(context.Background(), "sendgrid", []providers.Event{bounce}); !outbox.IsUnavailable(err) {
		t.Errorf("an event without the key: error %v", err)
	}
	d.report(bounce)
	if d.suppressed("jane@example.org") == "" {
		t.Error("the bounce suppresses nobody")
	}
}

// A doubt that a replay may settle waits for the key, and the policy with it.
func TestMissingKeyInDoubt(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.useKeys("k1")
	id := d.enqueue(func(m *outbox.Message) { m.OnUnknown, m.ExpiresAt = outbox.PolicyDrop, time.Now().Add(time.Hour) })
	d.crashed(id, true)
	d.exec("UPDATE outbox.emails SET expires_at = now() - interval '1 minute'")
	d.waited()
	reader := d.client
	d.useKeys("k2")
	d.client = reader
	if wait := d.deliver(id); wait < time.Second {
		t.Errorf("wait %v", wait)
	}
	if email := d.get(id); email.Status.Ended() || email.Attempts[0].Stage != outbox.StageSending {
		t.Errorf("status %s, stage %s", email.Status, email.Attempts[0].Stage)
	}
}

// What the provider got before a crash is rendered again to the same bytes, although
// the email was sealed anew and somebody suppressed in between.
func TestSealedReplay(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.useKeys("k1")
	d.suppress(outbox.SuppressionManual, "canary-cc@example.org")
	id := d.enqueue(func(m *outbox.Message) { *m = canaries() })
	d.kill()
	keyedWith := func(ids ...string) *outbox.Deliverer {
		return d.newDelivererWith(outbox.WorkerConfig{
			Providers: []providers.Provider{keyed{newSendGrid(t, d.provider.URL())}}, Keys: ring(t, ids...),
		})
	}
	d.deliverer = keyedWith("k1")
	d.crashed(id, true)
	_, err := outbox.Rekey(context.Background(), d.pool, ring(t, "k2", "k1"), nil)
	must(t, err)
	d.client, err = outbox.NewClient(d.pool, outbox.Config{Keys: ring(t, "k2")})
	must(t, err)
	d.suppress(outbox.SuppressionManual, "canary-bcc@example.org")
	d.deliverer = keyedWith("k2")
	d.deliver(id)
	email, seen := d.get(id), d.provider.Seen()
	if email.Status != outbox.StatusSent || len(email.Attempts) != 1 || len(seen) != 2 || !bytes.Equal(seen[0].Body, seen[1].Body) {
		t.Errorf("status %s, %d attempts, %d requests", email.Status, len(email.Attempts), len(seen))
	}
	if bytes.Contains(seen[0].Body, []byte("canary-cc")) || !bytes.Contains(seen[0].Body, []byte("canary-bcc")) {
		t.Error("the wrong recipients")
	}
	if diff := cmp.Diff([]string{"canary-cc@example.org"}, email.SuppressedRecipients); diff != "" {
		t.Error(diff)
	}
	if found := findings(t, d.pool, "canary-bcc"); len(found) != 1 || !strings.HasPrefix(found[0], "suppressions") {
		t.Errorf("found %v, want the suppression alone", found)
	}
}

// Suppression works on what Postgres cannot read: some left out, then nobody left.
func TestSealedSuppression(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.useKeys("k1")
	d.suppress(outbox.SuppressionManual, "jane@example.org")
	all := d.enqueue()
	some := d.enqueue(func(m *outbox.Message) { m.To = append(m.To, "joe@example.org") })
	d.deliver(all)
	d.deliver(some)
	if email := d.get(all); email.Status != outbox.StatusSuppressed || !cmp.Equal(email.SuppressedRecipients, []string{"jane@example.org"}) {
		t.Errorf("status %s, suppressed %v", email.Status, email.SuppressedRecipients)
	}
	if email := d.get(some); email.Status != outbox.StatusSent || !cmp.Equal(email.SuppressedRecipients, []string{"jane@example.org"}) {
		t.Errorf("status %s, suppressed %v", email.Status, email.SuppressedRecipients)
	}
	if to := d.provider.Seen()[0].To; !cmp.Equal(to, []string{"joe@example.org"}) {
		t.Errorf("sent to %v", to)
	}
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.email_contents WHERE suppressed_key_id = 'k1' AND suppressed_recipients IS NULL"); n != 2 {
		t.Errorf("%d sealed, want 2", n)
	}
}

// What came through SQL is in clear until a worker takes it or looks for it. Then its
// recipients are also completed, as only Go can.
func TestSQLEmailIsSealed(t *testing.T) {
	t.Parallel()
	for name, seal := range map[string]func(d *delivering, id uuid.UUID){
		"before Begin": func(d *delivering, id uuid.UUID) { d.deliver(id) },
		"by the job": func(d *delivering, _ uuid.UUID) {
			n, err := outbox.SealStored(context.Background(), d.pool, ring(d.t, "k1"))
			if must(d.t, err); n != 1 {
				d.t.Errorf("sealed %d, want 1", n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			d.useKeys("k1")
			s := submission(newOrg(t, d.pool), "")
			s.Messages[0] = canaries()
			s.Messages[0].To = []string{"Canary@MÜLLER.example"}
			d.org = s.Org
			id, err := enqueueSQL(t, d.pool, s)
			must(t, err)
			if len(findings(t, d.pool, "canary")) == 0 {
				t.Fatal("it is not in clear")
			}
			seal(d, id)
			if found := findings(t, d.pool, "canary"); found != nil {
				t.Errorf("it can be read: %v", found)
			}
			if !d.foundBy("canary@xn--mller-kva.example") || d.foundBy("nobody@example.org") {
				t.Error("it is not found by its recipient")
			}
			d.deliver(id)
			if email := d.get(id); email.Status != outbox.StatusSent || len(d.provider.Seen()) != 1 {
				t.Errorf("status %s (%s), %d requests", email.Status, email.Reason, len(d.provider.Seen()))
			}
		})
	}
}

// The sender shown to who unsubscribes, and what webhooks are told, come from sealed
// content too.
func TestSealedContentInWebhooksAndLinks(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	r := newReceiver(t, status(204))
	w, want := d.webhook(r.server.URL, outbox.WebhookSent), ""
	for i, ids := range [][]string{nil, {"k1"}} {
		var keys *outbox.KeyRing
		if ids != nil {
			keys = ring(t, ids...)
		}
		var err error
		d.client, err = outbox.NewClient(d.pool, outbox.Config{AllowPrivateWebhooks: true, Keys: keys, PublicURL: publicURL})
		must(t, err)
		d.deliverer = d.newDelivererWith(outbox.WorkerConfig{
			Providers: []providers.Provider{newSendGrid(t, d.provider.URL())}, AllowPrivateWebhooks: true, Keys: keys, PublicURL: publicURL,
		})
		d.sent(func(m *outbox.Message) {
			*m = canaries()
			m.To, m.Cc, m.Bcc, m.ListUnsubscribe = m.To[:1], nil, nil, true
		})
		link := regexp.MustCompile(`/unsubscribe/([A-Za-z0-9_-]+)`).FindSubmatch(d.provider.Seen()[i].Body)
		if link == nil {
			t.Fatal("no link")
		}
		token := string(link[1])
		if from, err := d.client.UnsubscribeSender(context.Background(), token); err != nil || from != canaries().From {
			t.Errorf("sender %q, error %v", from, err)
		}
		m := d.messages(w)[i]
		d.tell(m.ID)
		data := r.got()[i].json(t)["data"].(map[string]any)
		got := fmt.Sprint(data["from"], data["to"], data["subject"], data["tags"], data["metadata"])
		if want == "" {
			want = got
		}
		if got != want || !strings.Contains(got, "canary-value") {
			t.Errorf("told %s, want %s", got, want)
		}
	}
}

// The table refuses what is neither in clear nor sealed, or both.
func TestContentHasOneForm(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	for _, change := range []string{
		"SET subject = NULL", "SET recipients = NULL", "SET sealed = 'x'", "SET key_id = 'k'",
		"SET suppressed_key_id = 'k', sealed_suppressed = 'x'",
	} {
		id := uuid.Must(uuid.NewV7())
		savepoint, err := tx.Begin(context.Background())
		must(t, err)
		_, err = savepoint.Exec(context.Background(), `INSERT INTO outbox.emails (id, org_id, status, created_at) VALUES ($1, $1, 'queued', now())`, id)
		must(t, err)
		_, err = savepoint.Exec(context.Background(), `INSERT INTO outbox.email_contents (email_id, org_id, from_address, to_addresses, subject, recipients)
			VALUES ($1, $1, 'a', '["b"]', 's', '{b}')`, id)
		must(t, err)
		if _, err := savepoint.Exec(context.Background(), "UPDATE outbox.email_contents "+change); !isPgError(err, "23514") {
			t.Errorf("%s: error %v, want a violation of the check", change, err)
		}
		must(t, savepoint.Rollback(context.Background()))
	}
}
