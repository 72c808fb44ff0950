package outbox_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// Whatever an endpoint does, the message waits for its next attempt, and is
// delivered under the same id once the endpoint takes it.
func TestWebhookFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	elsewhere := newReceiver(t, status(http.StatusOK))
	for name, test := range map[string]struct {
		answer     http.HandlerFunc // nil: nobody listens
		status     int
		word       string
		atLeast    time.Duration
		noRequests bool
	}{
		"500":      {status(http.StatusInternalServerError), 500, "status", 4 * time.Second, false},
		"404":      {status(http.StatusNotFound), 404, "status", 4 * time.Second, false},
		"redirect": {http.RedirectHandler(elsewhere.server.URL, http.StatusTemporaryRedirect).ServeHTTP, 307, "redirect", 4 * time.Second, false},
		"429 with Retry-After": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		}, 429, "status", time.Hour, false},
		"closing":     {hangUp, 0, "no_answer", 4 * time.Second, false},
		"slow":        {silent, 0, "timeout", 4 * time.Second, false},
		"unreachable": {nil, 0, "not_connected", 4 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newTelling(t)
			d.deliverer.SetWebhookTimeout(300 * time.Millisecond)
			r := newReceiver(t, status(http.StatusOK))
			endpoint := r.server.URL
			if test.noRequests {
				endpoint = "http://" + closedPort(t)
			} else {
				r.answers(test.answer)
			}
			w := d.webhook(endpoint)
			d.sent()
			wait := d.tell(d.message(w).ID)
			m := d.message(w)
			if m.LastStatus != test.status || m.LastError != test.word || m.Attempts != 1 || wait < test.atLeast || wait > test.atLeast+2*time.Second {
				t.Errorf("wait %v, message %+v; want status %d, %s", wait, m, test.status, test.word)
			}
			if m.NextAttemptAt.IsZero() || !m.FailedAt.IsZero() || d.read(w).FailingSince.IsZero() {
				t.Errorf("message %+v, webhook %+v; want another attempt", m, d.read(w))
			}
			if again := d.tell(m.ID); again <= 0 || again > wait {
				t.Errorf("before its time it waits %v", again)
			}
			d.deliverer.SetWebhookTimeout(time.Minute)
			r.answers(status(http.StatusOK))
			if err := d.client.UpdateWebhook(context.Background(), d.org, w.ID, outbox.WebhookChange{Endpoint: r.server.URL}); err != nil {
				t.Fatal(err)
			}
			d.tellAgain(m.ID)
			if m := d.message(w); m.DeliveredAt.IsZero() || m.LastStatus != 200 || m.LastError != "" || m.Attempts != 2 || !d.read(w).FailingSince.IsZero() {
				t.Errorf("message %+v, webhook %+v; want it delivered", m, d.read(w))
			}
			if ids := r.ids(); !slices.Equal(ids, []string{m.ID.String()}) {
				t.Errorf("ids %v, want the one of the message", ids)
			}
			if err := r.got()[len(r.got())-1].verify(w.Secret); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { // after the parallel ones
		if n := len(elsewhere.got()); n != 0 {
			t.Errorf("a redirect was followed %d times", n)
		}
	})
}

// The schedule of Standard Webhooks, with its jitter, up to a day.
func TestWebhookSchedule(t *testing.T) {
	t.Parallel()
	var total time.Duration
	attempts := 1
	for ; ; attempts++ {
		delay, again := outbox.WebhookDelay(attempts)
		if !again {
			break
		}
		total += delay
	}
	if attempts != 8 || total < 21*time.Hour || total > 27*time.Hour {
		t.Errorf("%d attempts in %v, want 8 in about a day", attempts, total)
	}
}

// failing makes the message's next attempt its last, at an endpoint that has
// been failing for so long.
func (d telling) failing(w *outbox.Webhook, since string) {
	d.t.Helper()
	d.exec("UPDATE outbox.webhook_messages SET attempts = 7")
	d.exec("UPDATE outbox.webhooks SET failing_since = now() - $2::interval WHERE id = $1", w.ID, since)
}

