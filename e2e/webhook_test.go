package e2e_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outboxd/outboxd/providers/providertest"
)

// endpoint is an application's own. It holds the first request of each message
// for ever, as one whose sender is about to die, and takes the others.
type endpoint struct {
	t       *testing.T
	webhook *standardwebhooks.Webhook

	mu          sync.Mutex
	held, taken []string // ids
}

// ServeHTTP keeps the id of what is verified.
func (e *endpoint) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender died in it
	}
	if err := e.webhook.Verify(body, r.Header); err != nil {
		e.t.Error(err)
	}
	e.mu.Lock()
	id := r.Header.Get("webhook-id")
	hold := !slices.Contains(e.held, id)
	if hold {
		e.held = append(e.held, id)
	} else {
		e.taken = append(e.taken, id)
	}
	e.mu.Unlock()
	if hold {
		<-r.Context().Done()
	}
}

func (e *endpoint) counts() (held, taken int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.held), len(e.taken)
}

// A worker is killed while it tells an endpoint; another tells it the same, with
// the same ids (I10).
func TestKilledWorkersWebhooks(t *testing.T) {
	t.Parallel()
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.Resend)
	env := append(resendEnv(provider), "OUTBOXD_WEBHOOK_ALLOW_PRIVATE=true")
	base := in.start("api", env...).url("api")
	worker := in.start("worker", env...).ready()

	application := &endpoint{t: t}
	server := httptest.NewServer(application)
	t.Cleanup(server.Close)
	var created struct {
		ID            string `json:"id"`
		SigningSecret string `json:"signing_secret"`
	}
	mustCall(t, http.MethodPost, base+"/webhooks", in.token, "", map[string]any{
		"endpoint": server.URL, "events": []string{"email.sent"},
	}).decode(t, &created)
	var err error
	if application.webhook, err = standardwebhooks.NewWebhook(created.SigningSecret); err != nil {
		t.Fatal(err)
	}
	const emails = 4 // as many as one endpoint is told at a time
	in.submit(base, 0, emails)
	eventually(t, "the endpoint is being told", func() bool {
		held, _ := application.counts()
		return held == emails
	})
	in.start("worker", env...).ready()
	worker.kill()
	eventually(t, "the endpoint has been told", func() bool {
		return in.count("SELECT count(*) FROM outbox.webhook_messages WHERE delivered_at IS NOT NULL AND attempts = 1") == emails
	})
	if held, taken := application.counts(); held != emails || taken != emails {
		t.Errorf("%d messages were told, %d twice; want %d", held, taken, emails)
	}
	slices.Sort(application.held)
	slices.Sort(application.taken)
	if !slices.Equal(application.held, application.taken) {
		t.Errorf("ids %v at first, %v then", application.held, application.taken)
	}
}

// Without the variable, an endpoint on this machine is refused.
func TestWebhooksAreGuarded(t *testing.T) {
	t.Parallel()
	in := install(t)
	base := in.start("api", resendEnv(providertest.NewHTTP(t, providertest.Resend))...).url("api")
	for _, endpoint := range []string{"http://example.com/", "https://127.0.0.1/"} {
		a := mustCall(t, http.MethodPost, base+"/webhooks", in.token, "", map[string]any{
			"endpoint": endpoint, "events": []string{"email.sent"},
		})
		if a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: answer %d %s", endpoint, a.status, a.body)
		}
	}
}
