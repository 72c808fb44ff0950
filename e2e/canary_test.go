package e2e_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers/providertest"
)

// canary is in each part of an email that somebody wrote or reads.
const canary = "canary"

func canaryEmail(number int) map[string]any {
	return map[string]any{
		"from": "Canary Shop <canary-from@example.com>", "reply_to": "canary-reply@example.com",
		"to":  []string{fmt.Sprintf("Canary Jane <canary-to-%d@example.org>", number), "canary-two@example.org"},
		"cc":  "canary-cc@example.org",
		"bcc": "canary-bcc@example.org", "subject": fmt.Sprint("canary-subject ", number),
		"text": "canary-text", "html": "<p>canary-html</p>",
		"headers": map[string]string{"X-Canary": "canary-header"}, "metadata": map[string]string{"canary-name": "canary-value"},
		"attachments": []map[string]string{{
			"filename": "canary-file.txt", "content": base64.StdEncoding.EncodeToString([]byte("canary-content")),
		}},
	}
}

// encoded are the ways in which a word may lie in a dump, in lower case.
func encoded(word string) []string {
	forms := []string{word, hex.EncodeToString([]byte(word))}
	for shift := range 3 { // base64 depends on what is before
		whole := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + word))
		forms = append(forms, strings.ToLower(whole[4*((shift+2)/3):len(whole)-4]))
	}
	return forms
}

// quoting refuses the first request for each of the emails that there is a status
// for, with a text that quotes them, and takes all others.
func quoting(statuses map[string]int) func(providertest.Seen) providertest.Reaction {
	var mu sync.Mutex
	return func(r providertest.Seen) providertest.Reaction {
		mu.Lock()
		defer mu.Unlock()
		for subject, status := range statuses {
			if !bytes.Contains(r.Body, []byte(subject)) {
				continue
			}
			delete(statuses, subject)
			return providertest.Reply(status, fmt.Sprintf(`{"name":"validation_error","statusCode":%d,"message":`+
				`"%s to Canary Jane <canary-to@example.org>, canary-two@example.org: canary-text <p>canary-html</p> `+
				`canary-header canary-file.txt canary-content"}`, status, subject))
		}
		return providertest.Accept()
	}
}

// Nothing that programs print, no job and no metric holds what is in an email or is
// secret, whatever goes wrong and however much of it a provider quotes; with keys to
// seal it, neither does a dump of the database but for the tables that say so, and of
// these no more than who is suppressed when its time is over.
func TestCanary(t *testing.T) {
	t.Parallel()
	need(t, "pg_dump")
	in := install(t)
	statuses := map[string]int{}
	for i, status := range []int{422, 403, 429, 500, 503} {
		statuses[canaryEmail(i)["subject"].(string)] = status
	}
	emails := len(statuses) + 1
	provider := providertest.NewHTTP(t, providertest.Resend)
	provider.Respond(quoting(statuses))
	sealKey := base64.StdEncoding.EncodeToString([]byte("a-sealing-key-of-32-bytes-length"))
	const providerKey, password = "re_canary_provider_key", "canary-password-of-admin"
	env := []string{
		"OUTBOXD_PROVIDERS=resend", "RESEND_API_KEY=" + providerKey, "RESEND_BASE_URL=" + provider.URL(),
		"RESEND_WEBHOOK_SECRET=" + canaryHookSecret, "OUTBOXD_ADMIN_PASSWORD=" + password,
		"OUTBOXD_ENCRYPTION_KEYS=k1:" + sealKey,
	}
	api, worker := in.start("api", env...), in.start("worker", env...).ready()
	base := api.url("api")
	for i := range emails {
		a := mustCall(t, http.MethodPost, base+"/emails", in.token, fmt.Sprint("key-", i), canaryEmail(i))
		if a.status != http.StatusAccepted {
			t.Fatalf("submission %d: %d %s", i, a.status, a.body)
		}
	}
	in.refuseCanaries(base)
	in.awaitEnded()
	if sent := in.count("SELECT count(*) FROM outbox.emails WHERE status = 'sent'"); sent != emails-1 {
		t.Errorf("%d emails are sent, want all but the one that was refused with 422: %d", sent, emails-1)
	}
	in.reportComplaint(base, provider.Accepted()[0])
	mustCall(t, http.MethodPost, base+"/suppressions", in.token, "", map[string]string{"address": "canary-two@example.org"})
	metrics := func(p *process) string {
		return string(mustCall(t, http.MethodGet, p.url("ops")+"/metrics", "", "", nil).body)
	}
	told := metrics(api) + metrics(worker)
	worker.stop(syscall.SIGTERM)
	api.stop(syscall.SIGTERM)

	secrets := []string{in.token, sealKey, providerKey, password, canaryHookSecret}
	for name, text := range map[string]string{
		"api printed": api.output(), "worker printed": worker.output(), "metrics": told,
		"jobs": strings.Join(in.texts("SELECT to_jsonb(j)::text FROM outbox.river_job j"), "\n"),
	} {
		for _, word := range append(secrets, canary) {
			if line := lineWith(text, word); line != "" {
				t.Errorf("%s: %q in %s", name, word, line)
			}
		}
	}
	if found := in.dumpedWith([]string{in.token, sealKey, providerKey, password}); found != nil {
		t.Errorf("a dump shows secrets in %v", found)
	}
	wantDumped := func(when string, want ...string) {
		t.Helper()
		if found := in.dumpedWith(encoded(canary)); !slices.Equal(found, want) {
			t.Errorf("%s a dump shows content in %v, want %v", when, found, want)
		}
	}
	// The documented exceptions: who is not to be written to, and what a provider said
	// about whom.
	wantDumped("sealed", "outbox.events", "outbox.suppressions")
	if purged := in.purgeContents(); purged != emails {
		t.Errorf("%d emails were purged, want %d", purged, emails)
	}
	wantDumped("purged", "outbox.suppressions")
}

