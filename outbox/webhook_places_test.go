package outbox_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
)

// One endpoint takes a few places and no more, one that is slow or failing a
// single one, and the others theirs.
func TestEndpointPlaces(t *testing.T) {
	t.Parallel()
	var p outbox.EndpointPlaces
	enter := func(id uuid.UUID, failing bool) (entered int, leave func(time.Duration)) {
		for range 100 {
			left, wait := p.Enter(id, failing)
			if left != nil {
				entered, leave = entered+1, left
			} else if wait <= 0 || wait > 15*time.Minute {
				t.Errorf("wait %v", wait)
			}
		}
		return entered, leave
	}
	if n, _ := enter(uuid.New(), false); n != outbox.EndpointShare {
		t.Errorf("%d places, want %d", n, outbox.EndpointShare)
	}
	slow := uuid.New()
	n, leave := enter(slow, true)
	if n != 1 {
		t.Errorf("%d places for a failing endpoint, want 1", n)
	}
	leave(10 * time.Second)
	if n, leave = enter(slow, false); n != 1 {
		t.Errorf("%d places for a slow endpoint, want 1", n)
	}
	leave(time.Millisecond)
	if n, _ := enter(slow, false); n != outbox.EndpointShare {
		t.Errorf("%d places once it is quick again, want %d", n, outbox.EndpointShare)
	}
}

// A real worker with an endpoint of each kind: those in order get everything,
// and nothing of the others is lost.
func TestWorkerTellsEndpoints(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	const emails = 20
	ok, flaky := newReceiver(t, status(http.StatusOK)), newReceiver(t, status(http.StatusOK))
	flaky.answers(status(http.StatusInternalServerError))
	slow, elsewhere := newReceiver(t, silent), newReceiver(t, status(http.StatusOK))
	redirecting := newReceiver(t, http.RedirectHandler(elsewhere.server.URL, http.StatusFound).ServeHTTP)
	var hooks []*outbox.Webhook
	for _, endpoint := range []string{
		ok.server.URL, flaky.server.URL, slow.server.URL, redirecting.server.URL, "http://" + closedPort(t),
	} {
		hooks = append(hooks, d.webhook(endpoint, outbox.WebhookSent))
	}
	for range emails {
		d.enqueue()
	}
	ctx, stop := context.WithCancel(context.Background())
	worker, err := outbox.NewWorker(d.pool, outbox.WorkerConfig{
		Providers: []providers.Provider{newSendGrid(t, d.provider.URL())}, AllowPrivateWebhooks: true, SendTimeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	worker.SetWebhookTimeout(time.Second)
	ended := make(chan error)
	go func() { ended <- worker.Run(ctx, nil) }()
	for range emails {
		if err := (<-ok.came).verify(hooks[0].Secret); err != nil {
			t.Error(err)
		}
	}
	<-flaky.came
	<-slow.came
	<-redirecting.came
	flaky.answers(status(http.StatusOK))
	d.await("SELECT count(*) = 1 FROM outbox.river_job WHERE kind = 'keep_webhooks' AND state = 'completed'")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := len(ok.ids()); n != emails {
		t.Errorf("%d messages were told to the endpoint in order, want %d", n, emails)
	}
	for _, w := range hooks[1:] {
		for _, m := range d.messages(w) {
			if m.DeliveredAt.IsZero() && !m.FailedAt.IsZero() {
				t.Errorf("lost: %+v", m)
			}
		}
	}
	if n := count(t, d.pool, `SELECT count(*) FROM outbox.webhook_messages m WHERE m.delivered_at IS NULL AND EXISTS (
		SELECT FROM outbox.river_job j WHERE j.args ->> 'message_id' = m.id::text AND j.state IN ('available', 'retryable', 'scheduled'))`); n <
		3*emails {
		t.Errorf("%d messages wait with a job, want those of three endpoints at least", n)
	}
	if n := len(elsewhere.got()); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
	for _, m := range d.messages(hooks[1]) {
		d.tellAgain(m.ID)
	}
	if n := len(flaky.ids()); n != emails {
		t.Errorf("%d messages were told to the endpoint that recovered, want %d", n, emails)
	}
}
