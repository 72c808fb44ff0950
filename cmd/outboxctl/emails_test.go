package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// mailroom is a database with emails of two orgs, and the command on it.
type mailroom struct {
	command
	t      *testing.T
	pool   *pgxpool.Pool
	client *outbox.Client
	orgs   map[string]uuid.UUID
}

func newMailroom(t *testing.T) *mailroom {
	t.Helper()
	url := testdb.URL(t)
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	m := &mailroom{t: t, pool: pool, orgs: map[string]uuid.UUID{}, command: func(args ...string) (string, string, int) {
		var out, errOut strings.Builder
		code := run(append([]string{"--database-url", url}, args...), &out, &errOut)
		return out.String(), errOut.String(), code
	}}
	for _, name := range []string{"acme", "other"} {
		if m.orgs[name], err = api.CreateOrg(context.Background(), pool, api.Org{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	if m.client, err = outbox.NewClient(pool, outbox.Config{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// email stores an email, of which set then changes the row.
func (m *mailroom) email(org, to, key, set string) string {
	m.t.Helper()
	receipt, err := m.client.Enqueue(context.Background(), outbox.Submission{
		Org: m.orgs[org], IdempotencyKey: key,
		Messages: []outbox.Message{{From: "a@example.com", To: []string{to}, Subject: "canary", Text: "canary"}},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	if set != "" {
		m.exec("UPDATE outbox.emails SET "+set+" WHERE id = $1", receipt.IDs[0])
	}
	return receipt.IDs[0].String()
}

// doubt adds an attempt in doubt to an email.
func (m *mailroom) doubt(id string) {
	m.t.Helper()
	m.exec(`UPDATE outbox.emails SET status = 'unknown', reason = 'in_doubt', on_unknown = 'hold', attempts = 1 WHERE id = $1`, id)
	m.exec(`INSERT INTO outbox.attempts (email_id, number, provider, provider_key, worker, began_at, deadline, in_doubt_at, payload_sha256)
		VALUES ($1, 1, 'sendgrid', '0197c0de-0000-7000-8000-000000000001', 'w', now() - interval '1 hour', now() - interval '1 hour', now() - interval '59 minutes', '')`, id)
}

func (m *mailroom) exec(sql string, args ...any) {
	m.t.Helper()
	if _, err := m.pool.Exec(context.Background(), sql, args...); err != nil {
		m.t.Fatal(err)
	}
}

// listed are the ids that a list has, in its order.
func (m *mailroom) listed(args ...string) (ids []string) {
	m.t.Helper()
	var list []struct{ ID string }
	m.mustJSON(m.t, &list, args...)
	for _, row := range list {
		ids = append(ids, row.ID)
	}
	return ids
}

// Emails are found across orgs by each filter and by several, the newest first, for
// people without what is in them.
func TestEmailsListCommand(t *testing.T) {
	t.Parallel()
	m := newMailroom(t)
	if out := m.must(t, "emails", "list"); out != "There is no such email.\n" {
		t.Errorf("nothing is there: %s", out)
	}
	a := m.email("acme", "joe@example.org", "order-1", "")
	b := m.email("other", "joe@example.org", "order-1", "status = 'failed', reason = 'rejected', ended_at = now()")
	c := m.email("acme", "zoe@example.org", "", "")
	m.doubt(c)
	for filter, want := range map[string][]string{
		"":                           {c, b, a},
		"--org acme":                 {c, a},
		"--to JOE@example.org":       {b, a},
		"--key order-1":              {b, a},
		"--key order-1 --org other":  {b},
		"--key order":                nil,
		"--status unknown":           {c},
		"--provider sendgrid":        {c},
		"--provider ses":             nil,
		"--since 1h":                 {c, b, a},
		"--since 1h --status failed": {b},
		"--limit 2":                  {c, b},
	} {
		got := m.listed(append([]string{"emails", "list"}, strings.Fields(filter)...)...)
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: %v, want %v", filter, got, want)
		}
	}
	table := m.must(t, "emails", "list", "--limit", "2")
	for _, want := range []string{c + "  acme   unknown  in_doubt", b + "  other  failed   rejected", "There are more: see --limit"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if strings.Contains(table, "@") || strings.Contains(table, "canary") {
		t.Errorf("the table shows what was written:\n%s", table)
	}
	for want, args := range map[string]string{
		`no org "nobody"`:         "--org nobody",
		"--status must be one of": "--status odd",
		"--limit must be at":      "--limit 0",
		"is not a duration":       "--since ever",
	} {
		if _, errOut, code := m.command(append([]string{"emails", "list"}, strings.Fields(args)...)...); code == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%s: code %d, %s", args, code, errOut)
		}
	}
}

// Without the keys, what became of sealed emails is shown all the same.
func TestEmailsCommandsWithoutKeys(t *testing.T) {
	t.Parallel()
	m := newMailroom(t)
	keys, err := outbox.ParseKeyRing("k1:" + base64.StdEncoding.EncodeToString(make([]byte, outbox.KeySize)))
	if err != nil {
		t.Fatal(err)
	}
	if m.client, err = outbox.NewClient(m.pool, outbox.Config{Keys: keys}); err != nil {
		t.Fatal(err)
	}
	id := m.email("acme", "joe@example.org", "", "created_at = now() - interval '1 hour'")
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"emails", "list"}, id + "  acme"},
		{[]string{"emails", "show", id}, "stuck: no_worker"},
		{[]string{"stuck"}, "no_worker: 1"},
		{[]string{"emails", "cancel", id}, "is canceled"},
	} {
		if out := m.must(t, step.args...); !strings.Contains(out, step.want) {
			t.Errorf("%v lacks %q:\n%s", step.args, step.want, out)
		}
	}
	for _, args := range [][]string{{"list"}, {"show", id}} {
		_, errOut, code := m.command(append(append([]string{"emails"}, args...), "--json")...)
		if code != 1 || !strings.Contains(errOut, `under the key "k1", which is not in OUTBOXD_ENCRYPTION_KEYS`) {
			t.Errorf("%v: code %d, %s", args, code, errOut)
		}
	}
}

// What a person does is kept with the email, and what is shown of it says who.
func TestEmailsChangeCommands(t *testing.T) {
	t.Parallel()
	m := newMailroom(t)
	waiting := m.email("acme", "joe@example.org", "", "")
	failed := m.email("acme", "joe@example.org", "", "status = 'failed', reason = 'rejected', ended_at = now()")
	doubtful, accepted := m.email("acme", "joe@example.org", "", ""), m.email("other", "joe@example.org", "", "")
	m.doubt(doubtful)
	m.doubt(accepted)

	shown := m.must(t, "emails", "show", doubtful)
	for _, want := range []string{
		"unknown (in_doubt)", "stuck: in_doubt. sendgrid may have accepted it", "submitted", "attempt 1 began  ",
		"sendgrid, key 0197c0de-0000-7000-8000-000000000001, by w", "job ", "available", "in queue emails",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("in doubt, it lacks %q:\n%s", want, shown)
		}
	}
	for _, step := range []struct {
		args       []string
		says       string
		event, who string
	}{
		{[]string{"cancel", waiting}, waiting + " is canceled.\n", "canceled", "by outboxctl"},
		{[]string{"cancel", waiting}, waiting + " is canceled.\n", "canceled", "by outboxctl"}, // again: nothing to do
		{[]string{"retry", failed}, failed + " is queued.\n", "retried", "by outboxctl"},
		{[]string{"resolve", doubtful, "--outcome", "not_accepted"}, doubtful + " is queued.\n", "resolved", "not_accepted by outboxctl"},
		{[]string{"resolve", accepted, "--outcome", "accepted"}, accepted + " is sent.\n", "resolved", "accepted by outboxctl"},
	} {
		if out := m.must(t, append([]string{"emails"}, step.args...)...); out != step.says {
			t.Errorf("%v says %q, want %q", step.args, out, step.says)
		}
		var email struct {
			Events   []struct{ Type, Detail string }
			Attempts []struct{ Evidence *string }
			Jobs     []outbox.JobInfo
			Stuck    *outbox.StuckEmail
		}
		m.mustJSON(t, &email, "emails", "show", step.args[1])
		if len(email.Events) != 1 || email.Events[0].Type != step.event || !strings.HasPrefix(email.Events[0].Detail, step.who) {
			t.Errorf("%v left the events %v", step.args, email.Events)
		}
		if step.event == "resolved" && *email.Attempts[0].Evidence != "person" {
			t.Errorf("%v left the attempt %+v", step.args, email.Attempts[0])
		}
		if len(email.Jobs) == 0 || email.Stuck != nil {
			t.Errorf("%v: jobs %v, stuck %v", step.args, email.Jobs, email.Stuck)
		}
	}
	shown = m.must(t, "emails", "show", accepted)
	for _, want := range []string{"sent\n", "attempt 1 accepted", "by person, after", "resolved", "accepted by outboxctl"} {
		if !strings.Contains(shown, want) {
			t.Errorf("resolved, it lacks %q:\n%s", want, shown)
		}
	}
	if strings.Contains(shown, "@") || strings.Contains(shown, "canary") {
		t.Errorf("it shows what was written:\n%s", shown)
	}
	var status struct{ ID, Status string }
	m.mustJSON(t, &status, "emails", "cancel", waiting)
	if status.ID != waiting || status.Status != "canceled" {
		t.Errorf("in JSON: %+v", status)
	}
	for want, args := range map[string][]string{
		"can no longer be canceled": {"cancel", accepted},
		"has not failed":            {"retry", accepted},
		"not in doubt":              {"resolve", accepted, "--outcome", "accepted"},
		"no such email":             {"show", uuid.NewString()},
	} {
		if _, errOut, code := m.command(append([]string{"emails"}, args...)...); code != 1 || !strings.Contains(errOut, want) {
			t.Errorf("%v: code %d, %s", args, code, errOut)
		}
	}
}

// What is stuck is told with its reason and with what to do, by org and by reason;
// workers are told beside it.
func TestStuckAndWorkersCommands(t *testing.T) {
	t.Parallel()
	m := newMailroom(t)
	if out := m.must(t, "stuck"); out != "Nothing is stuck.\n" {
		t.Errorf("nothing is there: %s", out)
	}
	if out := m.must(t, "stuck", "--json"); out != "[]\n" {
		t.Errorf("nothing is there, in JSON: %s", out)
	}
	if out := m.must(t, "workers"); out != "No worker has run on this database yet.\n" {
		t.Errorf("no worker was there: %s", out)
	}
	m.email("acme", "joe@example.org", "", "")
	late := m.email("acme", "joe@example.org", "", "created_at = now() - interval '26 hours'")
	doubtful, paused := m.email("other", "joe@example.org", "", ""), m.email("other", "joe@example.org", "", "")
	m.doubt(doubtful)
	table := m.must(t, "stuck", "--limit", "1")
	for _, want := range []string{
		late + "  acme  queued  no_worker  1d02h  0", "There are more: see --limit", "\n\nno_worker: 1, the oldest is " + late + ".\n  No worker is alive. Start one",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	m.must(t, "org", "pause", "other")
	for filter, want := range map[string][]string{
		"":                      {late, doubtful, paused},
		"--org other":           {doubtful, paused},
		"--reason no_worker":    {late},
		"--reason in_doubt":     nil,
		"--limit 2":             {late, doubtful},
		"--reason org_paused":   {doubtful, paused},
		"--org acme --limit 99": {late},
	} {
		got := m.listed(append([]string{"stuck"}, strings.Fields(filter)...)...)
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: %v, want %v", filter, got, want)
		}
	}
	for want, args := range map[string]string{`no org "nobody"`: "--org nobody", "--reason must be one of": "--reason odd"} {
		if _, errOut, code := m.command(append([]string{"stuck"}, strings.Fields(args)...)...); code == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%s: code %d, %s", args, code, errOut)
		}
	}

	m.exec(`INSERT INTO outbox.workers (id, lock_key, host, pid, version, started_at, ended_at) VALUES
		('host/1/AAAAAAAA', 1, 'host', 1, 'v1.2.3', '2026-01-02T03:04:05Z', NULL),
		('host/2/BBBBBBBB', 2, 'host', 2, '', '2026-01-01T03:04:05Z', '2026-01-01T04:04:05Z')`)
	out := m.must(t, "workers")
	for _, want := range []string{
		"No worker is alive: nothing is sent.", "host/1/AAAAAAAA  gone   v1.2.3   2026-01-02T03:04:05Z  -",
		"host/2/BBBBBBBB  ended  -        2026-01-01T03:04:05Z  2026-01-01T04:04:05Z  0",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the table lacks %q:\n%s", want, out)
		}
	}
	var workers []outbox.WorkerInfo
	if err := json.Unmarshal([]byte(m.must(t, "workers", "--json")), &workers); err != nil || len(workers) != 2 || workers[0].PID != 1 {
		t.Errorf("in JSON: %+v, %v", workers, err)
	}
}

// The runbook explains every reason.
func TestRunbookHasEveryStuckReason(t *testing.T) {
	t.Parallel()
	runbook, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range outbox.StuckReasons {
		if !strings.Contains(string(runbook), "`"+string(reason)+"`") {
			t.Errorf("the runbook lacks %s", reason)
		}
	}
}