// purgeContents does what workers do regularly, for all that is over.
func (in *installation) purgeContents() (emails int) {
	in.t.Helper()
	pool, err := pgxpool.New(in.t.Context(), in.databaseURL)
	if err != nil {
		in.t.Fatal(err)
	}
	defer pool.Close()
	if emails, err = outbox.PurgeContents(in.t.Context(), pool, time.Millisecond); err != nil {
		in.t.Fatal(err)
	}
	return emails
}

const canaryHookSecret = "whsec_Y2FuYXJ5LXdlYmhvb2stc2VjcmV0LW9mLTMyLWJ5dGU="

// refuseCanaries submits what is refused, with the canary in whatever is wrong.
func (in *installation) refuseCanaries(base string) {
	in.t.Helper()
	for field, value := range map[string]any{
		"to": "canary nobody", "from": "canary@@example.com", "subject": "canary\r\nBcc: canary@example.org",
		"headers": map[string]string{"X-Canary\n": "canary"},
		"canary":  "unknown", "scheduled_at": "canary", "provider": "canary", "text": 1,
		"metadata": map[string]string{strings.Repeat("canary", 100): "canary"},
	} {
		mail := maps.Clone(canaryEmail(0))
		mail[field] = value
		if a := mustCall(in.t, http.MethodPost, base+"/emails", in.token, "", mail); a.status/100 != 4 {
			in.t.Errorf("%s: answer %d %s, want a refusal", field, a.status, a.body)
		}
	}
	for _, path := range []string{
		"/emails/canary", "/emails?to=canary@example.org", "/emails?canary=canary", "/canary@example.org",
		"/unsubscribe/canary", "/suppressions/canary@example.org",
	} {
		mustCall(in.t, http.MethodGet, base+path, in.token, "", nil)
		mustCall(in.t, http.MethodGet, base+path, "ob_canary_canary", "", nil)
	}
}

// reportComplaint has the provider report that a recipient complained of a mail which it accepted.
func (in *installation) reportComplaint(base string, message providertest.Accepted) {
	in.t.Helper()
	posts, err := providertest.ResendWebhooks{Secret: canaryHookSecret}.Post([]providertest.Event{{
		Kind: providertest.EventComplained, ID: "1", At: time.Now(), Recipient: "canary-two@example.org", Message: message,
	}}, time.Now())
	if err != nil {
		in.t.Fatal(err)
	}
	for _, post := range posts {
		req, err := http.NewRequestWithContext(in.t.Context(), http.MethodPost, base+"/hooks/resend", bytes.NewReader(post.Body))
		if err != nil {
			in.t.Fatal(err)
		}
		req.Header = post.Header
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			in.t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			in.t.Errorf("the report is answered with %s", resp.Status)
		}
	}
}

// dumpedWith returns the tables whose rows in a dump contain one of the words.
func (in *installation) dumpedWith(words []string) (tables []string) {
	in.t.Helper()
	dump, err := exec.CommandContext(in.t.Context(), "pg_dump", "--dbname", in.databaseURL, "--data-only", "--enable-row-security").Output()
	if err != nil {
		in.t.Fatalf("pg_dump: %v", err)
	}
	table := ""
	for line := range strings.Lines(strings.ToLower(string(dump))) {
		if rest, ok := strings.CutPrefix(line, "copy "); ok {
			table, _, _ = strings.Cut(rest, " ")
			continue
		}
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(line, strings.ToLower(word)) }) {
			tables = append(tables, table)
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// lineWith returns the first line that contains a word, in either case.
func lineWith(text, word string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(strings.ToLower(line), strings.ToLower(word)) {
			return line
		}
	}
	return ""
}
