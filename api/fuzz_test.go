package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

// bodies are seeds: what is accepted, what is refused, and what was once
// accepted by mistake.
var bodies = []string{
	simple,
	`{"from":"Shop <shop@example.com>","to":["jane@example.org"],"cc":"joe@example.org","bcc":[],"reply_to":null,` +
		`"subject":"Gr\u00fc\u00dfe \ud83d\ude00","html":"<p>Hi</p>","text":"Hi","headers":{"X-Order":"7"},` +
		`"tags":[{"name":"kind","value":"receipt"}],"metadata":{"order":"7","empty":""},` +
		`"scheduled_at":"","expires_at":"2999-12-31T23:59:59.999999999+01:00",` +
		`"on_unknown":"hold","priority":"high","provider":"smtp"}`,
	added("list_unsubscribe", "true"), added("list_unsubscribe", "null"), added("list_unsubscribe", `"true"`),
	attachment(`"aGk="`), attachment(`"aG\r\nk="`), attachment(`[104,105]`), attachment(`{"type":"Buffer","data":[0,255]}`),
	// Silent repairs: a file that is cut short or lost is refused.
	attachment(`[104,null]`), attachment(`[256]`), attachment(`[1.5]`), attachment(`[-1]`), attachment(`null`),
	attachment(`{"type":"Buffer"}`), attachment(`{"type":"Buffer","data":null}`), attachment(`{"type":"Buffer","data":"aGk="}`),
	added("headers", `{"X-A":null}`), added("metadata", `{"a":null}`), added("to", `["a@example.com",null]`),
	// Times that are no RFC 3339, or that cannot be written again.
	added("scheduled_at", `"2999-01-31T9:30:00Z"`), added("scheduled_at", `"2999-01-31T09:30:00,5Z"`),
	added("scheduled_at", `"0001-01-01T00:00:00Z"`), added("scheduled_at", `"0001-01-01T00:00:00.0000001Z"`),
	added("expires_at", `"9999-12-31T23:59:59-23:59"`), added("expires_at", `"9999-12-31T23:59:59Z"`),
	// Strictness: duplicates, other case, surrogates, UTF-8, U+0000, trailing data, depth.
	added("text", `"again"`), added("headers", `{"a":"1","\u0061":"2"}`), added("TEXT", `"x"`),
	added("html", `"\ud800"`), added("html", "\"\xff\""), added("html", `"\u0000"`), added("metadata", `{"\u0000":"x"}`),
	simple + "{}", simple + "\x00", "\ufeff" + simple, strings.Repeat("[", 20000), "null", "[]", `"a"`, "",
	strings.Replace(simple, "Shop <", `=?utf-8?q?a=0D=0AB?= <`, 1), strings.Replace(simple, "jane@", `\"a b\"@`, 1),
}

func added(name, value string) string {
	return strings.TrimSuffix(simple, "}") + `,"` + name + `":` + value + `}`
}

func attachment(content string) string {
	return added("attachments", `[{"filename":"a.bin","content":`+content+`}]`)
}

// The decoder accepts only what it can give back unchanged.
func FuzzDecodeEmail(f *testing.F) {
	for _, body := range bodies {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := api.DecodeEmail(body)
		if err != nil {
			checkRefusal(t, err)
			return
		}
		checkStrict(t, body)
		again, err := api.DecodeEmail(wire(t, m))
		if err != nil {
			t.Fatalf("decoded, but not after encoding it again: %v", err)
		}
		if diff := cmp.Diff(m, again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("changed by encoding it again:\n%s", diff)
		}
		if m.Validate() == nil && !storable(t, m) {
			t.Fatalf("valid, but cannot be stored: %+v", m)
		}
	})
}

