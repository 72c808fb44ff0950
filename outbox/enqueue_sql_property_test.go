package outbox_test

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"pgregory.net/rapid"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// sqlFingerprint is how the SQL function computes it, without what it would
// refuse: the fingerprint does not rely on that.
const sqlFingerprint = `
SELECT encode(outbox.enqueue_fingerprint($1, outbox.enqueue_normal(m), outbox.enqueue_files(m)), 'hex')
FROM (SELECT $2::text::jsonb) AS message (m)`

// One canonical form: SQL and Go compute the same fingerprint.
func TestSQLFingerprintIsGos(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	same := func(t fataler, m outbox.Message) {
		t.Helper()
		var got string
		if err := tx.QueryRow(context.Background(), sqlFingerprint, goldenOrg, wire(t, m)).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if want := fingerprint(t, one(m)); got != want {
			t.Fatal("fingerprints differ: SQL ", got, ", Go ", want, " of ", wire(t, m))
		}
	}
	for _, m := range []outbox.Message{{}, message(), full(), {ListUnsubscribe: true}} {
		same(t, m)
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 5 {
			same(t, anyMessage(t))
			same(t, wildMessage(t))
		}
	})
}

// wildMessage draws from all of Unicode, all bytes and all times; lists have
// empty elements, maps have keys that other orders than that of bytes mix up.
func wildMessage(t *rapid.T) outbox.Message {
	text := rapid.Map(rapid.String(), func(s string) string { return strings.ReplaceAll(s, "\x00", "") })
	list := rapid.SliceOfN(text, 0, 4)
	key := rapid.OneOf(text, rapid.StringMatching(`[a-cA-C_.\-0-9\x{e4}\x{fb01}\x{ffff}\x{10000}]{0,4}`))
	dict := rapid.MapOfN(key, text, 0, 6)
	at := rapid.Map(rapid.Int64Range(-62135596800000000+1, 253402300799999999), func(micros int64) time.Time { return time.UnixMicro(micros).UTC() })
	m := outbox.Message{
		From: text.Draw(t, "from"), To: list.Draw(t, "to"), Cc: list.Draw(t, "cc"), Bcc: list.Draw(t, "bcc"), ReplyTo: list.Draw(t, "reply_to"),
		Subject: text.Draw(t, "subject"), HTML: text.Draw(t, "html"), Text: text.Draw(t, "text"),
		Headers: dict.Draw(t, "headers"), Metadata: dict.Draw(t, "metadata"), ScheduledAt: at.Draw(t, "scheduled_at"), ExpiresAt: at.Draw(t, "expires_at"),
		OnUnknown: outbox.Policy(text.Draw(t, "on_unknown")), Priority: outbox.Priority(text.Draw(t, "priority")), Provider: text.Draw(t, "provider"),
		ListUnsubscribe: rapid.Bool().Draw(t, "list_unsubscribe"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "attachments") {
		m.Attachments = append(m.Attachments, outbox.Attachment{
			Filename: text.Draw(t, "filename"), Content: rapid.SliceOf(rapid.Byte()).Draw(t, "content"),
			ContentType: text.Draw(t, "content_type"), ContentID: text.Draw(t, "content_id"),
		})
	}
	for range rapid.IntRange(0, 3).Draw(t, "tags") {
		m.Tags = append(m.Tags, outbox.Tag{Name: text.Draw(t, "name"), Value: text.Draw(t, "value")})
	}
	return m
}

// addressParts make addresses that are almost right.
var addressParts = rapid.SampledFrom([]string{
	"a", "Jane.Doe", "o'brien+x", "ü", "É", `"a b"`, `"a@b"`, "..", ".", " ", "\u3000", "\u00a0", "\t", "\u0085", "@", "@", "<", ">", "(c)", ",", ";", ":", `\`, `"`, "[", "]",
	"example.com", "EXAMPLE.com", "example", "localhost", "LOCALHOST", "müller.example", "xn--mller-kva.example", "ｅxample.com", "exa_mple.com", "-x.example", "xn--a.example",
	"[127.0.0.1]", strings.Repeat("a", 64), strings.Repeat("long.", 50), strings.Repeat("é", 33), "=?utf-8?q?J=C3=BCrgen?=", "Name <a@example.com>", "a@example.com", "@example.org",
	"@" + strings.Repeat("ｅ", 90) + ".example", // is shorter in ASCII
})

const sqlAddress = `
SELECT coalesce(outbox.enqueue_address_error($1), ''), coalesce(outbox.enqueue_lower(outbox.enqueue_bare($1)), '')`

// A check in SQL never refuses what Go accepts, and reads from an address of
// ASCII what Go reads from it.
func TestSQLReadsAddressesAsGoDoes(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		for range 30 {
			address := strings.Join(rapid.SliceOfN(addressParts, 1, 6).Draw(t, "parts"), "")
			var refusal, bare string
			if err := tx.QueryRow(context.Background(), sqlAddress, address).Scan(&refusal, &bare); err != nil {
				t.Fatal(err)
			}
			want, err := outbox.ParseAddress(address)
			switch {
			case refusal != "" && err == nil:
				t.Fatalf("SQL refuses %q: %s", address, refusal)
			case refusal != "":
				refused++
			case err == nil && isASCII(bare) && bare != strings.ToLower(want.Email):
				t.Fatalf("SQL reads %q, Go %q from %q", bare, want.Email, address)
			case err == nil:
				accepted++
			}
		}
	})
	if accepted < 50 || refused < 50 {
		t.Errorf("%d addresses were accepted by both, %d refused by both: not enough of a test", accepted, refused)
	}
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII })
}

