package outbox_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net/mail"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/mailgun"
	"github.com/outboxd/outboxd/providers/postmark"
	"github.com/outboxd/outboxd/providers/ses"
)

// publicURL is where recipients reach the API of these tests.
const publicURL = "https://mail.example.com/outbox/"

// reachable makes the installation one that recipients can reach.
func (d *delivering) reachable(list ...providers.Provider) {
	d.t.Helper()
	var err error
	d.client, err = outbox.NewClient(d.pool, outbox.Config{PublicURL: publicURL})
	must(d.t, err)
	d.deliverer = d.newDelivererWith(outbox.WorkerConfig{Providers: list, PublicURL: publicURL})
}

func unsubscribable(m *outbox.Message) { m.ListUnsubscribe = true }

// linkIn is the link in a message, and its token.
func linkIn(t *testing.T, body []byte) (link, token string) {
	t.Helper()
	message, err := mail.ReadMessage(bytes.NewReader(body))
	must(t, err)
	if got := message.Header.Get("List-Unsubscribe-Post"); got != "List-Unsubscribe=One-Click" {
		t.Errorf("List-Unsubscribe-Post: %q", got)
	}
	link = strings.TrimSuffix(strings.TrimPrefix(message.Header.Get("List-Unsubscribe"), "<"), ">")
	token, ours := strings.CutPrefix(link, publicURL+"unsubscribe/")
	if !ours {
		t.Fatalf("List-Unsubscribe: %q", message.Header.Get("List-Unsubscribe"))
	}
	return link, token
}

// Row 20, RFC 8058: both header fields, whose link suppresses the recipient, and
// the next email is not sent.
func TestListUnsubscribe(t *testing.T) {
	t.Parallel()
	d, relay := relayed(t)
	d.reachable(newSMTP(t, relay))
	id := d.enqueue(unsubscribable, func(m *outbox.Message) { m.To = []string{"Jane <Jane@MÜLLER.example>"} })
	later := d.enqueue(func(m *outbox.Message) { m.To = []string{"jane@müller.example"} })
	d.deliver(id)
	link, token := linkIn(t, relay.Accepted()[0].Body)
	if strings.Contains(link, "jane") || strings.ContainsAny(token, "/.%=+") {
		t.Errorf("link %s", link)
	}
	from, err := d.client.UnsubscribeSender(context.Background(), token)
	if err != nil || from != "Shop <shop@example.com>" {
		t.Errorf("sender %q, error %v", from, err)
	}
	for range 2 {
		must(t, d.client.Unsubscribe(context.Background(), token))
	}
	list, _, err := d.client.Suppressions(context.Background(), outbox.SuppressionQuery{Org: d.org, Limit: 10})
	if err != nil || len(list) != 1 || list[0].Address != "jane@xn--mller-kva.example" || list[0].Reason != outbox.SuppressionUnsubscribe || list[0].EmailID != id {
		t.Errorf("suppressions %+v, error %v", list, err)
	}
	if email := d.get(id); len(email.Events) != 1 || email.Events[0].Type != "unsubscribed" || email.Events[0].Recipient != "jane@xn--mller-kva.example" {
		t.Errorf("events %+v", email.Events)
	}
	d.deliver(later)
	if email := d.get(later); email.Status != outbox.StatusSuppressed || email.Reason != "unsubscribe" || len(relay.Accepted()) != 1 {
		t.Errorf("the next email: status %s (%s)", email.Status, email.Reason)
	}
}

// Every adapter carries both header fields, with the longest address too.
func TestEveryProviderCarriesTheLink(t *testing.T) {
	t.Parallel()
	d, relay := relayed(t)
	list := []providers.Provider{newSMTP(t, relay), newSendGrid(t, "http://127.0.0.1"), newResend(t, "http://127.0.0.1")}
	for _, open := range []func() (providers.Provider, error){
		func() (providers.Provider, error) { return postmark.New(postmark.Config{ServerToken: "token"}) },
		func() (providers.Provider, error) {
			return mailgun.New(mailgun.Config{APIKey: "key", Domain: "mg.example.com"})
		},
		func() (providers.Provider, error) { return ses.New(ses.Config{Region: "eu-west-1"}) },
	} {
		p, err := open()
		must(t, err)
		list = append(list, p)
	}
	for _, p := range list {
		client, err := outbox.NewClient(d.pool, outbox.Config{PublicURL: publicURL, Providers: []providers.Provider{p}})
		must(t, err)
		s := submission(d.org, "")
		s.Messages[0].ListUnsubscribe = true
		s.Messages[0].To = []string{strings.Repeat("a", 64) + "@" + strings.Repeat("b.", 90) + "example"}
		if _, err := client.Enqueue(context.Background(), s); err != nil {
			t.Errorf("%s: %v", p.Name(), err)
		}
	}
}

// I8: one email has one link, in every attempt and replay, also when the secret
// is rotated in between; and the links of before work on.
func TestLinkIsTheSameInAReplay(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.kill()
	d.reachable(keyed{newSendGrid(t, d.provider.URL())})
	id := d.enqueue(unsubscribable)
	d.crashed(id, true)
	rotate := func() {
		t.Helper()
		_, err := outbox.RotateUnsubscribeSecret(context.Background(), d.pool)
		must(t, err)
	}
	rotate()
	d.exec("UPDATE outbox.unsubscribe_secrets SET used_from = now() WHERE used_from > now()")
	d.reachable(keyed{newSendGrid(t, d.provider.URL())})
	d.deliver(id)
	email, seen := d.get(id), d.provider.Seen()
	if email.Status != outbox.StatusSent || len(seen) != 2 || !bytes.Equal(seen[0].Body, seen[1].Body) {
		t.Fatalf("status %s after %d requests, equal bodies wanted", email.Status, len(seen))
	}
}

