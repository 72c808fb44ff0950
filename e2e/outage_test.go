package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/internal/pgproxy"
)

// Texts by which the proxy knows the transaction of a submission.
const (
	insertsKey   = "INSERT INTO outbox.idempotency_keys"
	insertsEmail = "INSERT INTO outbox.emails"
)

// startBehind starts an api process whose database connections go through the
// proxy.
func (in *installation) startBehind(proxy *pgproxy.Proxy, env ...string) *process {
	in.t.Helper()
	// Of repeated variables the last one counts. The time-out is longer than the
	// default of 2 s, which TestAPIConnectionSettings checks: what the proxy holds
	// shall wait for the test, however slow the machine.
	url := proxy.URL() + "&idle_in_transaction_session_timeout=60s"
	return in.start("api", append([]string{"OUTBOXD_PROVIDERS=smtp", "DATABASE_URL=" + url}, env...)...)
}

// emails counts the emails that came of a request.
func (in *installation) emails(number int) int {
	in.t.Helper()
	return in.count(`SELECT count(*) FROM outbox.emails e JOIN outbox.email_contents c ON c.email_id = e.id
		WHERE c.subject = $1`, fmt.Sprint("Mail ", number))
}

// await waits for a signal.
func await[T any](t *testing.T, what string, signal <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-signal:
	case <-time.After(patience):
		t.Fatalf("%s: it did not happen", what)
	}
	return v
}

// heard is what a request that runs beside the test came to.
type heard struct {
	answer
	err error
}

func background(method, url, token, key string, body any) <-chan heard {
	done := make(chan heard, 1)
	go func() {
		a, err := call(method, url, token, key, body)
		done <- heard{a, err}
	}()
	return done
}

// checkRetryAdvice checks a 503: it says what to do.
func checkRetryAdvice(t *testing.T, a answer) {
	t.Helper()
	var problem struct{ Name, Message string }
	a.decode(t, &problem)
	if a.status != http.StatusServiceUnavailable || problem.Name != "service_unavailable" ||
		!strings.Contains(problem.Message, "same idempotency key") || a.header.Get("Retry-After") == "" {
		t.Errorf("answer %d %s, want 503 with the advice to retry with the same key", a.status, a.body)
	}
}

// The connection breaks during COMMIT, so that nobody has told the process
// whether it happened. It finds out, or says that it could not; it never
// inserts again.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	in := install(t)
	proxy := pgproxy.New(t, in.databaseURL)
	base := in.startBehind(proxy).url("api")
	submit := func(number int, key string) answer {
		t.Helper()
		return mustCall(t, "POST", base+"/emails", in.token, key, email(number))
	}
	for number, test := range []struct {
		name      string
		action    pgproxy.Action
		key       string
		committed bool
	}{
		{"before, with a key", pgproxy.CutBefore, "before", false},
		{"before, without", pgproxy.CutBefore, "", false},
		{"after, with a key", pgproxy.CutAfter, "after", true},
		{"after, without", pgproxy.CutAfter, "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			rule := proxy.On(pgproxy.Commit, test.action, pgproxy.Saw(insertsEmail))
			first := submit(number, test.key)
			await(t, "the cut", rule.Fired())
			want := 0
			if test.committed {
				want = 1
				if first.status != http.StatusAccepted {
					t.Errorf("answer %d %s, want 202", first.status, first.body)
				}
			} else {
				checkRetryAdvice(t, first)
			}
			if n := in.emails(number); n != want {
				t.Errorf("%d emails, want %d", n, want)
			}
			if test.key == "" {
				return
			}
			retry := submit(number, test.key)
			if retry.status != http.StatusAccepted || retry.replayed != test.committed {
				t.Errorf("retry: answer %d, replayed %v, want 202, %v", retry.status, retry.replayed, test.committed)
			}
			if test.committed && !bytes.Equal(retry.body, first.body) {
				t.Errorf("retry: %s, first %s", retry.body, first.body)
			}
			if n := in.emails(number); n != 1 {
				t.Errorf("%d emails after the retry, want 1", n)
			}
		})
	}
	in.wantRows(3, 2)
}

// The commit has happened, and then the whole database is away.
func TestLostCommitCannotBeLookedUp(t *testing.T) {
	t.Parallel()
	in := install(t)
	proxy := pgproxy.New(t, in.databaseURL)
	base := in.startBehind(proxy).url("api")
	never := make(chan struct{})
	rule := proxy.On(pgproxy.Commit, pgproxy.HoldAfter(never), pgproxy.Saw(insertsKey))
	first := background("POST", base+"/emails", in.token, "key", email(1))
	await(t, "the commit", rule.Fired())
	proxy.Refuse()
	proxy.CutAll()
	checkRetryAdvice(t, await(t, "the answer", first).answer)

	proxy.Accept()
	var retry answer
	eventually(t, "the API takes the retry", func() bool {
		retry = mustCall(t, "POST", base+"/emails", in.token, "key", email(1))
		return retry.status == http.StatusAccepted
	})
	if !retry.replayed {
		t.Errorf("the retry is not a replay: %s", retry.body)
	}
	in.wantRows(1, 1)
}