// The limits are Go's.
func TestSQLHasTheLimitsOfGo(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	org := newOrg(t, tx)
	fill := func(n int) []string { return slices.Repeat([]string{"a@example.com"}, n) }
	for name, change := range map[string]func(m *outbox.Message, over int){
		"recipients": func(m *outbox.Message, over int) { m.To, m.Bcc = fill(20), fill(outbox.MaxRecipients-20+over) },
		"reply_to":   func(m *outbox.Message, over int) { m.ReplyTo = fill(outbox.MaxRecipients + over) },
		"attachments": func(m *outbox.Message, over int) {
			m.Attachments = slices.Repeat([]outbox.Attachment{{Filename: "a"}}, outbox.MaxAttachments+over)
		},
		"tags": func(m *outbox.Message, over int) {
			m.Tags = slices.Repeat([]outbox.Tag{{Name: "a", Value: "b"}}, outbox.MaxTags+over)
		},
		"tag": func(m *outbox.Message, over int) {
			m.Tags = []outbox.Tag{{Name: "a", Value: strings.Repeat("b", 256+over)}}
		},
		"headers": func(m *outbox.Message, over int) { m.Headers = numbered(outbox.MaxHeaders + over) },
		"header": func(m *outbox.Message, over int) {
			m.Headers = map[string]string{"X": strings.Repeat("é", 4000) + strings.Repeat("a", over)}
		},
		"header name": func(m *outbox.Message, over int) { m.Headers = map[string]string{strings.Repeat("a", 256+over): ""} },
		"metadata":    func(m *outbox.Message, over int) { m.Metadata = numbered(outbox.MaxMetadata + over) },
		"member":      func(m *outbox.Message, over int) { m.Metadata = map[string]string{"a": strings.Repeat("a", 2000+over)} },
		"member name": func(m *outbox.Message, over int) {
			m.Metadata = map[string]string{strings.Repeat("é", 128) + strings.Repeat("a", over): ""}
		},
		"subject": func(m *outbox.Message, over int) { m.Subject = strings.Repeat("é", 1000) + strings.Repeat("a", over) },
		"filename": func(m *outbox.Message, over int) {
			m.Attachments = []outbox.Attachment{{Filename: strings.Repeat("é", 128) + strings.Repeat("a", over)}}
		},
		"provider": func(m *outbox.Message, over int) { m.Provider = strings.Repeat("a", 256+over) },
		"address":  func(m *outbox.Message, over int) { m.To = []string{strings.Repeat("a", 989+over) + " <a@b.cc>"} },
		"schedule": func(m *outbox.Message, over int) {
			m.ScheduledAt = time.Now().Add(outbox.MaxScheduleAhead + time.Duration(2*over-1)*time.Minute)
		},
	} {
		for over := range 2 {
			s := submission(org, "")
			change(&s.Messages[0], over)
			savepoint := begin(t, tx)
			_, err := enqueueSQL(t, savepoint, s)
			if (err != nil) != (over == 1) || err != nil && nameOf(err) != "validation_error" {
				t.Errorf("%s, %d over the limit: error %v", name, over, err)
			}
			if _, goErr := newClient(t, nil).EnqueueTx(context.Background(), savepoint, s); err == nil != (goErr == nil) {
				t.Errorf("%s, %d over the limit: Go says %v", name, over, goErr)
			}
			must(t, savepoint.Rollback(context.Background()))
		}
	}
}

func numbered(n int) map[string]string {
	dict := map[string]string{}
	for i := range n {
		dict["x-"+hex.EncodeToString([]byte{byte(i)})] = "a"
	}
	return dict
}
