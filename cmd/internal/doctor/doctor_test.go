package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/cmd/internal/app"
	"github.com/outboxd/outboxd/internal/localpg"
	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// Checks of the configuration: with the change there is a finding, without it none.
func TestConfigurationChecks(t *testing.T) {
	t.Parallel()
	set := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	before := examine(t, nil)
	for _, test := range []struct {
		check   string
		change  map[string]string
		verdict Verdict
		found   string
	}{
		{"configuration", set("OUTBOXD_ON_UNKNOWN", "pray", "OUTBOXD_LOG_FORMAT", "xml"), Problem, "OUTBOXD_ON_UNKNOWN"},
		{"configuration", set("OUTBOXD_SEND_TIMEOUT", "soon"), Problem, "OUTBOXD_SEND_TIMEOUT"},
		{"configuration", set("OUTBOXD_PROVIDERS", "pigeon"), Problem, "pigeon"},
		{"providers", set("RESEND_API_KEY", ""), Problem, "RESEND_API_KEY"},
		{"provider-encryption", set("RESEND_BASE_URL", "http://resend.example.com"), Problem, "RESEND_BASE_URL"},
		{"provider-encryption", set("SMTP_URL", "smtp://u:p@relay.example.com?tls=none"), Warning, "relay.example.com"},
		{"provider-encryption", set("SMTP_URL", "smtp://localhost"), OK, ""},
		{"time-relations", set("OUTBOXD_SEND_TIMEOUT", "40m"), Problem, "40m"},
		{"idempotency-retention", set("OUTBOXD_IDEMPOTENCY_TTL", "1h"), Warning, "resend"},
		{"doubt-times", set("OUTBOXD_UNKNOWN_WAIT", "2d"), Problem, "48h"},
		{"doubt-times", set("OUTBOXD_UNKNOWN_WAIT", "5s", "OUTBOXD_PROVIDERS", "postmark", "POSTMARK_SERVER_TOKEN", "t"), Warning, "postmark"},
		{"public-url", set("OUTBOXD_PUBLIC_URL", "http://localhost:8080"), Warning, "localhost"},
		{"public-url", set("OUTBOXD_PUBLIC_URL", ""), OK, "not set"},
		{"ops-address", set("OUTBOXD_OPS_ADDR", ":9090"), Warning, "without a password"},
		{"ops-address", set("OUTBOXD_OPS_ADDR", "0.0.0.0:9090", "OUTBOXD_ADMIN_PASSWORD", "Xq3fPz7LmN0w"), Warning, "in the clear"},
		{"ops-address", set("OUTBOXD_OPS_ADDR", "9090"), Problem, "9090"},
		{"ops-address", set("OUTBOXD_OPS_ADDR", "[::1]:9090"), OK, ""},
		{"admin-password", set("OUTBOXD_ADMIN_PASSWORD", "Xq3fPz"), Warning, "less than 12"},
		{"admin-password", set("OUTBOXD_ADMIN_PASSWORD", "Changeme"), Problem, "everybody"},
		{"admin-password", set("OUTBOXD_ADMIN_PASSWORD", "Xq3fPz7LmN0w"), OK, "long enough"},
		{"private-webhooks", set("OUTBOXD_WEBHOOK_ALLOW_PRIVATE", "true"), Warning, "inside this network"},
		{"rate-limits", set("OUTBOXD_RATE_LIMIT", "off"), Warning, "no client is limited"},
		{"rate-limits", set("OUTBOXD_RATE_LIMIT", "off", "OUTBOXD_ORG_RATE_LIMIT", "60/m"), OK, "off of an API key, 60/m of an org"},
		{"database-hosts", set("DATABASE_URL", "postgres://a.invalid,b.invalid/x?connect_timeout=1"), Problem, "b.invalid"},
		{"database-hosts", set("DATABASE_URL", "postgres://a.invalid,b.invalid/x?connect_timeout=1&target_session_attrs=read-write"), OK, ""},
	} {
		expect(t, "before", before[test.check], OK, "")
		expect(t, fmt.Sprintf("%s, %v", test.check, test.change), examine(t, test.change)[test.check], test.verdict, test.found)
	}
}