func TestWebhookIsDisabled(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer   http.HandlerFunc
		since    string // failing, before its last attempt; empty: it is the first attempt
		disabled outbox.DisabledReason
		failed   bool
	}{
		"410":                       {status(http.StatusGone), "", outbox.DisabledGone, true},
		"500":                       {status(http.StatusInternalServerError), "", "", false},
		"last attempt, not so long": {status(http.StatusInternalServerError), "4 days", "", true},
		"last attempt, for long":    {status(http.StatusInternalServerError), "6 days", outbox.DisabledFailing, true},
		"taken after all":           {status(http.StatusOK), "6 days", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newTelling(t)
			r := newReceiver(t, test.answer)
			w := d.webhook(r.server.URL)
			d.sent()
			if test.since != "" {
				d.failing(w, test.since)
			}
			d.tell(d.message(w).ID)
			if read := d.read(w); read.DisabledReason != test.disabled || (read.Status == outbox.WebhookDisabled) != (test.disabled != "") {
				t.Errorf("webhook %+v, want it disabled: %q", read, test.disabled)
			}
			if m := d.message(w); m.FailedAt.IsZero() == test.failed {
				t.Errorf("message %+v, want it failed: %v", m, test.failed)
			}
		})
	}
}

// A single failure after a long silence is no reason to disable an endpoint.
func TestWebhookIsNotDisabledByItsFirstFailure(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	r := newReceiver(t, status(http.StatusBadGateway))
	w := d.webhook(r.server.URL)
	d.sent()
	d.exec("UPDATE outbox.webhooks SET failing_since = now() - interval '1 year'")
	d.tell(d.message(w).ID)
	if read := d.read(w); read.Status != outbox.WebhookEnabled {
		t.Errorf("webhook %+v", read)
	}
}

// What waits for an endpoint when it is disabled is not lost: it is replayed
// once the endpoint is back.
func TestWebhookReplay(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	ctx := context.Background()
	r := newReceiver(t, status(http.StatusOK))
	w := d.webhook(r.server.URL)
	d.sent()
	delivered := d.message(w)
	d.tell(delivered.ID)
	for range 3 {
		d.sent()
	}
	old := d.messages(w)[1]
	d.exec("UPDATE outbox.webhook_messages SET created_at = now() - interval '2 hours' WHERE id = $1", old.ID)
	if err := d.client.UpdateWebhook(ctx, d.org, w.ID, outbox.WebhookChange{Status: outbox.WebhookDisabled}); err != nil {
		t.Fatal(err)
	}
	d.sent() // is told to nobody
	var failed []string
	for _, m := range d.messages(w)[1:] {
		d.tell(m.ID)
		failed = append(failed, m.ID.String())
	}
	for _, m := range d.messages(w)[1:] {
		if m.FailedAt.IsZero() || m.LastError != "webhook_disabled" || m.Attempts != 0 {
			t.Errorf("message %+v, want it failed without an attempt", m)
		}
	}
	if _, _, err := d.client.ReplayWebhook(ctx, d.org, w.ID, time.Time{}); !errors.Is(err, outbox.ErrWebhookDisabled) {
		t.Errorf("replay of a disabled webhook: %v", err)
	}
	if err := d.client.ReplayWebhookMessage(ctx, d.org, w.ID, delivered.ID); !errors.Is(err, outbox.ErrWebhookDisabled) {
		t.Errorf("replay of a disabled webhook's message: %v", err)
	}
	if err := d.client.UpdateWebhook(ctx, d.org, w.ID, outbox.WebhookChange{Status: outbox.WebhookEnabled}); err != nil {
		t.Fatal(err)
	}
	d.exec("UPDATE outbox.river_job SET state = 'completed', finalized_at = now()")
	if n, more, err := d.client.ReplayWebhook(ctx, d.org, w.ID, time.Now().Add(-time.Hour)); n != 2 || more || err != nil {
		t.Errorf("replayed %d, more %v, %v; want 2", n, more, err)
	}
	if n, _, err := d.client.ReplayWebhook(ctx, d.org, w.ID, time.Time{}); n != 1 || err != nil {
		t.Errorf("replayed %d, %v; want the one that was left", n, err)
	}
	if err := d.client.ReplayWebhookMessage(ctx, d.org, w.ID, delivered.ID); err != nil {
		t.Error(err)
	}
	if err := d.client.ReplayWebhookMessage(ctx, d.org, w.ID, uuid.New()); !errors.Is(err, outbox.ErrWebhookMessageNotFound) {
		t.Errorf("replay of what is not there: %v", err)
	}
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.river_job WHERE kind = 'deliver_webhook' AND state = 'available'"); n != 4 {
		t.Errorf("%d jobs, want 4", n)
	}
	for _, m := range d.messages(w) {
		d.tell(m.ID)
	}
	want := slices.Sorted(slices.Values(append([]string{delivered.ID.String()}, failed...)))
	if got := r.ids(); !slices.Equal(got, want) || len(r.got()) != 5 {
		t.Errorf("told %v in %d requests, want %v in 5", got, len(r.got()), want)
	}
}

