package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// What no provider can carry is refused before anything is written, under the
// name of the field. One that can is enough, unless the message is pinned.
func TestMessageThatNoProviderCarries(t *testing.T) {
	t.Parallel()
	long := func(m *outbox.Message) { m.Headers = map[string]string{"X-Long": strings.Repeat("x", 1000)} }
	pin := func(name string, also func(*outbox.Message)) func(*outbox.Message) {
		return func(m *outbox.Message) {
			also(m)
			m.Provider = name
		}
	}
	utf8 := func(m *outbox.Message) { m.To = []string{"jürgen@example.org"} }
	large := func(m *outbox.Message) {
		m.Attachments = []outbox.Attachment{{Filename: "a", Content: make([]byte, 25<<20)}}
	}
	unnamed := func(m *outbox.Message) {
		m.Attachments = []outbox.Attachment{{Filename: "a", ContentType: "a/b; =", Content: []byte("x")}}
	}
	sendGrid, resend := newSendGrid(t, "http://127.0.0.1"), newResend(t, "http://127.0.0.1")
	relay := newSMTP(t, providertest.NewSMTP(t, providertest.SMTPOptions{}))
	for _, test := range []struct {
		name      string
		providers []providers.Provider
		change    func(*outbox.Message)
		field     string // empty and no text: accepted
		text      string
	}{
		{"hard input 5: SMTPUTF8, no provider has it", []providers.Provider{sendGrid, resend}, utf8, "", "resend cannot carry it"},
		{"hard input 5: SMTPUTF8, one provider has it", []providers.Provider{sendGrid, relay}, utf8, "", ""},
		{"hard input 5: pinned to one that has it not", []providers.Provider{sendGrid, relay}, pin("sendgrid", utf8), "", "sendgrid cannot carry it"},
		{"hard input 17: too large in base64", []providers.Provider{sendGrid}, large, "", "bytes"},
		{"hard input 17: fits", []providers.Provider{sendGrid, resend}, large, "", ""},
		{"malformed type", []providers.Provider{resend}, unnamed, "attachments", "resend cannot carry it"},
		{"a line that does not fit", []providers.Provider{relay}, long, "", "998"},
		{"pinned to another", []providers.Provider{sendGrid}, pin("pigeon", func(*outbox.Message) {}), "provider", "use one of sendgrid"},
		{"nobody judges", nil, pin("pigeon", utf8), "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pool := testdb.New(t)
			client, err := outbox.NewClient(pool, outbox.Config{Providers: test.providers})
			must(t, err)
			s := submission(newOrg(t, pool), "key")
			test.change(&s.Messages[0])
			_, err = client.Enqueue(context.Background(), s)
			if test.text == "" {
				must(t, err)
				return
			}
			invalid, ok := errors.AsType[*outbox.ValidationError](err)
			if !ok || invalid.Fields[0].Field != test.field || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %v, want %s: ...%s", err, test.field, test.text)
			}
			var rows int
			must(t, pool.QueryRow(context.Background(),
				"SELECT (SELECT count(*) FROM outbox.emails) + (SELECT count(*) FROM outbox.idempotency_keys)").Scan(&rows))
			if rows != 0 {
				t.Errorf("%d rows written", rows)
			}
		})
	}
}

// A replay is answered as before, whatever the providers are by then. In a
// permissive batch the other messages go through.
func TestProvidersMayChangeBetweenReplays(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	relay := newSMTP(t, providertest.NewSMTP(t, providertest.SMTPOptions{}))
	before, err := outbox.NewClient(pool, outbox.Config{Providers: []providers.Provider{relay}})
	must(t, err)
	after, err := outbox.NewClient(pool, outbox.Config{Providers: []providers.Provider{newSendGrid(t, "http://127.0.0.1")}})
	must(t, err)
	s := submission(newOrg(t, pool), "key")
	s.Messages[0].To = []string{"jürgen@example.org"}
	first, err := before.Enqueue(context.Background(), s)
	must(t, err)
	again, err := after.Enqueue(context.Background(), s)
	must(t, err)
	if !again.Replayed || again.IDs[0] != first.IDs[0] {
		t.Errorf("receipt %+v, want a replay of %v", again, first.IDs)
	}

	s = submission(s.Org, "batch")
	s.Batch, s.Permissive = true, true
	s.Messages = append(s.Messages, s.Messages[0])
	s.Messages[1].To = []string{"jürgen@example.org"}
	receipt, err := after.Enqueue(context.Background(), s)
	must(t, err)
	if len(receipt.IDs) != 1 || !strings.Contains(string(receipt.Response), `"index":1`) {
		t.Errorf("receipt %+v", receipt)
	}
}
