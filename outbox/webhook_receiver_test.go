package outbox_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// told is a request that an endpoint got.
type told struct {
	id     string
	header http.Header
	body   []byte
}

// receiver is an endpoint of an org.
type receiver struct {
	t      *testing.T
	server *httptest.Server

	mu       sync.Mutex
	answer   http.HandlerFunc // to all that follow
	requests []told
	came     chan told
}

func newReceiver(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{t: t, answer: answer, came: make(chan told, 1000)}
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

// ServeHTTP keeps the request and answers.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		r.t.Error(err)
	}
	got := told{req.Header.Get("webhook-id"), req.Header, body}
	r.mu.Lock()
	r.requests = append(r.requests, got)
	answer := r.answer
	r.mu.Unlock()
	r.came <- got
	answer(w, req)
}

func (r *receiver) answers(answer http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// got returns the requests so far.
func (r *receiver) got() []told {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// ids returns the ids that were told, without repetitions.
func (r *receiver) ids() []string {
	var ids []string
	for _, request := range r.got() {
		ids = append(ids, request.id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// verify checks a request as a receiver would, with the official library.
func (r told) verify(secret string) error {
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return err
	}
	return webhook.Verify(r.body, r.header)
}

func (r told) json(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
	return v
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// hangUp closes the connection without an answer.
func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// silent does not answer as long as the caller waits.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// telling is a deliverer whose org has webhooks on this machine.
type telling struct{ *delivering }

func newTelling(t *testing.T) telling {
	t.Helper()
	d := newDelivering(t)
	d.exec("INSERT INTO outbox.orgs (id, name) VALUES ($1, 'acme')", d.org)
	client, err := outbox.NewClient(d.pool, outbox.Config{AllowPrivateWebhooks: true})
	if err != nil {
		t.Fatal(err)
	}
	d.client = client
	d.deliverer = d.newTeller()
	return telling{d}
}

// newTeller returns a deliverer with a session of its own.
func (d *delivering) newTeller() *outbox.Deliverer {
	d.t.Helper()
	return d.newDelivererWith(outbox.WorkerConfig{
		Providers: []providers.Provider{newSendGrid(d.t, d.provider.URL())}, AllowPrivateWebhooks: true,
	})
}

func (d telling) webhook(endpoint string, events ...outbox.WebhookEvent) *outbox.Webhook {
	d.t.Helper()
	if events == nil {
		events = outbox.WebhookEvents
	}
	w, err := d.client.CreateWebhook(context.Background(), d.org, endpoint, events)
	if err != nil {
		d.t.Fatal(err)
	}
	return w
}

// sent makes an email that a provider accepted.
func (d telling) sent(change ...func(*outbox.Message)) uuid.UUID {
	d.t.Helper()
	id := d.enqueue(change...)
	d.deliver(id)
	if email := d.get(id); email.Status != outbox.StatusSent {
		d.t.Fatalf("status %s, want sent", email.Status)
	}
	return id
}

// report stores an event as a provider's.
func (d telling) report(email uuid.UUID, kind, recipient, detail string) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.events (id, email_id, type, provider, recipient, detail, occurred_at)
		VALUES ($1, $2, $3, 'sendgrid', nullif($4, ''), nullif($5, ''), now())`, uuid.Must(uuid.NewV7()), email, kind, recipient, detail)
}

// messages returns those of a webhook, the oldest first.
func (d telling) messages(w *outbox.Webhook) []outbox.WebhookMessage {
	d.t.Helper()
	list, _, err := d.client.ListWebhookMessages(context.Background(), d.org, w.ID, uuid.Nil, 1000)
	if err != nil {
		d.t.Fatal(err)
	}
	slices.Reverse(list)
	return list
}

// message returns the only one.
func (d telling) message(w *outbox.Webhook) outbox.WebhookMessage {
	d.t.Helper()
	list := d.messages(w)
	if len(list) != 1 {
		d.t.Fatalf("%d messages, want 1", len(list))
	}
	return list[0]
}

func (d telling) tell(id uuid.UUID) time.Duration {
	d.t.Helper()
	wait, err := d.deliverer.Tell(context.Background(), id)
	if err != nil {
		d.t.Fatal(err)
	}
	return wait
}

// tellAgain makes an attempt whose time has not come.
func (d telling) tellAgain(id uuid.UUID) time.Duration {
	d.t.Helper()
	d.exec("UPDATE outbox.webhook_messages SET next_attempt_at = now() WHERE id = $1", id)
	return d.tell(id)
}

// await waits until a condition holds.
func (d *delivering) await(condition string) {
	d.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for {
		var holds bool
		if err := d.pool.QueryRow(context.Background(), condition).Scan(&holds); err != nil {
			d.t.Fatal(err)
		}
		if holds {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			d.t.Fatalf("it does not come: %s", condition)
		}
	}
}

// singleConnection is the pool with one connection.
func singleConnection(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	cfg.MaxConns = 1
	single, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(single.Close)
	return single
}

func (d telling) read(w *outbox.Webhook) *outbox.Webhook {
	d.t.Helper()
	read, err := d.client.GetWebhook(context.Background(), d.org, w.ID)
	if err != nil {
		d.t.Fatal(err)
	}
	return read
}
