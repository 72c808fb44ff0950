package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/internal/testdb"
)

// badBodies are refused, each for one kind of reason. Over HTTP the first error
// of decoding ends it; SQL lists all of those, and then all of validation.
func badBodies() []string {
	bad := []string{
		// Names and types.
		`{}`, `[]`, `"a"`, `7`, `null`,
		added("replyTo", `"a@example.com"`), added("TEXT", `"x"`), added("7", `1`),
		changedTo("from", `7`), changedTo("to", `{"a":1}`), changedTo("to", `["a@example.com",7]`), changedTo("subject", `["a"]`),
		added("html", `true`), added("cc", `7`), added("bcc", `[[]]`), added("reply_to", `{}`),
		added("headers", `[]`), added("headers", `{"X-A":7}`), added("headers", `{"X-A":null}`), added("headers", `"X-A: b"`),
		added("metadata", `{"a":{}}`), added("metadata", `{"a":null}`), added("metadata", `7`), added("metadata", `{"7":7}`),
		added("tags", `{}`), added("tags", `["a"]`), added("tags", `[{"name":"a","value":7}]`), added("tags", `[{"name":"a","value":"b","c":"d"}]`),
		added("tags", `[null]`), added("tags", `[{"name":"a"}]`),
		added("priority", `1`), added("on_unknown", `{}`), added("provider", `[]`), added("scheduled_at", `7`), added("expires_at", `{}`),
		// Attachments.
		added("attachments", `{}`), added("attachments", `["a"]`), added("attachments", `[null]`), added("attachments", `[{"filename":"a"}]`),
		added("attachments", `[{"filename":"a","path":"https://example.com/a"}]`), added("attachments", `[{"filename":7,"content":""}]`),
		added("attachments", `[{"filename":"a","content":"","url":"x"}]`), added("attachments", `[{"content":""}]`),
		added("attachments", `[{"filename":"a","content":"aGk=","content_type":"pdf"}]`), added("attachments", `[{"filename":"a","content":"","content_type":"a/b/c"}]`),
		added("attachments", `[{"filename":"a\nb","content":"","content_type":"a\n/b","content_id":"<a b>"}]`),
		added("attachments", `[{"filename":"`+strings.Repeat("é", 129)+`","content":""}]`),
		attachment(`"aGk"`), attachment(`"aGk=="`), attachment(`"a Gk="`), attachment(`"aG=k"`), attachment(`"===="`), attachment(`"=aGk"`), attachment(`"-_=="`),
		attachment(`7`), attachment(`true`), attachment(`null`), attachment(`[104,256]`), attachment(`[-1]`), attachment(`[1.5]`), attachment(`[104,null]`),
		attachment(`["a"]`), attachment(`{}`), attachment(`{"type":"Buffer"}`), attachment(`{"type":"buffer","data":[]}`), attachment(`{"data":[1]}`),
		attachment(`{"type":"Buffer","data":null}`), attachment(`{"type":"Buffer","data":"aGk="}`), attachment(`{"type":"Buffer","data":[1,300]}`),
		attachment(`{"type":"Buffer","data":[],"x":1}`), attachment(`{"type":7,"data":[]}`), attachment(`{"type":null,"data":[]}`),
		// Times.
		added("scheduled_at", `"2000-01-01T00:00:00Z"`), added("scheduled_at", `"2999-01-01T00:00:00Z"`), added("expires_at", `"2000-01-01T00:00:00Z"`),
		added("expires_at", `"2999-01-01T00:00:00Z","scheduled_at":"2999-01-01T00:00:00Z"`), added("scheduled_at", `"in 5 minutes"`),
		// Content.
		changedTo("from", `""`), changedTo("to", `[]`), changedTo("subject", `""`), changedTo("text", `""`), changedTo("subject", `"a\r\nBcc: b@example.com"`),
		changedTo("subject", `"a\u2028"`), changedTo("subject", `"a\u0085"`), changedTo("subject", `"`+strings.Repeat("é", 1001)+`"`),
		changedTo("to", many(51, `"a@example.com"`)), added("cc", many(50, `"a@example.com"`)), added("reply_to", many(51, `"a"`)),
		added("headers", `{"From":"a@example.com"}`), added("headers", `{"dkim-x":"a"}`), added("headers", `{"Content-Type":"a"}`), added("headers", `{"X A":"a"}`),
		added("headers", `{"":"a"}`), added("headers", `{"X-A":"a","x-a":"b"}`), added("headers", `{"X-A":"a\nb"}`), added("headers", `{"X-A":"`+strings.Repeat("a", 8001)+`"}`),
		added("headers", `{"X-é\u0007`+strings.Repeat("é", 40)+`":"a"}`), added("headers", `{"`+strings.Repeat("a", 257)+`":"a"}`), added("headers", "{"+members(51)+"}"),
		added("tags", `[{"name":"a b","value":"é"},{"name":"a","value":""}]`), added("tags", `[{"name":"`+strings.Repeat("a", 257)+`","value":"a"}]`),
		added("tags", many(51, `{"name":"a","value":"b"}`)), added("metadata", "{"+members(51)+"}"), added("metadata", `{"":"a"}`), added("metadata", `{"a\tb":"a"}`),
		added("metadata", `{"`+strings.Repeat("é", 129)+`":"`+strings.Repeat("é", 1001)+`"}`), added("attachments", many(101, `{"filename":"a","content":""}`)),
		added("on_unknown", `"resend"`), added("priority", `"High"`), added("provider", `"a\nb"`), added("provider", `"`+strings.Repeat("a", 257)+`"`),
		added("list_unsubscribe", `"true"`), added("list_unsubscribe", `1`), added("list_unsubscribe", `[]`), added("list_unsubscribe", `{}`),
		added("list_unsubscribe", `true,"cc":"a@example.com"`), added("list_unsubscribe", `true,"bcc":["a@example.com","b@example.com"]`),
		added("list_unsubscribe", `true,"headers":{"list-UNSUBSCRIBE":"<https://example.com>"}`),
		added("list_unsubscribe", `true,"headers":{"List-Unsubscribe-Post":"x","List-Unsubscribe":"y"},"cc":"jane@example.org"`),
		// Everything at once.
		`{"from":"nobody","to":["a..b@example.com","a@b",">"],"subject":"","headers":{"To":"a","X\n":"b"},"tags":[{"name":"!","value":"!"}],"priority":"x"}`,
	}
	for _, address := range []string{
		"", "nobody", "@example.com", "a@", "a@@", "a..b@example.com", ".a@example.com", "a.@example.com", "a b@example.com", "(a)@example.com", "a@b@example.com",
		"a@example", "a@exa_mple.com", "a@[127.0.0.1]", "a@exam ple.com", "a@example.com>", "a\nb <a@example.com>", "a<b@example.com", "Name <a@example.com> b",
		strings.Repeat("a", 65) + "@example.com", "a@" + strings.Repeat("a.", 130) + "com", strings.Repeat("é", 500) + " <a@example.com>", "a\u2028@example.com",
	} {
		quoted, _ := json.Marshal(address)
		bad = append(bad, changedTo("from", string(quoted)), changedTo("to", `["a@example.com",`+string(quoted)+`]`), added("bcc", string(quoted)))
	}
	for _, text := range []string{
		"2999-01-31T9:30:00Z", "2999-01-31T09:30:00,5Z", "2999-01-31 09:30:00Z", "2999-01-31t09:30:00Z", "2999-01-31T09:30:00", "2999-02-29T09:30:00Z",
		"2999-01-31T24:00:00Z", "2999-01-31T09:30:60Z", "2999-01-31T09:30:00+24:00", "2999-13-01T00:00:00Z", "2999-00-01T00:00:00Z", "2999-01-00T00:00:00Z",
		"2999-01-31T09:30:00.Z", "2999-01-31T09:30:00+0100", "9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00.0000009Z",
		"0001-01-01T00:00:00+01:00", "10000-01-01T00:00:00Z", "2999-01-31", "now", " 2999-01-31T09:30:00Z", "2999-01-31T09:30:00Z\n", "infinity", "epoch",
	} {
		quoted, _ := json.Marshal(text)
		bad = append(bad, added("expires_at", string(quoted)))
	}
	return bad
}