// Without a database, and with one that cannot be named, doctor says so and makes the
// checks that it can.
func TestNoDatabase(t *testing.T) {
	t.Parallel()
	for _, url := range []string{sound["DATABASE_URL"], "postgres://host:port", ""} {
		found := examine(t, map[string]string{"DATABASE_URL": url})
		expect(t, url, found["database"], Problem, "no connection")
		expect(t, url, found["providers"], OK, "resend")
		if f, made := found["durability"]; made {
			t.Errorf("durability without a database: %+v", f)
		}
	}
	found := examine(t, map[string]string{"DATABASE_URL": testdb.URL(t)})
	expect(t, "with a database", found["database"], OK, "Postgres")
	if len(found) != len(checks) {
		t.Errorf("%d findings, want %d", len(found), len(checks))
	}
}

// Checks of what is in the database: each finding comes and goes with its cause. F27
// is a wrong queue name.
func TestDatabaseChecks(t *testing.T) {
	t.Parallel()
	l := newLab(t, testdb.URL(t))
	for _, f := range []flip{
		{"read-write", setDatabase("default_transaction_read_only = on"), resetDatabase("default_transaction_read_only"), Problem, "read-only"},
		{"vacuum", "ALTER TABLE outbox.emails SET (autovacuum_enabled = false)", "ALTER TABLE outbox.emails RESET (autovacuum_enabled)", Warning, "emails"},
		{"migrations", "UPDATE outbox.schema_migrations SET version_id = version_id + 100000 WHERE version_id = 1", "UPDATE outbox.schema_migrations SET version_id = 1 WHERE version_id > 100000", Problem, "newer"},
		{"migrations", "DELETE FROM outbox.schema_migrations WHERE version_id = 2", "INSERT INTO outbox.schema_migrations (version_id, is_applied) VALUES (2, true)", Problem, "not migrated"},
		{"unlogged-tables", "ALTER TABLE outbox.stray_events SET UNLOGGED", "ALTER TABLE outbox.stray_events SET LOGGED", Problem, "stray_events"},
		{"public-rights", "GRANT SELECT ON outbox.emails TO PUBLIC", "REVOKE SELECT ON outbox.emails FROM PUBLIC", Problem, "emails"},
		{"public-rights", "GRANT USAGE ON SCHEMA outbox TO PUBLIC", "REVOKE USAGE ON SCHEMA outbox FROM PUBLIC", Problem, "the schema"},
		{
			"public-rights", "CREATE FUNCTION outbox.f() RETURNS integer LANGUAGE sql AS 'SELECT 1'", "DROP FUNCTION outbox.f()", Problem, "f()",
		},
		{
			"installation", `INSERT INTO outbox.installation (name, database_oid, database_name)
			SELECT 'staging', oid, datname FROM pg_database WHERE datname = current_database()`, "DELETE FROM outbox.installation", Problem, `"staging"`,
		},
		{
			"installation", `INSERT INTO outbox.installation (database_oid, database_name, held_before, held_because)
			SELECT oid, datname, now(), 'it is a copy' FROM pg_database WHERE datname = current_database();` + email + `'queued', NULL, now() - interval '1 hour')`,
			"DELETE FROM outbox.installation; " + noEmail, Problem, "1 emails are held",
		},
		{"workers", email + `'queued', NULL, now() - interval '1 hour')`, noEmail, Problem, "1 emails wait"},
		{"orphans", email + `'queued', NULL, now() - interval '1 hour')`, noEmail, Warning, "1 emails have no job"},
		{"stuck", email + `'queued', NULL, now() - interval '3 days')`, noEmail, Problem, "1 emails are older"},
		{
			"providers-out", `INSERT INTO outbox.providers (name, reason, out_since, probe_at) VALUES ('resend', 'unavailable', now(), now())`,
			"DELETE FROM outbox.providers", Warning, "resend (unavailable",
		},
		{
			"providers-out", `INSERT INTO outbox.providers (name, reason, out_since, probe_at) VALUES ('resend', 'misconfigured', now(), now())`,
			"DELETE FROM outbox.providers", Problem, "resend (misconfigured",
		},
		{"job-kinds", job + `('other', 'default', '{}', 3, now() - interval '1 minute', now(), 'available')`, noJob, Warning, "other"},
		{"queues", job + `('deliver_email', 'email', '{}', 3, now() - interval '1 minute', now(), 'available')`, noJob, Problem, "queue email"},
		{"paused-queues", `INSERT INTO outbox.river_queue (name, updated_at, paused_at) VALUES ('emails', now(), now())`, "DELETE FROM outbox.river_queue", Problem, "emails"},
		{
			"admin-keys", `INSERT INTO outbox.orgs (id, name) VALUES (gen_random_uuid(), 'acme');
			INSERT INTO outbox.api_keys (id, org_id, secret_hash, scopes, created_at) SELECT 'old', id, '', '{admin}', now() - interval '2 years' FROM outbox.orgs`,
			"DELETE FROM outbox.api_keys; DELETE FROM outbox.orgs", Warning, "old",
		},
		{"connections", alterDatabase("CONNECTION LIMIT 12"), alterDatabase("CONNECTION LIMIT -1"), Warning, "are allowed"},
	} {
		t.Run(f.check+" "+f.found, func(t *testing.T) { l.as(t).flip(f) })
	}
}