// secretOf is the id of the secret of a token.
func secretOf(t *testing.T, token string) [2]byte {
	t.Helper()
	decoded, err := base64.RawURLEncoding.DecodeString(token)
	must(t, err)
	return [2]byte(decoded)
}

// A rotated secret is used from a minute on, and the links of the old one work.
func TestRotatedSecret(t *testing.T) {
	t.Parallel()
	d, relay := relayed(t)
	d.reachable(newSMTP(t, relay))
	send := func() (token string) {
		t.Helper()
		d.deliver(d.enqueue(unsubscribable))
		accepted := relay.Accepted()
		_, token = linkIn(t, accepted[len(accepted)-1].Body)
		return token
	}
	first := send()
	_, err := outbox.RotateUnsubscribeSecret(context.Background(), d.pool)
	must(t, err)
	soon := send()
	d.exec("UPDATE outbox.unsubscribe_secrets SET used_from = now() WHERE used_from > now()")
	last := send()
	if secretOf(t, first) != secretOf(t, soon) || secretOf(t, soon) == secretOf(t, last) {
		t.Errorf("tokens %s, %s and %s: the second secret counts from a minute on", first, soon, last)
	}
	for _, token := range []string{first, soon, last} {
		if _, err := d.client.UnsubscribeSender(context.Background(), token); err != nil {
			t.Errorf("%s: %v", token, err)
		}
	}
	d.exec("DELETE FROM outbox.unsubscribe_secrets WHERE id = (SELECT min(id) FROM outbox.unsubscribe_secrets)")
	if err := d.client.Unsubscribe(context.Background(), first); !errors.Is(err, outbox.ErrNotFound) {
		t.Errorf("error %v with a secret that is gone, want ErrNotFound", err)
	}
}

// Without the address of the installation such a message is refused at
// submission, and through SQL it fails before its first attempt and says why.
func TestListUnsubscribeNeedsAPublicURL(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.org = newOrg(t, d.pool)
	s := submission(d.org, "")
	s.Messages[0].ListUnsubscribe = true
	_, err := d.client.Enqueue(context.Background(), s)
	if invalid, ok := errors.AsType[*outbox.ValidationError](err); !ok || invalid.Fields[0].Field != "list_unsubscribe" || !strings.Contains(err.Error(), "OUTBOXD_PUBLIC_URL") {
		t.Errorf("error %v", err)
	}
	id, err := enqueueSQL(t, d.pool, s)
	must(t, err)
	d.deliver(id)
	email := d.get(id)
	if email.Status != outbox.StatusFailed || email.Reason != "validation_error" || !strings.Contains(email.ReasonDetail, "OUTBOXD_PUBLIC_URL") || len(email.Attempts) != 0 {
		t.Errorf("status %s (%s: %s), %d attempts", email.Status, email.Reason, email.ReasonDetail, len(email.Attempts))
	}
}

// The SQL door stores the field, and its email has a link that works.
func TestListUnsubscribeFromSQL(t *testing.T) {
	t.Parallel()
	d, relay := relayed(t)
	d.reachable(newSMTP(t, relay))
	d.org = newOrg(t, d.pool)
	s := submission(d.org, "")
	s.Messages[0].ListUnsubscribe = true
	id, err := enqueueSQL(t, d.pool, s)
	must(t, err)
	d.deliver(id)
	_, token := linkIn(t, relay.Accepted()[0].Body)
	must(t, d.client.Unsubscribe(context.Background(), token))
	if !d.get(id).Message.ListUnsubscribe {
		t.Error("the field is not stored")
	}
	s.Messages[0].Cc = []string{"joe@example.org"}
	if _, err := enqueueSQL(t, d.pool, s); nameOf(err) != "validation_error" {
		t.Errorf("error %v for two recipients", err)
	}
}

// An installation whose secrets were all deleted waits, and says what to do.
func TestNoSecretForLinks(t *testing.T) {
	t.Parallel()
	d, relay := relayed(t)
	d.reachable(newSMTP(t, relay))
	id := d.enqueue(unsubscribable)
	d.exec("DELETE FROM outbox.unsubscribe_secrets")
	_, err := d.deliverer.Deliver(context.Background(), id)
	if err == nil || !strings.Contains(err.Error(), "rotate-secret") || d.get(id).Status != outbox.StatusQueued {
		t.Errorf("error %v, status %s", err, d.get(id).Status)
	}
}

// What is no token of ours unsubscribes nobody.
func TestNoToken(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	for _, token := range []string{"", "x", "AAE", strings.Repeat("A", 100), strings.Repeat("A", 10_000), "ÄÖÜ", uuid.NewString()} {
		if err := d.client.Unsubscribe(context.Background(), token); !errors.Is(err, outbox.ErrNotFound) {
			t.Errorf("%q: error %v, want ErrNotFound", token, err)
		}
	}
}
