package outbox_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// fataler is what the helpers here need of a *testing.T, a *testing.F or a
// *rapid.T.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

func fingerprint(t fataler, s outbox.Submission) string {
	t.Helper()
	sum, err := outbox.Fingerprint(1, s)
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum)
}

// goldenOrg is the org of the golden values.
var goldenOrg = uuid.MustParse("0190f3a4-0000-7000-8000-000000000001")

func one(m outbox.Message) outbox.Submission {
	return outbox.Submission{Org: goldenOrg, Messages: []outbox.Message{m}}
}

// changed is message with something changed in it.
func changed(change func(*outbox.Message)) outbox.Submission {
	m := message()
	change(&m)
	return one(m)
}

func batch(messages ...outbox.Message) outbox.Submission {
	return outbox.Submission{Org: goldenOrg, Batch: true, Messages: messages}
}

// full has every field.
func full() outbox.Message {
	at := time.Date(2026, 1, 31, 9, 30, 0, 123456000, time.UTC)
	return outbox.Message{
		From: "Müller, Jürgen <juergen@example.com>", To: []string{"a@example.org", "Zoë <zoe@example.org>"},
		Cc: []string{"c@example.org"}, Bcc: []string{"b@example.org"}, ReplyTo: []string{"r@example.org"},
		Subject: "Grüße ✓", HTML: "<p>Hi</p>", Text: "Hi\n",
		Headers: map[string]string{"X-B": "2", "X-A": "1"},
		Attachments: []outbox.Attachment{
			{Filename: "a.bin", Content: []byte{0, 0xff, '\n'}, ContentType: "application/pdf", ContentID: "cid"},
			{Filename: "empty"},
		},
		Tags: []outbox.Tag{{Name: "kind", Value: "receipt"}}, Metadata: map[string]string{"order": "7", "empty": ""},
		ScheduledAt: at, ExpiresAt: at.Add(time.Hour),
		OnUnknown: outbox.PolicyHold, Priority: outbox.PriorityHigh, Provider: "smtp",
	}
}