// checkRefusal: a refusal is the client's fault, and can be shown.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	answer := api.ErrorOf(err)
	if answer.StatusCode != http.StatusBadRequest && answer.StatusCode != http.StatusUnprocessableEntity {
		t.Fatalf("answer %d to %v", answer.StatusCode, err)
	}
	for _, shown := range append([]outbox.FieldError{{Message: answer.Message}}, answer.Errors...) {
		if !utf8.ValidString(shown.Field + shown.Message) {
			t.Fatalf("error is not UTF-8: %q", shown)
		}
	}
}

// checkStrict reads an accepted body with the lenient decoder of the standard
// library, which shares no code with ours, and looks for what must not be there.
func checkStrict(t *testing.T, body []byte) {
	t.Helper()
	if !utf8.Valid(body) {
		t.Fatal("invalid UTF-8 was accepted")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	checkValue(t, dec)
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		t.Fatal("trailing data was accepted")
	}
	// The lenient decoder makes U+FFFD of a lone surrogate.
	mayHold := bytes.Contains(body, []byte("\uFFFD")) || bytes.Contains(bytes.ToLower(body), []byte(`\ufffd`))
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("accepted, but not by encoding/json: %v", err)
	}
	if !mayHold && strings.ContainsRune(fmt.Sprint(v), utf8.RuneError) {
		t.Fatal("a lone surrogate was accepted")
	}
}

// checkValue reads one value and fails on names that are given twice.
func checkValue(t *testing.T, dec *json.Decoder) {
	t.Helper()
	token, err := dec.Token()
	if err != nil {
		t.Fatalf("accepted, but not by encoding/json: %v", err)
	}
	open, _ := token.(json.Delim)
	if open == 0 {
		return
	}
	seen := map[any]bool{}
	for dec.More() {
		if open == '{' {
			name, err := dec.Token()
			if err != nil || seen[name] {
				t.Fatalf("name %v was accepted twice (%v)", name, err)
			}
			seen[name] = true
		}
		checkValue(t, dec)
	}
	_, _ = dec.Token() // the closing bracket
}

// wire writes a message as a client would.
func wire(t *testing.T, m outbox.Message) []byte {
	t.Helper()
	body := map[string]any{
		"from": m.From, "to": m.To, "cc": m.Cc, "bcc": m.Bcc, "reply_to": m.ReplyTo,
		"subject": m.Subject, "html": m.HTML, "text": m.Text, "headers": m.Headers, "metadata": m.Metadata,
		"on_unknown": m.OnUnknown, "priority": m.Priority, "provider": m.Provider, "list_unsubscribe": m.ListUnsubscribe,
	}
	var files, tags []map[string]any
	for _, a := range m.Attachments {
		content := append([]byte{}, a.Content...) // nil would be null
		files = append(files, map[string]any{
			"filename": a.Filename, "content": content, "content_type": a.ContentType, "content_id": a.ContentID,
		})
	}
	for _, tag := range m.Tags {
		tags = append(tags, map[string]any{"name": tag.Name, "value": tag.Value})
	}
	body["attachments"], body["tags"] = files, tags
	if !m.ScheduledAt.IsZero() {
		body["scheduled_at"] = m.ScheduledAt
	}
	if !m.ExpiresAt.IsZero() {
		body["expires_at"] = m.ExpiresAt
	}
	encoded, err := json.Marshal(body)
	if err != nil {
		t.Fatalf("decoded, but cannot be encoded: %v", err)
	}
	return encoded
}

// storable reports whether Postgres takes all that is text in a message, and
// whether the times can be shown.
func storable(t *testing.T, m outbox.Message) bool {
	t.Helper()
	m.Attachments = append([]outbox.Attachment{}, m.Attachments...)
	for i := range m.Attachments {
		m.Attachments[i].Content = nil // bytea takes anything
	}
	encoded := wire(t, m)
	return utf8.Valid(encoded) && !bytes.Contains(encoded, []byte(`\u0000`))
}

