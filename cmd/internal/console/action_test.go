package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/net/html/atom"

	"github.com/outboxd/outboxd/cmd/internal/console"
	"github.com/outboxd/outboxd/outbox"
)

func (d *desk) dossier(subject string) *outbox.Dossier {
	d.t.Helper()
	dossier, err := d.client.Dossier(context.Background(), d.emails[subject])
	if err != nil {
		d.t.Fatal(err)
	}
	return dossier
}

func (d *desk) path(subject string) string { return "/console/emails/" + d.emails[subject].String() }

// logged returns the lines of the log since it was asked last.
func (d *desk) logged() (lines []map[string]any) {
	d.t.Helper()
	text := d.log.String()
	d.log.Reset()
	for line := range strings.Lines(text) {
		fields := map[string]any{}
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			d.t.Fatal(err)
		}
		lines = append(lines, fields)
	}
	return lines
}

// A person settles, retries and withdraws emails: after a page that asks, under
// their name, and only what the email still allows.
func TestActions(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.furnish()
	second := d.submit(d.acme, "second")
	d.attempt(second, "postmark", "sending", "in_doubt_at = now()")
	d.exec("UPDATE outbox.emails SET status = 'unknown' WHERE id = $1", second)
	jobs := func(subject string) int { return len(d.dossier(subject).Jobs) }
	for _, step := range []struct {
		subject, label, slug string
		want                 outbox.Status
		event                string // and by whom
		jobs                 int
		notice, refusal      string
	}{
		{"doubtful", "The provider has it", "accepted", outbox.StatusSent, "resolved: accepted by console, user alice", 1, "Resolved: the email counts as sent.", "The email is not in doubt"},
		{"second", "The provider does not have it", "not-accepted", outbox.StatusQueued, "resolved: not_accepted by console, user alice", 2, "Resolved: the email is sent again.", "The email is not in doubt"},
		{"failed", "Retry", "retry", outbox.StatusQueued, "retried: by console, user alice", 2, "queued for one more attempt", "The email has not failed"},
		{"waiting", "Cancel", "cancel", outbox.StatusCanceled, "canceled: by console, user alice", 1, "The email is canceled.", ""},
	} {
		page := d.see(d.path(step.subject))
		ask := page.link(step.label)
		if ask != d.path(step.subject)+"/"+step.slug {
			t.Errorf("%s leads to %s", step.label, ask)
		}
		d.see(ask).says("What follows", step.subject, "Change nothing")
		done := d.confirmed(ask)
		if done.status != http.StatusSeeOther {
			t.Fatalf("%s: answer %d %s", step.label, done.status, done.text())
		}
		after := d.see(done.header.Get("Location"))
		after.says(step.notice)
		for _, a := range after.elements(atom.A) {
			if textOf(a) == step.label {
				t.Errorf("%s is offered again", step.label)
			}
		}
		dossier := d.dossier(step.subject)
		if dossier.Status != step.want || jobs(step.subject) != step.jobs {
			t.Errorf("%s: status %s, %d jobs, want %s, %d", step.label, dossier.Status, jobs(step.subject), step.want, step.jobs)
		}
		last := dossier.Events[len(dossier.Events)-1]
		if got := last.Type + ": " + last.Detail; got != step.event {
			t.Errorf("event %q, want %q", got, step.event)
		}
		after.says("Event: "+last.Type, last.Detail)
		lines := d.logged()
		if len(lines) != 1 || lines[0]["user"] != "alice" || lines[0]["action"] != step.slug || lines[0]["email"] != dossier.ID.String() {
			t.Errorf("the log says %v", lines)
		}
		if step.refusal != "" {
			again := d.do(http.MethodPost, ask, url.Values{})
			again.says(step.refusal, "Nothing was changed")
			if again.status != http.StatusConflict || d.dossier(step.subject).Status != step.want {
				t.Errorf("%s again: answer %d", step.label, again.status)
			}
			again.accessible()
		}
	}
	d.see(d.path("doubtful")).says("Attempt 1 at postmark: accepted", "evidence a person")
}

// The timeline tells what happened in its order, with what an operator asks the
// provider by.
func TestTimeline(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.furnish()
	read := d.see(d.path("read"))
	key := d.dossier("read").Attempts[0].ProviderKey.String()
	read.says("Attempt 1 at sendgrid: accepted", key, "<1@sendgrid>", "evidence the provider's answer", "took 3.0 s", "4bf92f",
		"link to shop.example.com", "received 5 min 0 s later", "Ended as sent")
	text := read.text()
	at := 0
	for _, part := range []string{"Attempt 1 at sendgrid", "Event: delivered", "Event: clicked"} {
		next := strings.Index(text[at:], part)
		if next < 0 {
			t.Fatalf("%s is not there, or too early: %s", part, text)
		}
		at += next
	}
	job := d.dossier("read").Jobs[0].ID
	if to := read.link("Job " + jsonNumber(job) + " in River UI"); to != "/riverui/jobs/"+jsonNumber(job) {
		t.Errorf("the job's link leads to %s", to)
	}
	d.see(d.path("doubtful")).says("Attempt 1 at postmark: in doubt", "2.0 s until it was in doubt", "Look in the provider's own log")
	d.see(d.path("purged")).says("no longer kept", "No attempt has begun")
	d.exec("DELETE FROM outbox.river_job")
	d.see(d.path("purged")).says("River has no job of it any more")
}

