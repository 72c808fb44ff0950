package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/cmd/internal/doctor"
	"github.com/outboxd/outboxd/internal/testdb"
)

// onRestored returns the command on a database with held emails: 600 of acme, which
// are a day old, and 2 of other, which are a minute old.
func onRestored(t *testing.T) (command, *pgxpool.Pool) {
	t.Helper()
	url := testdb.URL(t)
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, sql := range []string{
		`INSERT INTO outbox.orgs (id, name) VALUES (gen_random_uuid(), 'acme'), (gen_random_uuid(), 'other')`,
		`INSERT INTO outbox.emails (id, org_id, status, reason, created_at)
		SELECT gen_random_uuid(), o.id, 'queued', 'restored', now() - CASE o.name WHEN 'acme' THEN interval '1 day' ELSE interval '1 minute' END
		FROM outbox.orgs o, generate_series(1, 600) n WHERE o.name = 'acme' OR n <= 2`,
		`INSERT INTO outbox.installation (database_oid, database_name, held_before, held_because) VALUES (1, 'before', now(), 'it is a copy')`,
	} {
		if _, err := pool.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return func(args ...string) (string, string, int) {
		var out, errOut strings.Builder
		code := run(append([]string{"--database-url", url}, args...), &out, &errOut)
		return out.String(), errOut.String(), code
	}, pool
}

// F18: what is held is shown by org, and released or canceled in batches, by org and
// by age. The hold ends with the last of them.
func TestF18RestoredCommand(t *testing.T) {
	t.Parallel()
	ctl, pool := onRestored(t)
	emails := func(condition string) (n int) {
		t.Helper()
		if err := pool.QueryRow(context.Background(), "SELECT count(*) FROM outbox.emails WHERE "+condition).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	out, errOut, code := ctl("restored")
	if code != 0 || !strings.Contains(out, "600 emails") || !strings.Contains(out, "it is a copy") {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
	out, errOut, code = ctl("restored", "release", "--younger-than", "1h")
	if code != 0 || !strings.Contains(out, "2 emails released. Others are still held") || emails("released_at IS NOT NULL") != 2 {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
	if _, errOut, code = ctl("restored", "cancel", "--org", "nobody"); code != 1 || !strings.Contains(errOut, `no org "nobody"`) {
		t.Errorf("code %d: %s", code, errOut)
	}
	if out, _, _ = ctl("restored", "cancel", "--org", "other"); !strings.Contains(out, "0 emails canceled") {
		t.Errorf("released ones were canceled: %s", out)
	}
	out, errOut, code = ctl("restored", "cancel", "--org", "acme", "--older-than", "12h", "--json")
	var result struct {
		Canceled int
		Ended    bool
	}
	if err := json.Unmarshal([]byte(out), &result); code != 0 || err != nil || result.Canceled != 600 || !result.Ended {
		t.Errorf("code %d, %v: %s", code, err, out)
	}
	if !strings.Contains(errOut, "500 canceled\n600 canceled\n") {
		t.Errorf("progress: %s", errOut)
	}
	if n := emails("status = 'canceled' AND reason = 'restored' AND reason_detail LIKE 'by outboxctl%' AND ended_at IS NOT NULL"); n != 600 {
		t.Errorf("%d are canceled, want 600", n)
	}
	if out, _, _ = ctl("restored", "show"); !strings.Contains(out, "Nothing is held") {
		t.Errorf("afterwards: %s", out)
	}
}

// F18: adopting releases all, each with a job that comes at once.
func TestF18AdoptCommand(t *testing.T) {
	t.Parallel()
	ctl, pool := onRestored(t)
	out, errOut, code := ctl("restored", "adopt", "--installation", "production")
	if code != 0 || !strings.Contains(out, "602 emails released. None is held any more") {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
	var jobs int
	const due = `SELECT count(DISTINCT args ->> 'email_id') FROM outbox.river_job WHERE kind = 'deliver_email' AND state = 'available'`
	if err := pool.QueryRow(context.Background(), due).Scan(&jobs); err != nil || jobs != 602 {
		t.Errorf("%d emails have a job, %v", jobs, err)
	}
	if out, _, _ = ctl("restored", "--json", "--installation", "production"); !strings.Contains(out, `"installation": "production"`) {
		t.Errorf("afterwards: %s", out)
	}
}

// Doctor's exit code says whether there is a problem; its JSON holds every check.
func TestDoctorCommand(t *testing.T) {
	t.Parallel()
	ctl, _ := onRestored(t)
	out, errOut, code := ctl("doctor", "--json")
	var findings []doctor.Finding
	if err := json.Unmarshal([]byte(out), &findings); err != nil || code != 1 || len(findings) != len(doctor.Names()) {
		t.Fatalf("code %d, %v, %d findings: %s", code, err, len(findings), errOut)
	}
	i := slices.IndexFunc(findings, func(f doctor.Finding) bool { return f.Check == "installation" })
	if f := findings[i]; f.Verdict != doctor.Problem || !strings.Contains(f.Found, "602 emails are held") {
		t.Errorf("%+v", f)
	}
	if out, _, _ = ctl("doctor"); !strings.Contains(out, "\nproblem  installation") || !strings.Contains(out, "-> outboxctl restored") {
		t.Errorf("text: %s", out)
	}
}

// Warnings count only when they are asked for.
func TestDoctorVerdict(t *testing.T) {
	t.Parallel()
	fine, odd, bad := doctor.Finding{Verdict: doctor.OK}, doctor.Finding{Verdict: doctor.Warning}, doctor.Finding{Verdict: doctor.Problem}
	for _, test := range []struct {
		findings []doctor.Finding
		strict   bool
		fails    bool
	}{
		{[]doctor.Finding{fine}, true, false},
		{[]doctor.Finding{fine, odd}, false, false},
		{[]doctor.Finding{fine, odd}, true, true},
		{[]doctor.Finding{fine, bad}, false, true},
	} {
		if err := (doctorCmd{Strict: test.strict}).verdict(test.findings); (err != nil) != test.fails {
			t.Errorf("%v, strict %v: %v", test.findings, test.strict, err)
		}
	}
}
