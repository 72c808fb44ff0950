package outbox_test

import (
	"testing"
	"time"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/mailgun"
	"github.com/outboxd/outboxd/providers/postmark"
	"github.com/outboxd/outboxd/providers/providertest"
)

// A worker dies with the reply on its way. The providers that can be asked have
// the message before their index does: until then the email stays in doubt, also
// past the deadline, and then it is sent. It is handed over once.
func TestSearchAtRealAdapters(t *testing.T) {
	t.Parallel()
	adapters := map[string]struct {
		dialect providertest.Dialect
		make    func(url string) (providers.Provider, error)
	}{
		"postmark": {providertest.Postmark, func(url string) (providers.Provider, error) {
			return postmark.New(postmark.Config{ServerToken: "secret", BaseURL: url})
		}},
		"mailgun": {providertest.Mailgun, func(url string) (providers.Provider, error) {
			return mailgun.New(mailgun.Config{APIKey: "secret", Domain: "mg.example.com", BaseURL: url})
		}},
	}
	for name, adapter := range adapters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDelivering(t)
			d.provider = providertest.NewHTTP(t, adapter.dialect)
			p, err := adapter.make(d.provider.URL())
			must(t, err)
			d.kill()
			d.deliverer = d.newDeliverer(p)
			id := d.enqueue()
			d.crashed(id, true)
			d.provider.SetSearchLag(time.Hour)
			d.deliverer = d.newDeliverer(p)
			d.exec("UPDATE outbox.attempts SET deadline = now() - interval '1 minute'")
			if wait := d.deliver(id); wait == 0 {
				t.Error("no next look while the index lags")
			}
			if email := d.get(id); email.Status != outbox.StatusUnknown {
				t.Fatalf("status %s while the index lags, want unknown", email.Status)
			}
			d.provider.SetSearchLag(0)
			d.deliver(id)
			email := d.get(id)
			a := email.Attempts[0]
			if email.Status != outbox.StatusSent || len(email.Attempts) != 1 || email.PossibleDuplicate ||
				a.Evidence != outbox.EvidenceSearch || a.ProviderMessageID != d.provider.Accepted()[0].ID {
				t.Errorf("status %s, possible duplicate %v, attempt %+v", email.Status, email.PossibleDuplicate, a)
			}
			if r, n := d.provider.Requests(), len(d.provider.Searches()); r != 1 || n != 2 {
				t.Errorf("%d hand-overs and %d searches, want 1 and 2", r, n)
			}
		})
	}
}
