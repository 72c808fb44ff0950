package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// What HTTP cannot carry, a Go program can still hand over. It is refused by
// name, not repaired by encoding/json on its way into the tables, and not left
// to an error of the database that aborts the caller's transaction.
func TestLibraryIsAsStrictAsTheWire(t *testing.T) {
	t.Parallel()
	const bad = "a\xffb"
	tests := map[string]func(*outbox.Submission, *outbox.Message){
		"idempotency_key": func(s *outbox.Submission, _ *outbox.Message) { s.IdempotencyKey = "größe" },
		"from":            func(_ *outbox.Submission, m *outbox.Message) { m.From = bad + " <a@example.com>" },
		"to[0]":           func(_ *outbox.Submission, m *outbox.Message) { m.To = []string{bad + "@example.com"} },
		"cc[0]": func(_ *outbox.Submission, m *outbox.Message) {
			m.Cc = []string{strings.Repeat("a", 1000) + " <a@example.com>"}
		},
		"subject":     func(_ *outbox.Submission, m *outbox.Message) { m.Subject = bad },
		"html":        func(_ *outbox.Submission, m *outbox.Message) { m.HTML = bad },
		"text":        func(_ *outbox.Submission, m *outbox.Message) { m.Text = bad },
		"headers.X-A": func(_ *outbox.Submission, m *outbox.Message) { m.Headers = map[string]string{"X-A": bad} },
		"metadata.a":  func(_ *outbox.Submission, m *outbox.Message) { m.Metadata = map[string]string{"a": bad} },
		"metadata.a\uFFFDb": func(_ *outbox.Submission, m *outbox.Message) {
			m.Metadata = map[string]string{bad: "x"}
		},
		"attachments[0].filename": func(_ *outbox.Submission, m *outbox.Message) {
			m.Attachments = []outbox.Attachment{{Filename: bad}}
		},
		"provider": func(_ *outbox.Submission, m *outbox.Message) { m.Provider = bad },
		// The API could not show it.
		"expires_at": func(_ *outbox.Submission, m *outbox.Message) {
			m.ExpiresAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
		},
	}
	for field, change := range tests {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			tx := testdb.Tx(t)
			s := submission(uuid.New(), "k")
			change(&s, &s.Messages[0])
			_, err := newClient(t, nil).EnqueueTx(context.Background(), tx, s)
			invalid, ok := errors.AsType[*outbox.ValidationError](err)
			if !ok || len(invalid.Fields) != 1 || invalid.Fields[0].Field != field {
				t.Fatalf("error = %v, want exactly one about %s", err, field)
			}
			// The caller's transaction is as good as before.
			if n := count(t, tx, "SELECT count(*) FROM outbox.emails"); n != 0 {
				t.Errorf("%d emails", n)
			}
		})
	}
}