// Everything in the corpus is answered by 202 or by the client's own fault, and
// what is answered by 202 is in the database and can be read again.
func TestCorpusThroughTheAPI(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	for _, body := range append(corpus(t, "FuzzDecodeEmail"), bodies...) {
		sent := s.do("POST", "/emails", body)
		switch sent.status {
		case http.StatusBadRequest, http.StatusUnprocessableEntity:
			continue
		case http.StatusAccepted:
		default:
			t.Errorf("answer %d %s to %q", sent.status, sent.body, body)
			continue
		}
		id := sent.json(t)["id"].(string)
		read := s.do("GET", "/emails/"+id, "")
		if read.status != http.StatusOK || read.json(t)["id"] != id {
			t.Errorf("answer %d %s to a look at what %q made", read.status, read.body, body)
		}
	}
	if s.emails() == 0 {
		t.Error("nothing was accepted: the corpus proves nothing")
	}
}

// corpus returns the inputs that fuzzing has kept for a target.
func corpus(t *testing.T, target string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "fuzz", target, "*"))
	if err != nil {
		t.Fatal(err)
	}
	var inputs []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, quoted, _ := strings.Cut(strings.TrimSpace(string(content)), "[]byte(")
		input, err := strconv.Unquote(strings.TrimSuffix(quoted, ")"))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		inputs = append(inputs, input)
	}
	return inputs
}

// What the seeds say was refused is refused, for the right reason.
func TestNothingIsRepairedInSilence(t *testing.T) {
	t.Parallel()
	tests := []struct{ body, field string }{
		{attachment(`[104,null]`), "attachments[0].content"},
		{attachment(`{"type":"Buffer"}`), "attachments[0].content"},
		{attachment(`{"type":"Buffer","data":null}`), "attachments[0].content.data"},
		{added("headers", `{"X-A":null}`), "headers"},
		{added("metadata", `{"a":null}`), "metadata"},
		{added("scheduled_at", `"2999-01-31T9:30:00Z"`), "scheduled_at"},
		{added("scheduled_at", `"2999-01-31T09:30:00,5Z"`), "scheduled_at"},
		{added("scheduled_at", `"0001-01-01T00:00:00.0000001Z"`), "scheduled_at"},
		{added("scheduled_at", `"2999-01-31T09:30:00+24:00"`), "scheduled_at"},
		{added("expires_at", `"9999-12-31T23:59:59-23:59"`), "expires_at"},
	}
	for _, test := range tests {
		_, err := api.DecodeEmail([]byte(test.body))
		if err == nil {
			t.Errorf("%s is accepted", test.body)
			continue
		}
		if fields := api.ErrorOf(err).Errors; len(fields) != 1 || fields[0].Field != test.field {
			t.Errorf("%s: errors %v, want one about %s", test.body, fields, test.field)
		}
	}
}

// A key is printable ASCII, and its quoted form is the same key.
func FuzzIdempotencyKey(f *testing.F) {
	for _, header := range []string{
		"k", `"k"`, ` "k" `, "", `""`, `"`, `"k`, `"k"x`, `"k";a=1`, `"\"\\"`, `"\a"`, `a"b`, "k\x7f", "ü", "\xff", "a b",
		strings.Repeat("k", 255), strings.Repeat("k", 256), `"` + strings.Repeat(`\"`, 255) + `"`,
	} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		key, err := readKey(header)
		if err != nil {
			if answer := api.ErrorOf(err); answer.StatusCode != http.StatusBadRequest || answer.Name != "invalid_idempotency_key" {
				t.Fatalf("answer %d %s", answer.StatusCode, answer.Name)
			}
			return
		}
		if key == "" || len(key) > 255 || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("key %q was accepted", key)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := readKey(quoted); err != nil || again != key {
			t.Fatalf("%s is key %q (%v), want %q", quoted, again, err, key)
		}
		if bare := strings.Trim(header, " \t"); !strings.HasPrefix(bare, `"`) && key != bare {
			t.Fatalf("%q is key %q", bare, key)
		}
	})
}

func readKey(header string) (string, error) {
	return api.IdempotencyKey(&http.Request{Header: http.Header{"Idempotency-Key": {header}}})
}