// A release that computes another fingerprint than the one before it refuses
// the retries of requests that the other one took. So a change that turns this
// test red is not to be answered with new values: it needs a new version.
func TestFingerprintsAreThoseOfVersion1(t *testing.T) {
	t.Parallel()
	refused := batch(message(), outbox.Message{})
	refused.Permissive = true
	refused.Refused = map[int]outbox.Refusal{1: {Raw: []byte(`{"to":7}`), Err: errors.New("any")}}
	tests := []struct {
		name       string
		submission outbox.Submission
		want       string
	}{
		{"smallest", one(outbox.Message{From: "a@example.com", To: []string{"b@example.com"}, Subject: "s", Text: "t"}), "604ad4c3096797103279362ec17d93647ac78b5d435047e6bbc767562d0efdb9"},
		{"text and html", one(message()), "728a0cc787ca6cf83568417911a4ad4732be933c286bcafa99596680ef5eef39"},
		{"every field", one(full()), "3d088224390285670d25b71f50f20a98794395683d01212445ecf5a162dd1d92"},
		{"list_unsubscribe", changed(func(m *outbox.Message) { m.ListUnsubscribe = true }), "dd9edbb4158ccad6cbed8b7f75f888d6d49ef31280fbfd68337e01e9746da085"},
		{"batch of one", batch(message()), "d9f812e60cc6d724b06ad4e7b1d16abaccbd2dcd8bcad48fc70fb9414287597f"},
		{"batch of two", batch(message(), full()), "adbcf354fc522639f9f8e754ae5820a291e0ab0570fd0f95e5529222bae7b3d2"},
		{"permissive batch with a refused message", refused, "ae51ba13c05684a31a716e48520952e23efb06ec0250a5a06d56fe4da047eefd"},
	}
	for _, test := range tests {
		if got := fingerprint(t, test.submission); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// The canonical form in full, for those who compute it elsewhere.
func TestCanonicalForm(t *testing.T) {
	t.Parallel()
	const canonical = "version:1:1\n" +
		"org:36:0190f3a4-0000-7000-8000-000000000001\n" +
		"endpoint:12:POST /emails\n" +
		"email:0:\n" +
		"from:38:Müller, Jürgen <juergen@example.com>\n" +
		"to:13:a@example.org\n" + "to:22:Zoë <zoe@example.org>\n" +
		"cc:13:c@example.org\n" + "bcc:13:b@example.org\n" + "reply_to:13:r@example.org\n" +
		"subject:11:Grüße ✓\n" + "html:9:<p>Hi</p>\n" + "text:3:Hi\n\n" +
		"header:3:X-A\n" + "value:1:1\n" + "header:3:X-B\n" + "value:1:2\n" +
		"attachment:5:a.bin\n" + "content_type:15:application/pdf\n" + "content_id:3:cid\n" + "content:3:\x00\xff\n\n" +
		"attachment:5:empty\n" + "content:0:\n" +
		"tag:4:kind\n" + "value:7:receipt\n" +
		"metadata:5:empty\n" + "value:0:\n" + "metadata:5:order\n" + "value:1:7\n" +
		"scheduled_at:16:1769851800123456\n" + "expires_at:16:1769855400123456\n" +
		"on_unknown:4:hold\n" + "priority:4:high\n" + "provider:4:smtp\n" + "list_unsubscribe:4:true\n"
	want := fmt.Sprintf("%x", sha256.Sum256([]byte(canonical)))
	m := full()
	m.ListUnsubscribe = true
	if got := fingerprint(t, one(m)); got != want {
		t.Errorf("fingerprint = %s, want %s", got, want)
	}
}

// What the fingerprint leaves out: nothing but the difference between absent
// and empty, and times below the microsecond.
func TestSameRequestSameFingerprint(t *testing.T) {
	t.Parallel()
	same := map[string]outbox.Submission{
		"empty lists": changed(func(m *outbox.Message) {
			m.Cc, m.Tags, m.Headers, m.Attachments = []string{}, []outbox.Tag{}, map[string]string{}, []outbox.Attachment{}
		}),
		"another key":         func() outbox.Submission { s := one(message()); s.IdempotencyKey = "k"; return s }(),
		"refused, none given": func() outbox.Submission { s := one(message()); s.Refused = map[int]outbox.Refusal{}; return s }(),
	}
	for name, s := range same {
		if fingerprint(t, s) != fingerprint(t, one(message())) {
			t.Errorf("%s: another fingerprint", name)
		}
	}
	berlin := full()
	berlin.ScheduledAt = berlin.ScheduledAt.In(time.FixedZone("", 3600)).Add(999)
	if fingerprint(t, one(berlin)) != fingerprint(t, one(full())) {
		t.Error("the same time in another zone has another fingerprint")
	}
}

// A message that is not accepted counts by what it says and not by why: the
// reason, such as the domains of an API key, may change before the retry.
func TestRefusalIsNotInTheFingerprint(t *testing.T) {
	t.Parallel()
	accepted := batch(message(), full())
	refused := batch(message(), full())
	refused.Refused = map[int]outbox.Refusal{1: {Err: errors.New("not from this domain")}}
	if fingerprint(t, accepted) != fingerprint(t, refused) {
		t.Error("another fingerprint")
	}
}

// awkward are values that look like parts of the canonical form.
var awkward = rapid.SampledFrom([]string{"a", "b", "1", ":", "\n", "a\n", "cc:1:a", "value:1:a\n", "a\ncc:1:b\n", "email:0:\n", "é"})

// anyMessage draws from few values, so that two messages are often almost the
// same. It is not valid: the fingerprint does not rely on that.
func anyMessage(t *rapid.T) outbox.Message {
	list := rapid.SliceOfN(awkward, 0, 2)
	dict := rapid.MapOfN(awkward, awkward, 0, 2)
	text := rapid.OneOf(rapid.Just(""), awkward)
	at := rapid.Map(rapid.IntRange(0, 2), func(n int) time.Time {
		if n == 0 {
			return time.Time{}
		}
		return time.UnixMicro(int64(n)).UTC()
	})
	m := outbox.Message{
		From: text.Draw(t, "from"), To: list.Draw(t, "to"), Cc: list.Draw(t, "cc"), Bcc: list.Draw(t, "bcc"),
		ReplyTo: list.Draw(t, "reply_to"), Subject: text.Draw(t, "subject"), HTML: text.Draw(t, "html"),
		Text: text.Draw(t, "text"), Headers: dict.Draw(t, "headers"), Metadata: dict.Draw(t, "metadata"),
		ScheduledAt: at.Draw(t, "scheduled_at"), ExpiresAt: at.Draw(t, "expires_at"),
		OnUnknown: outbox.Policy(text.Draw(t, "on_unknown")), Priority: outbox.Priority(text.Draw(t, "priority")),
		Provider: text.Draw(t, "provider"), ListUnsubscribe: rapid.Bool().Draw(t, "list_unsubscribe"),
	}
	for range rapid.IntRange(0, 2).Draw(t, "attachments") {
		m.Attachments = append(m.Attachments, outbox.Attachment{
			Filename: text.Draw(t, "filename"), Content: []byte(text.Draw(t, "content")),
			ContentType: text.Draw(t, "content_type"), ContentID: text.Draw(t, "content_id"),
		})
	}
	for range rapid.IntRange(0, 2).Draw(t, "tags") {
		m.Tags = append(m.Tags, outbox.Tag{Name: text.Draw(t, "name"), Value: text.Draw(t, "value")})
	}
	return m
}

func anySubmission(t *rapid.T) outbox.Submission {
	s := outbox.Submission{Org: goldenOrg, Batch: true, Permissive: rapid.Bool().Draw(t, "permissive")}
	for range rapid.IntRange(1, 3).Draw(t, "messages") {
		s.Messages = append(s.Messages, anyMessage(t))
	}
	return s
}

// slots are the places of a submission that hold a string, in the order of the
// canonical form.
func slots(s *outbox.Submission) []*string {
	var all []*string
	for i := range s.Messages {
		m := &s.Messages[i]
		all = append(all, &m.From)
		for _, list := range [][]string{m.To, m.Cc, m.Bcc, m.ReplyTo} {
			for j := range list {
				all = append(all, &list[j])
			}
		}
		all = append(all, &m.Subject, &m.HTML, &m.Text)
		for j := range m.Attachments {
			a := &m.Attachments[j]
			all = append(all, &a.Filename, &a.ContentType, &a.ContentID)
		}
		for j := range m.Tags {
			all = append(all, &m.Tags[j].Name, &m.Tags[j].Value)
		}
		all = append(all, &m.Provider)
	}
	return all
}

// clone copies what slots points to.
func clone(s outbox.Submission) outbox.Submission {
	s.Messages = slices.Clone(s.Messages)
	for i := range s.Messages {
		m := &s.Messages[i]
		m.To, m.Cc, m.Bcc, m.ReplyTo = slices.Clone(m.To), slices.Clone(m.Cc), slices.Clone(m.Bcc), slices.Clone(m.ReplyTo)
		m.Attachments, m.Tags = slices.Clone(m.Attachments), slices.Clone(m.Tags)
	}
	return s
}

// sameIffEqual is the property: equal requests have equal fingerprints, and
// only they.
func sameIffEqual(t *rapid.T, a, b outbox.Submission) {
	t.Helper()
	equal := cmp.Equal(a, b, cmpopts.EquateEmpty())
	if equal != (fingerprint(t, a) == fingerprint(t, b)) {
		t.Fatalf("equal requests: %v, equal fingerprints: %v\n%+v\n%+v", equal, !equal, a, b)
	}
}

func injective(t *rapid.T) { sameIffEqual(t, anySubmission(t), anySubmission(t)) }

// injectiveWhenBytesMove: the end of one value does not become the beginning of
// the next unnoticed.
func injectiveWhenBytesMove(t *rapid.T) {
	before := anySubmission(t)
	after := clone(before)
	places := slots(&after)
	i := rapid.IntRange(0, len(places)-2).Draw(t, "place")
	left, right := places[i], places[i+1]
	joined := *left + *right
	cut := rapid.IntRange(0, len(joined)).Draw(t, "cut")
	*left, *right = joined[:cut], joined[cut:]
	sameIffEqual(t, before, after)
}

// injectiveWhenElementsMove: to ["a"], cc ["b"] is not to ["a", "b"].
func injectiveWhenElementsMove(t *rapid.T) {
	before := anySubmission(t)
	after := clone(before)
	m := &after.Messages[0]
	lists := []*[]string{&m.To, &m.Cc, &m.Bcc, &m.ReplyTo}
	i := rapid.IntRange(0, len(lists)-2).Draw(t, "list")
	joined := slices.Concat(*lists[i], *lists[i+1])
	cut := rapid.IntRange(0, len(joined)).Draw(t, "cut")
	*lists[i], *lists[i+1] = joined[:cut], joined[cut:]
	sameIffEqual(t, before, after)
}

// injectiveAgainstForgery: a value that spells out the field after it, in the
// canonical form or almost, does not stand for that field.
func injectiveAgainstForgery(t *rapid.T) {
	honest, forged := message(), message()
	a, b := awkward.Draw(t, "a"), awkward.Draw(t, "b")
	form := rapid.SampledFrom([]string{"\n%[1]s:%[2]d:%[3]s", "\n%[1]s:%[3]s", "\n%[2]d:%[3]s", "\n%[3]s", "%[3]s"}).Draw(t, "form")
	forge := func(name string) string { return a + fmt.Sprintf(form, name, len(b), b) }
	switch place := rapid.SampledFrom([]string{"to", "to, cc", "subject, html", "header", "tag"}).Draw(t, "place"); place {
	case "to":
		honest.To, forged.To = []string{a, b}, []string{forge("to")}
	case "to, cc":
		honest.To, honest.Cc, forged.To = []string{a}, []string{b}, []string{forge("cc")}
	case "subject, html":
		honest.Subject, honest.HTML, forged.Subject, forged.HTML = a, b, forge("html"), ""
	case "header":
		honest.Headers, forged.Headers = map[string]string{a: b}, map[string]string{forge("value"): ""}
	case "tag":
		honest.Tags, forged.Tags = []outbox.Tag{{Name: a, Value: b}}, []outbox.Tag{{Name: forge("value")}}
	}
	sameIffEqual(t, one(honest), one(forged))
}

func TestFingerprintIsInjective(t *testing.T) {
	t.Parallel()
	for name, property := range map[string]func(*rapid.T){
		"any two":        injective,
		"moved bytes":    injectiveWhenBytesMove,
		"moved elements": injectiveWhenElementsMove,
		"forged fields":  injectiveAgainstForgery,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, property)
		})
	}
}