// Content that cannot be opened here is a problem, and what rekey has to do yet is
// said.
func TestEncryptionKeysCheck(t *testing.T) {
	t.Parallel()
	l := newLab(t, testdb.URL(t))
	look := func(keys string) Finding {
		return examine(t, map[string]string{"DATABASE_URL": l.url, "OUTBOXD_ENCRYPTION_KEYS": keys})["encryption-keys"]
	}
	key := func(id string) string { return id + ":" + strings.Repeat("A", 42) + "A=" }
	expect(t, "no keys", look(""), OK, "in clear")
	expect(t, "a key, and nothing to seal", look(key("a")), OK, "the key a")
	l.exec(`WITH e AS (` + email + `'queued', NULL, now()) RETURNING id, org_id)
		INSERT INTO outbox.email_contents (email_id, org_id, from_address, to_addresses, subject, recipients)
		SELECT id, org_id, 'a@example.com', '["b@example.com"]', 's', '{b@example.com}' FROM e`)
	expect(t, "a key, and an email in clear", look(key("a")), Warning, "1 emails or webhooks are in clear, 0 are sealed with an older key")
	l.exec(`UPDATE outbox.email_contents SET from_address = NULL, to_addresses = NULL, subject = NULL, recipients = NULL,
		key_id = 'a', sealed = '', sealed_body = ''`)
	expect(t, "sealed with the key", look(key("a")), OK, "the key a")
	expect(t, "sealed with an older key", look(key("b")+","+key("a")), Warning, "0 emails or webhooks are in clear, 1 are sealed with an older key")
	expect(t, "without its key", look(key("b")), Problem, "a (1)")
	expect(t, "without any key", look(""), Problem, "a (1)")
}

// What holds for stuck emails: who waits for a person is not stuck.
func TestNotStuck(t *testing.T) {
	t.Parallel()
	l := newLab(t, testdb.URL(t))
	for _, reason := range []string{"restored", "org_paused", "provider_misconfigured"} {
		l.exec(email + `'queued', '` + reason + `', now() - interval '9 days')`)
	}
	l.exec(email + `'unknown', 'in_doubt', now() - interval '9 days')`)
	expect(t, "policy retry", l.look("stuck"), Problem, "1 emails")
	l.exec("UPDATE outbox.emails SET on_unknown = 'hold'")
	expect(t, "policy hold", l.look("stuck"), OK, "")
}