func jsonNumber(n int64) string {
	text, _ := json.Marshal(n)
	return string(text)
}

// An address is found in all orgs and let go in one, after a page that asks.
func TestSuppressionIsRemoved(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.furnish()
	both := d.see("/console/suppressions?address=Gone@Example.org")
	both.says("acme", "zeta", "complaint", "it said so")
	if rows := both.rows(); len(rows) != 2 {
		t.Fatalf("rows %q", rows)
	}
	ask := both.link("Remove gone@example.org") // of the first: acme's
	d.see(ask).says("Let acme send to gone@example.org again?", "The recipient asked for no more mail")
	done := d.confirmed(ask)
	after := d.see(done.header.Get("Location"))
	after.says("The address is removed")
	if rows := after.rows(); done.status != http.StatusSeeOther || len(rows) != 1 || strings.Contains(after.text(), "acme complaint") {
		t.Errorf("answer %d, then %q", done.status, rows)
	}
	if again := d.confirmedAt(ask); again.status != http.StatusConflict {
		t.Errorf("again: answer %d", again.status)
	}
	d.see("/console/suppressions?org=acme").says("acme has suppressed no address")
	d.see("/console/suppressions?org=acme&address=gone@example.org").says("gone@example.org is not suppressed by acme")
	d.see("/console/suppressions?address=nobody@example.org").says("nobody@example.org is not suppressed by any org")
	lines := d.logged()
	if len(lines) != 1 || lines[0]["user"] != "alice" || lines[0]["org"] != d.acme.String() || lines[0]["email"] != d.emails["read"].String() {
		t.Errorf("the log says %v", lines)
	}
	for i := range 51 {
		d.exec("INSERT INTO outbox.suppressions (org_id, address, reason) VALUES ($1, $2, 'manual')", d.zeta, "a"+jsonNumber(int64(100+i))+"@example.org")
	}
	list := d.see("/console/suppressions?org=zeta")
	rest := d.see(list.link("More")).rows()
	if len(list.rows()) != 50 || len(rest) != 2 || rest[1] != "gone@example.org" {
		t.Errorf("%d, then %q", len(list.rows()), rest)
	}
}

// confirmedAt posts what a page's address says, without the page.
func (d *desk) confirmedAt(target string) shown {
	d.t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		d.t.Fatal(err)
	}
	return d.do(http.MethodPost, to.Path, to.Query())
}

// Read-only, nothing is offered and nothing is done.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.furnish()
	d.config.ReadOnly = true
	d.console = console.New(d.config)
	before := d.everything()
	for subject, id := range d.emails {
		page := d.see("/console/emails/" + id.String())
		page.says("Read-only: OUTBOXD_ADMIN_READ_ONLY is set")
		for _, link := range page.links() {
			if strings.HasPrefix(link, d.path(subject)+"/") {
				t.Errorf("%s offers %s", subject, link)
			}
		}
	}
	d.see("/console/suppressions?org=acme").hides("Remove")
	for _, target := range []string{
		d.path("doubtful") + "/accepted", d.path("doubtful") + "/not-accepted", d.path("failed") + "/retry", d.path("waiting") + "/cancel",
		"/console/suppressions/remove?org=acme&address=gone@example.org",
	} {
		for _, s := range []shown{d.do(http.MethodGet, target, nil), d.confirmedAt(target)} {
			if s.status != http.StatusForbidden {
				t.Errorf("%s: answer %d", s.what, s.status)
			}
		}
	}
	if d.everything() != before {
		t.Error("something changed")
	}
}

// What an operator sees when the database is away, which is when they look.
func TestWithoutDatabase(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	d := newDeskOn(t, pool)
	for _, target := range []string{"/console/", "/console/emails", "/console/emails?q=a", "/console/emails/" + uuid.NewString(), "/console/suppressions"} {
		page := d.do(http.MethodGet, target, nil)
		if page.status != http.StatusServiceUnavailable {
			t.Errorf("%s: answer %d", target, page.status)
		}
		page.accessible()
		page.says("The database did not answer in time", "is safe")
		page.hides("127.0.0.1", "nobody")
	}
	if !bytes.Contains(d.log.Bytes(), []byte("127.0.0.1:1")) {
		t.Error("the log does not say why")
	}
}