// changedTo is simple with another value for a member.
func changedTo(name, value string) string {
	var body map[string]json.RawMessage
	if err := json.Unmarshal([]byte(simple), &body); err != nil {
		panic(err)
	}
	body[name] = json.RawMessage(value)
	out, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprint(err, value))
	}
	return string(out)
}

func many(n int, element string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
}

func members(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(`"X-%d":"a"`, i)
	}
	return strings.Join(list, ",")
}

// What HTTP refuses, SQL refuses by the same name, for the same fields, in the
// same words.
func TestSQLRefusesLikeHTTP(t *testing.T) {
	t.Parallel()
	d := newDoors(t, api.Org{})
	for _, body := range badBodies() {
		want, err := d.http(body, "k")
		if err != nil || want.refusal.Name != "validation_error" {
			t.Fatalf("HTTP: %+v, error %v for %s", want, err, body)
		}
		got, err := d.sql(body, "k")
		if err != nil {
			t.Errorf("%v for %s", err, body)
			continue
		}
		if diff := cmp.Diff(want.refusal, got.refusal, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("refusals (-HTTP +SQL) of %s:\n%s", body, diff)
		}
		if got.words != want.words {
			t.Errorf("SQL says %q, HTTP %q, of %s", got.words, want.words, body)
		}
	}
	if n := d.emails(); n != 0 {
		t.Errorf("%d rows were stored", n)
	}
}