// Org and endpoint are part of the request.
func TestFingerprintDependsOnTheScope(t *testing.T) {
	t.Parallel()
	stranger := one(message())
	stranger.Org = uuid.MustParse("0190f3a4-0000-7000-8000-000000000002")
	permissive := batch(message())
	permissive.Permissive = true
	seen := map[string]bool{}
	for _, s := range []outbox.Submission{one(message()), stranger, batch(message()), permissive} {
		seen[fingerprint(t, s)] = true
	}
	if len(seen) != 4 {
		t.Errorf("%d fingerprints, want 4", len(seen))
	}
}

// A key that a newer release stored cannot be compared. That is an error, never
// "another request" and never a new email.
func TestKeyOfANewerReleaseIsNotGuessedAt(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client := newClient(t, nil)
	s := submission(uuid.New(), "k")
	if _, err := client.EnqueueTx(context.Background(), tx, s); err != nil {
		t.Fatal(err)
	}
	before := tables(t, tx)
	const newer = "UPDATE outbox.idempotency_keys SET fingerprint_version = $1"
	if _, err := tx.Exec(context.Background(), newer, outbox.FingerprintVersion+1); err != nil {
		t.Fatal(err)
	}
	_, err := client.EnqueueTx(context.Background(), tx, s)
	if err == nil || errors.Is(err, outbox.ErrIdempotencyKeyReused) || !strings.Contains(err.Error(), "newer release") {
		t.Errorf("error = %v, want one about a newer release", err)
	}
	if diff := cmp.Diff(before, tables(t, tx)); diff != "" {
		t.Errorf("rows (-before +after):\n%s", diff)
	}
}