// A late outcome does not undo a replay.
func TestWebhookReplayDuringAnAttempt(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	r := newReceiver(t, status(http.StatusOK))
	w := d.webhook(r.server.URL)
	d.sent()
	m := d.message(w)
	d.exec("UPDATE outbox.webhook_messages SET attempts = 3")
	r.answers(func(w http.ResponseWriter, _ *http.Request) {
		d.exec("UPDATE outbox.webhook_messages SET attempts = 0") // as a replay does
		w.WriteHeader(http.StatusGone)
	})
	d.tell(m.ID)
	if got := d.message(w); got.Attempts != 0 || !got.FailedAt.IsZero() || d.read(w).Status != outbox.WebhookEnabled {
		t.Errorf("message %+v, webhook %+v", got, d.read(w))
	}
}

// No transaction or connection is held during a request: the only connection of
// the pool is free while the endpoint thinks.
func TestWebhookHoldsNoConnection(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	r := newReceiver(t, status(http.StatusOK))
	w := d.webhook(r.server.URL)
	d.sent()
	m := d.message(w)
	single := singleConnection(t, d.pool)
	deliverer, err := outbox.NewDeliverer(single, outbox.WorkerConfig{
		Providers: []providers.Provider{newSendGrid(t, d.provider.URL())}, AllowPrivateWebhooks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.answers(func(http.ResponseWriter, *http.Request) {
		if n := single.Stat().AcquiredConns(); n != 0 {
			t.Errorf("%d connections are held", n)
		}
	})
	if _, err := deliverer.Tell(context.Background(), m.ID); err != nil || len(r.got()) != 1 {
		t.Errorf("%d requests, %v", len(r.got()), err)
	}
}

// I10: what a worker was telling when it died is told again by another, with the
// same id.
func TestWebhookOfADeadWorker(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	r := newReceiver(t, silent)
	w := d.webhook(r.server.URL)
	d.sent()
	m := d.message(w)
	d.exec(`UPDATE outbox.river_job SET state = 'running', attempt = 1, attempted_at = now(), attempted_by = ARRAY[$1]
		WHERE kind = 'deliver_webhook'`, d.worker)
	ctx, dies := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, err := d.deliverer.Tell(ctx, m.ID)
		ended <- err
	}()
	<-r.came
	d.kill()
	dies()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the dead worker says %v", err)
	}
	if got := d.message(w); got.Attempts != 0 {
		t.Errorf("message %+v, want no attempt counted", got)
	}
	r.answers(status(http.StatusOK))
	d.deliverer = d.newTeller()
	d.awaitLocks(2)
	s := d.sweeper()
	d.sweep(s)
	d.sweep(s)
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.river_job WHERE kind = 'deliver_webhook' AND state = 'available'"); n != 1 {
		t.Fatalf("%d jobs are free again, want 1", n)
	}
	d.tell(m.ID)
	if got := d.message(w); got.DeliveredAt.IsZero() || len(r.got()) != 2 || !slices.Equal(r.ids(), []string{m.ID.String()}) {
		t.Errorf("message %+v, told %v", got, r.ids())
	}
}