// Over HTTP the first wrong type ends the reading; SQL lists them all, and says
// nothing yet about what it could not read.
func TestSQLListsAllThatCannotBeRead(t *testing.T) {
	t.Parallel()
	d := newDoors(t, api.Org{})
	got, err := d.sql(`{"from":7,"replyTo":"a","to":["a@example.com",8],"attachments":[{"filename":"a"},{"path":"p"}],"expires_at":"now"}`, "")
	var fields []string
	for _, e := range got.refusal.Errors {
		fields = append(fields, e.Field)
	}
	slices.Sort(fields)
	want := []string{"attachments[0].content", "attachments[1].path", "expires_at", "from", "replyTo", "to[1]"}
	if diff := cmp.Diff(want, fields); diff != "" || err != nil {
		t.Errorf("error %v; fields (-want +got):\n%s", err, diff)
	}
}

// Keys, the org and its From domains are judged before the message.
func TestSQLRefusesWhatTheOrgDoes(t *testing.T) {
	t.Parallel()
	d := newDoors(t, api.Org{RequireIdempotencyKey: true, FromDomains: []string{"example.com", "xn--mller-kva.example"}})
	key := func(s string) *string { return &s }
	for _, test := range []struct {
		name, body string
		key        *string
		want       string
	}{
		{"no key", simple, nil, "missing_idempotency_key"},
		{"empty key", simple, key(""), "invalid_idempotency_key"},
		{"key with a tab", simple, key("a\tb"), "invalid_idempotency_key"},
		{"key that is not ASCII", simple, key("é"), "invalid_idempotency_key"},
		{"long key", simple, key(strings.Repeat("k", 256)), "invalid_idempotency_key"},
		{"longest key", simple, key(strings.Repeat("~", 255)), ""},
		{"other domain", changedTo("from", `"a@example.net"`), key("k"), "invalid_from_address"},
		{"sub-domain", changedTo("from", `"a@www.example.com"`), key("k"), "invalid_from_address"},
		{"own domain in the name only", changedTo("from", `"a@example.com <a@example.net>"`), key("k"), "invalid_from_address"},
		{"own domain and a space that only Unicode knows", changedTo("from", `"a@example.com\u3000"`), key("space"), ""},
		{"own domain in other letters", changedTo("from", `"A <a@EXAMPLE.com.>"`), key("letters"), ""},
		{"own domain in ASCII", changedTo("from", `"a@xn--mller-kva.example"`), key("ascii"), ""},
		{"no address", changedTo("from", `"nobody"`), key("k"), "validation_error"},
		{"other domain and more that is wrong", strings.Replace(changedTo("from", `"a@example.net"`), "jane@", "", 1), key("k"), "invalid_from_address"},
		{"wrong type before the domain", strings.Replace(changedTo("from", `"a@example.net"`), `"Hello"`, "7", 1), key("k"), "validation_error"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := d.call(d.org, test.body, test.key)
			if err != nil || got.refusal.Name != test.want || (got.id == uuid.Nil) != (test.want != "") {
				t.Fatalf("%+v, error %v; want %q", got, err, test.want)
			}
			if test.key == nil || *test.key == "" { // HTTP sends no empty header here
				return
			}
			if web, err := d.http(test.body, *test.key); err == nil && web.refusal.Name != test.want {
				t.Errorf("HTTP says %q, want %q", web.refusal.Name, test.want)
			}
		})
	}
	stranger := uuid.New()
	got, err := d.call(stranger, simple, key("k"))
	if err != nil || got.refusal.Name != "not_found" || len(got.refusal.Errors) != 1 || got.refusal.Errors[0].Field != "org" {
		t.Errorf("%+v, error %v; want that there is no such org", got, err)
	}
}

