package doctor

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// sound is an environment without a finding; the database is said where it matters.
var sound = map[string]string{
	"DATABASE_URL": "postgres://127.0.0.1:1/nothing?connect_timeout=1", "OUTBOXD_PROVIDERS": "resend",
	"RESEND_API_KEY": "re_key", "OUTBOXD_PUBLIC_URL": "https://mail.example.com",
}

// examine returns the findings in the sound environment with changes to it.
func examine(t *testing.T, changes map[string]string) map[string]Finding {
	t.Helper()
	environ := maps.Clone(sound)
	maps.Copy(environ, changes)
	var list []string
	for name, value := range environ {
		list = append(list, name+"="+value)
	}
	found := map[string]Finding{}
	for _, f := range Examine(t.Context(), list) {
		if (f.Verdict == OK) != (f.Advice == "") {
			t.Errorf("%s: %s with the advice %q", f.Check, f.Verdict, f.Advice)
		}
		found[f.Check] = f
	}
	return found
}

// expect checks one finding.
func expect(t *testing.T, when string, f Finding, want Verdict, text string) {
	t.Helper()
	if f.Verdict != want || !strings.Contains(f.Found, text) {
		t.Errorf("%s: %+v, want %s about %q", when, f, want, text)
	}
}

// lab is a database that is examined.
type lab struct {
	t    *testing.T
	url  string
	pool *pgxpool.Pool
}

func newLab(t *testing.T, url string) *lab {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &lab{t, url, pool}
}

// as is the same lab in a part of the test.
func (l *lab) as(t *testing.T) *lab { return &lab{t, l.url, l.pool} }

func (l *lab) exec(sql string) {
	l.t.Helper()
	if sql == "" {
		return
	}
	if _, err := l.pool.Exec(context.Background(), sql); err != nil {
		l.t.Fatalf("%s: %v", sql, err)
	}
}

func (l *lab) look(check string) Finding {
	l.t.Helper()
	return examine(l.t, map[string]string{"DATABASE_URL": l.url})[check]
}

// flip breaks something and mends it; the check is as before afterwards.
type flip struct {
	check         string
	breaks, mends string
	verdict       Verdict
	found         string
}

func (l *lab) flip(f flip) {
	l.t.Helper()
	before := l.look(f.check)
	l.exec(f.breaks)
	expect(l.t, f.breaks, l.look(f.check), f.verdict, f.found)
	l.exec(f.mends)
	if after := l.look(f.check); after.Verdict != before.Verdict || after.Verdict == f.verdict {
		l.t.Errorf("%s: %+v, before it was %+v", f.mends, after, before)
	}
}

const (
	email = `INSERT INTO outbox.emails (id, org_id, status, reason, created_at)
		VALUES (gen_random_uuid(), gen_random_uuid(), `
	noEmail = `DELETE FROM outbox.emails`
	job     = `INSERT INTO outbox.river_job (kind, queue, args, max_attempts, created_at, scheduled_at, state) VALUES `
	noJob   = `DELETE FROM outbox.river_job`
)

func alterDatabase(what string) string {
	return `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I ` + what + `', current_database()); END $$`
}

func setDatabase(what string) string   { return alterDatabase("SET " + what) }
func resetDatabase(name string) string { return alterDatabase("RESET " + name) }

// system changes a setting of the server.
func (l *lab) system(what string) {
	l.t.Helper()
	l.exec("ALTER SYSTEM " + what)
	l.exec("SELECT pg_reload_conf()")
}

// await looks again until a reload has come to all.
func (l *lab) await(condition func() bool, what string) {
	l.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(time.Minute); !condition(); {
		select {
		case <-tick.C:
		case <-timeout:
			l.t.Fatalf("it does not come: %s", what)
		}
	}
}