// A worker that is paused for good keeps its lock; the job is freed all the same.
func TestSweepFreesOverdueWebhookJobs(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	d.webhook("http://127.0.0.1:1/")
	d.sent()
	available := "SELECT count(*) FROM outbox.river_job WHERE kind = 'deliver_webhook' AND state = 'available'"
	for age, want := range map[string]int{"1 minute": 0, "2 minutes": 1} {
		d.exec(`UPDATE outbox.river_job SET state = 'running', attempt = 1, attempted_at = now() - $2::interval, attempted_by = ARRAY[$1]
			WHERE kind = 'deliver_webhook'`, d.worker, age)
		d.sweep(d.sweeper())
		if n := count(t, d.pool, available); n != want {
			t.Errorf("running for %s: %d jobs are free", age, n)
		}
	}
}

// F11, F27: whatever was clicked in River UI, a message that is due has a job.
func TestForgottenWebhookMessagesGetAJob(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	w := d.webhook("http://127.0.0.1:1/")
	for range 4 {
		d.sent()
	}
	list := d.messages(w)
	d.exec("UPDATE outbox.webhook_messages SET next_attempt_at = now() - interval '6 minutes'")
	d.exec("UPDATE outbox.webhook_messages SET next_attempt_at = now() WHERE id = $1", list[1].ID)
	d.exec("UPDATE outbox.webhook_messages SET delivered_at = now() WHERE id = $1", list[2].ID)
	d.exec("DELETE FROM outbox.river_job WHERE kind = 'deliver_webhook' AND args ->> 'message_id' <> $1", list[3].ID.String())
	for range 2 {
		if err := d.deliverer.AdoptMessages(context.Background(), d.client); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.river_job WHERE args ->> 'message_id' = $1", list[0].ID.String()); n != 1 {
		t.Errorf("%d jobs for the forgotten message", n)
	}
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.river_job WHERE kind = 'deliver_webhook'"); n != 2 {
		t.Errorf("%d jobs in all, want 2", n)
	}
}

func TestPurgeWebhookMessages(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	w := d.webhook("http://127.0.0.1:1/")
	d.sent()
	before := time.Now()
	for range 2 {
		d.sent()
	}
	d.exec(`INSERT INTO outbox.webhook_messages (id, webhook_id, org_id, type, email_id, created_at, next_attempt_at)
		VALUES ($1, $2, $3, 'email.sent', $2, now(), now() - interval '1 hour')`, uuid.Must(uuid.NewV7()), uuid.New(), d.org)
	if n, err := outbox.PurgeWebhookMessages(context.Background(), d.pool, before); n != 1 || err != nil {
		t.Errorf("purged %d, %v; want 1", n, err)
	}
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.webhook_messages"); n != 2 {
		t.Errorf("%d messages are left, want 2: the stray goes too", n)
	}
	if err := d.client.DeleteWebhook(context.Background(), d.org, w.ID); err != nil {
		t.Fatal(err)
	}
	if n := count(t, d.pool, "SELECT count(*) FROM outbox.webhook_messages"); n != 0 {
		t.Errorf("%d messages are left of a webhook that is gone", n)
	}
}

// With the guard on, nothing in our network is connected to: by address, or by a
// name that leads there.
func TestWebhookGuard(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
	connections := make(chan net.Conn, 10)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connections <- c
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	// The check of the URL left out: a name that leads here is noticed when it is
	// connected to.
	for _, host := range []string{"localhost", "127.0.0.1", "[::ffff:127.0.0.1]"} {
		if word := outbox.ConnectGuarded("https://" + host + ":" + port); word != "address_not_allowed" {
			t.Errorf("%s: %s", host, word)
		}
	}
	for host, want := range map[string]string{
		"127.0.0.1":          "endpoint_not_allowed",
		"localhost":          "endpoint_not_allowed",
		"[::ffff:127.0.0.1]": "endpoint_not_allowed",
		// Names, to everybody but the system's resolver, and to that addresses.
		"127.1":      "address_not_allowed name_not_found",
		"2130706433": "address_not_allowed name_not_found",
		"0x7f000001": "address_not_allowed name_not_found",
	} {
		w := d.webhook("https://" + host + ":" + port + "/hooks")
		d.sent()
		m := d.message(w)
		d.tell(m.ID)
		if got := d.message(w); !strings.Contains(want, got.LastError) || got.LastError == "" || got.LastStatus != 0 {
			t.Errorf("%s: %+v, want %s", host, got, want)
		}
		if err := d.client.DeleteWebhook(context.Background(), d.org, w.ID); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(connections); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}