// timeParts make times that are almost RFC 3339.
var timeParts = []*rapid.Generator[string]{
	rapid.SampledFrom([]string{"2026", "2999", "2000", "1900", "0001", "0000", "9999", "10000"}),
	rapid.SampledFrom([]string{"-02-", "-01-", "-12-", "-13-", "-00-", "-1-"}),
	rapid.SampledFrom([]string{"01", "28", "29", "30", "31", "32", "00"}),
	rapid.SampledFrom([]string{"T", "T", "t", " "}),
	rapid.SampledFrom([]string{"00:00:00", "23:59:59", "09:30:00", "24:00:00", "09:30:60", "09:60:00", "9:30:00"}),
	rapid.SampledFrom([]string{"", ".1", ".123456", ".9999999", ".123456789123", ",5", "."}),
	rapid.SampledFrom([]string{"Z", "Z", "+00:00", "-23:59", "+23:59", "+15:59", "-16:00", "+24:00", "+01:60", "+0100", "z", ""}),
}

// A time means the same in SQL, to the microsecond, or nothing at both.
func TestSQLReadsTimesAsHTTPDoes(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	both := 0
	rapid.Check(t, func(t *rapid.T) {
		for range 20 {
			var text strings.Builder
			for _, part := range timeParts {
				text.WriteString(part.Draw(t, "part"))
			}
			var got *time.Time
			if err := tx.QueryRow(context.Background(), "SELECT outbox.enqueue_time($1)", text.String()).Scan(&got); err != nil {
				t.Fatal(err)
			}
			m, err := api.DecodeEmail([]byte(added("expires_at", `"`+text.String()+`"`)))
			switch {
			// A year 0 that its zone makes a year 1 is long past for both.
			case strings.HasPrefix(text.String(), "0000") && got == nil:
			case (got == nil) != (err != nil):
				t.Fatalf("SQL reads %v, Go %v (%v) from %s", got, m.ExpiresAt, err, text.String())
			case got != nil && !got.Equal(m.ExpiresAt):
				t.Fatalf("SQL reads %v, Go %v from %s", got, m.ExpiresAt, text.String())
			case got != nil:
				both++
			}
		}
	})
	if both < 20 {
		t.Errorf("%d times were read by both: not enough of a test", both)
	}
}