// Every connection of the pool breaks after the commit, as when the database
// fails over. Some of those at rest are dead too and do not show it.
func TestLostCommitWithTheWholePool(t *testing.T) {
	t.Parallel()
	in := install(t)
	proxy := pgproxy.New(t, in.databaseURL)
	base := in.startBehind(proxy).url("api")

	// Held together, these submissions of different orgs have a connection each.
	var tokens []string
	for i := range 4 {
		tokens = append(tokens, in.newOrg(fmt.Sprint("org-", i)))
	}
	release := make(chan struct{})
	warm := proxy.On(pgproxy.Commit, pgproxy.HoldBefore(release), pgproxy.Always())
	var warmed []<-chan heard
	for i, token := range tokens {
		warmed = append(warmed, background("POST", base+"/emails", token, "", email(i)))
	}
	eventually(t, "all are held", func() bool { return warm.Count() == len(warmed) })
	warm.Disarm()
	close(release)
	for _, w := range warmed {
		if o := await(t, "the answer", w); o.status != http.StatusAccepted {
			t.Fatalf("answer %d %s, %v", o.status, o.body, o.err)
		}
	}

	rule := proxy.On(pgproxy.Commit, pgproxy.HoldAfter(make(chan struct{})), pgproxy.Saw(insertsEmail))
	first := background("POST", base+"/emails", in.token, "", email(9))
	await(t, "the commit", rule.Fired())
	proxy.CutAll()
	if o := await(t, "the answer", first); o.status != http.StatusAccepted {
		t.Errorf("answer %d %s, %v; want 202", o.status, o.body, o.err)
	}
	if n := in.emails(9); n != 1 {
		t.Errorf("%d emails, want 1", n)
	}
}

// A client that goes away while its submission is being committed leaves an
// email, or none, but no doubt.
func TestClientGoneDuringCommit(t *testing.T) {
	t.Parallel()
	const others = 20
	in := install(t)
	proxy := pgproxy.New(t, in.databaseURL)
	api := in.startBehind(proxy)
	base := api.url("api")
	release := make(chan struct{})
	rule := proxy.On(pgproxy.Commit, pgproxy.HoldBefore(release), pgproxy.Saw(insertsKey))
	client, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() {
		_, err := callWithin(client, "POST", base+"/emails", in.token, "gone", email(0))
		left <- err
	}()
	await(t, "the hold", rule.Fired())
	leave()
	if err := await(t, "the client leaves", left); err == nil {
		t.Fatal("the client got an answer")
	}
	// The process learns of it from the network, as it does of these.
	var heards []<-chan heard
	for i := range others {
		heards = append(heards, background("POST", base+"/emails", in.token, fmt.Sprint("other-", i), email(i+1)))
	}
	for _, h := range heards {
		if a := await(t, "the answer of another", h); a.err != nil || a.status != http.StatusAccepted {
			t.Fatalf("answer %d %s, error %v", a.status, a.body, a.err)
		}
	}
	close(release)
	accepted := 0
	api.await("the log line of the lost request", func() string {
		accepted = 0
		for _, line := range api.lines {
			if strings.Contains(line, `"msg":"request"`) && strings.Contains(line, `"status":202`) {
				accepted++
			}
		}
		if accepted == others+1 {
			return "found"
		}
		return ""
	})
	if n := in.emails(0); n != 1 {
		t.Errorf("%d emails, want 1", n)
	}
	if retry := mustCall(t, "POST", base+"/emails", in.token, "gone", email(0)); retry.status != http.StatusAccepted || !retry.replayed {
		t.Errorf("retry: answer %d, replayed %v, want a replay", retry.status, retry.replayed)
	}
	in.wantRows(others+1, others+1)
}

// What bounds a request is in force on the connections of a real process,
// whatever the database's own defaults are.
func TestAPIConnectionSettings(t *testing.T) {
	t.Parallel()
	in := install(t)
	in.exec(`
		DO $$ BEGIN
			EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database());
			EXECUTE format('ALTER DATABASE %I SET lock_timeout = 0', current_database());
		END $$;
		CREATE TABLE public.seen (name text, value text);
		CREATE FUNCTION public.note_settings() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.seen SELECT name, current_setting(name) FROM unnest(ARRAY[
				'application_name', 'lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout',
				'default_transaction_isolation', 'transaction_isolation']) name;
			RETURN NULL;
		END $$;
		CREATE TRIGGER note_settings AFTER INSERT ON outbox.idempotency_keys
			FOR EACH STATEMENT EXECUTE FUNCTION public.note_settings();`)
	base := in.start("api", "OUTBOXD_PROVIDERS=smtp").url("api")
	if a := mustCall(t, "POST", base+"/emails", in.token, "key", email(1)); a.status != http.StatusAccepted {
		t.Fatalf("answer %d %s", a.status, a.body)
	}

	if diff := cmp.Diff([]string{
		"application_name outboxd-api",
		"default_transaction_isolation read committed",
		"idle_in_transaction_session_timeout 2s",
		"lock_timeout 20ms", // of a transaction that several may share
		"statement_timeout 10s",
		"transaction_isolation read committed",
	}, in.texts("SELECT name || ' ' || value FROM public.seen ORDER BY name")); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}