// Server-wide settings, on a server of the test's own.
func TestServerChecks(t *testing.T) {
	t.Parallel()
	server, err := localpg.Start(t.Context(), localpg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	l := newLab(t, server.SuperuserURL())
	for _, f := range []flip{
		{"durability", "fsync = off", "fsync", Problem, "fsync"},
		{"durability", "full_page_writes = off", "full_page_writes", Problem, "full_page_writes"},
		{"durability", "synchronous_commit = off", "synchronous_commit", Problem, "synchronous_commit"},
		{"vacuum", "autovacuum = off", "autovacuum", Problem, "autovacuum"},
	} {
		before := l.look(f.check)
		expect(t, "before "+f.breaks, before, OK, "")
		l.system("SET " + f.breaks)
		l.await(func() bool { return l.look(f.check).Verdict != OK }, f.breaks)
		expect(t, f.breaks, l.look(f.check), f.verdict, f.found)
		l.system("RESET " + f.mends)
		l.await(func() bool { return l.look(f.check).Verdict == OK }, "RESET "+f.mends)
	}
	l.exec("ALTER ROLE postgres SET synchronous_commit = off")
	expect(t, "of the role", l.look("durability"), Problem, "synchronous_commit")
	l.exec("ALTER ROLE postgres SET synchronous_commit = local")
	expect(t, "local without standbys", l.look("durability"), OK, "")
	l.system("SET synchronous_standby_names = 'a'")
	l.await(func() bool { return l.look("durability").Verdict != OK }, "synchronous_standby_names")
	expect(t, "local with standbys", l.look("durability"), Problem, "failover")
	l.system("RESET synchronous_standby_names")

	expect(t, "no slot", l.look("replication-slots"), OK, "")
	l.exec("SELECT pg_create_physical_replication_slot('forgotten', true)")
	expect(t, "a slot", l.look("replication-slots"), Warning, "forgotten")
	l.exec("SELECT pg_drop_replication_slot('forgotten')")
	expect(t, "no slot", l.look("replication-slots"), OK, "")

	expect(t, "not migrated", l.look("migrations"), Problem, "outboxctl migrate up")
}

// A role is examined as itself.
func TestRole(t *testing.T) {
	t.Parallel()
	l, above := newLab(t, testdb.URL(t)), testdb.Superuser(t)
	name := fmt.Sprintf("outboxd_doctor_%d", time.Now().UnixNano())
	if _, err := above.Exec(t.Context(), "CREATE ROLE "+name+" LOGIN PASSWORD 'x'"); err != nil {
		t.Skipf("the role of DATABASE_URL may not make others: %v", err)
	}
	alter := func(what string) {
		t.Helper()
		if _, err := above.Exec(t.Context(), "ALTER ROLE "+name+" "+what); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := above.Exec(context.Background(), "DROP ROLE "+name); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(l.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "x")
	own := &lab{t, u.String(), l.pool}
	expect(t, "ordinary", own.look("role"), OK, "does not own")
	alter("BYPASSRLS")
	expect(t, "bypass", own.look("role"), Warning, "BYPASSRLS")
	alter("NOBYPASSRLS SUPERUSER")
	expect(t, "superuser", own.look("role"), Warning, "superuser")
	alter("NOSUPERUSER")
	expect(t, "ordinary again", own.look("role"), OK, "")
	// Without any right, what cannot be found out is said, and is no problem.
	expect(t, "no right", own.look("migrations"), Warning, "permission denied")
}

// A transaction that stays open is found as long as it does.
func TestLongTransaction(t *testing.T) {
	t.Parallel()
	l := newLab(t, testdb.URL(t))
	p := &patient{pool: l.pool}
	look := func(want Verdict) {
		t.Helper()
		if f := transactionsOver(t.Context(), p, "0 seconds"); f.Verdict != want {
			t.Errorf("%+v, want %s", f, want)
		}
	}
	look(OK)
	tx, err := l.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	look(Warning)
	expect(t, "not yet long", l.look("long-transactions"), OK, "")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	look(OK)
}

// Time-outs come from DATABASE_URL, whose settings win over ours.
func TestTimeOuts(t *testing.T) {
	t.Parallel()
	base := testdb.URL(t)
	with := func(query string) Finding {
		return newLab(t, base+"&"+query).look("time-outs")
	}
	if !strings.Contains(base, "?") {
		base += "?application_name=doctor"
	}
	expect(t, "ours", newLab(t, base).look("time-outs"), OK, "")
	expect(t, "too short", with("statement_timeout=1000"), Problem, "statement_timeout")
	expect(t, "off", with("lock_timeout=0"), Warning, "lock_timeout")
	expect(t, "off", with("idle_in_transaction_session_timeout=0"), Warning, "idle_in_transaction_session_timeout")
}

// A worker that lives is counted, and its session has what it asks for.
func TestWorkerIsSeen(t *testing.T) {
	t.Parallel()
	l := newLab(t, testdb.URL(t))
	expect(t, "none", l.look("workers"), Warning, "no worker")
	cfg, err := app.LoadConfig([]string{"DATABASE_URL=" + l.url, "OUTBOXD_PROVIDERS=resend", "RESEND_API_KEY=re_key"})
	if err != nil {
		t.Fatal(err)
	}
	config, err := cfg.WorkerConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	worker, err := outbox.NewWorker(l.pool, config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- worker.Run(ctx, func() { close(started) }) }()
	<-started
	expect(t, "one", l.look("workers"), OK, "1 alive")
	expect(t, "its session", l.look("sessions"), OK, "")
	expect(t, "its host", l.look("vanished-hosts"), OK, "")
	expect(t, "its database", l.look("installation"), OK, "recorded")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	expect(t, "none again", l.look("workers"), Warning, "no worker")
}

// A database that cannot be had on one machine is described to the checks.
func TestJudgements(t *testing.T) {
	t.Parallel()
	verified := &tls.Config{ServerName: "db.example.com"}
	require := &tls.Config{InsecureSkipVerify: true} // what sslmode=require is
	verifyCA := &tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error { return nil }}
	for name, test := range map[string]struct {
		got     Finding
		verdict Verdict
	}{
		"Postgres 13":              {supported("13.1", 130001), Problem},
		"Postgres 14":              {supported("14.0", 140000), OK},
		"a standby":                {judgeReadOnly(true, true), Problem},
		"a primary":                {judgeReadOnly(false, false), OK},
		"no TLS":                   {judgeEncryption("db.example.com", false, nil, false), Problem},
		"no TLS, as said":          {judgeEncryption("db.example.com", false, nil, true), Warning},
		"no TLS, this machine":     {judgeEncryption("127.0.0.1", false, nil, false), OK},
		"no TLS, a Unix socket":    {judgeEncryption("/run/postgresql", false, nil, false), OK},
		"sslmode=require":          {judgeEncryption("db.example.com", true, require, false), Warning},
		"sslmode=verify-ca":        {judgeEncryption("db.example.com", true, verifyCA, false), OK},
		"sslmode=verify-full":      {judgeEncryption("db.example.com", true, verified, false), OK},
		"keepalive is lost":        {judgeVanished("db.example.com", map[string]string{"tcp_user_timeout": "0"}), Warning},
		"keepalive, a Unix socket": {judgeVanished("/run/postgresql", map[string]string{"tcp_user_timeout": "0"}), OK},
		"keepalive is kept":        {judgeVanished("db.example.com", nil), OK},
		"clock":                    {judgeClock(300 * time.Millisecond), OK},
		"clock is behind":          {judgeClock(-2 * time.Second), Warning},
		"clock is far ahead":       {judgeClock(time.Minute), Problem},
		"wraparound":               {judgeVacuum(true, 1_900_000_000, ""), Problem},
		"wraparound is far":        {judgeVacuum(true, 1_100_000_000, ""), Warning},
		"young":                    {judgeVacuum(true, 1_000, ""), OK},
		"time-outs of one only":    {worst([]Finding{ok(""), warning("", "x"), ok("")}), Warning},
	} {
		if test.got.Verdict != test.verdict {
			t.Errorf("%s: %+v, want %s", name, test.got, test.verdict)
		}
	}
}

// A connection that keeps no session, or none at all, is a problem for workers. The
// tests of package outbox have a pooler in transaction mode.
func TestNoSession(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(sound["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if f := sessions(t.Context(), &patient{pool: pool}); f.Verdict != Problem {
		t.Errorf("%+v", f)
	}
}

// docs/doctor.md has a row for each check, and no other.
func TestEveryCheckIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, match[1])
	}
	if !slices.Equal(rows, Names()) {
		t.Errorf("documented: %v\nthere are: %v", rows, Names())
	}
}
