package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

// riverUI presses the buttons of River UI, as its pages do.
type riverUI struct {
	in   *installation
	base string // with user and password
}

// press returns the status of the answer and its text.
func (ui riverUI) press(button string, job int64) answer {
	ui.in.t.Helper()
	return mustCall(ui.in.t, "POST", ui.base+"/api/jobs/"+button, "", "", map[string]any{"ids": []string{fmt.Sprint(job)}})
}

func (ui riverUI) mustPress(button string, job int64) {
	ui.in.t.Helper()
	if a := ui.press(button, job); a.status != http.StatusOK {
		ui.in.t.Fatalf("%s: answer %d %s", button, a.status, a.body)
	}
}

// discard does what no button does and River itself may: it gives a job up.
func (ui riverUI) discard(job int64) {
	ui.in.t.Helper()
	n := ui.in.count(`WITH discarded AS (
		UPDATE outbox.river_job SET state = 'discarded', finalized_at = now() WHERE id = $1 RETURNING id
	) SELECT count(*) FROM discarded`, job)
	if n != 1 {
		ui.in.t.Fatalf("%d jobs discarded, want 1", n)
	}
}

// jobs returns the jobs in a state by their email's id, as the page lists them.
func (ui riverUI) jobs(state string) map[string]int64 {
	ui.in.t.Helper()
	var list struct {
		Data []struct {
			ID         int64
			Kind, Args string
		}
	}
	mustCall(ui.in.t, "GET", ui.base+"/api/jobs?limit=1000&kinds=deliver_email&state="+state, "", "", nil).decode(ui.in.t, &list)
	jobs := map[string]int64{}
	for _, job := range list.Data {
		var args struct {
			EmailID string `json:"email_id"`
		}
		if err := json.Unmarshal([]byte(job.Args), &args); err != nil {
			ui.in.t.Fatal(err)
		}
		jobs[args.EmailID] = job.ID
	}
	return jobs
}

// job waits until the job of an email is in a state.
func (ui riverUI) job(email, state string) (id int64) {
	ui.in.t.Helper()
	eventually(ui.in.t, "a job is "+state, func() bool {
		id = ui.jobs(state)[email]
		return id != 0
	})
	return id
}

// submitted submits an email and returns its id.
func (in *installation) submitted(base string, mail map[string]any) string {
	in.t.Helper()
	a := mustCall(in.t, "POST", base+"/emails", in.token, "", mail)
	if a.status != http.StatusAccepted {
		in.t.Fatalf("answer %d: %s", a.status, a.body)
	}
	return strings.TrimPrefix(a.header.Get("Location"), "/emails/")
}

// Whatever somebody does to jobs in River UI, every email ends, once, and not
// before its time.
func TestLivenessRiverUI(t *testing.T) {
	t.Parallel()
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.Resend)
	env := resendEnv(provider)
	api := in.start("api", append(env, "OUTBOXD_ADMIN_PASSWORD=secret")...)
	base := api.url("api")
	ui := riverUI{in, strings.Replace(api.url("ops"), "http://", "http://admin:secret@", 1) + "/riverui"}
	n := 0
	submit := func(when *time.Time) string {
		mail := email(n)
		if n++; when != nil {
			mail["scheduled_at"] = when.UTC().Format(time.RFC3339Nano)
		}
		return in.submitted(base, mail)
	}
	press := map[string]func(int64){
		"cancel":  func(job int64) { ui.mustPress("cancel", job) },
		"delete":  func(job int64) { ui.mustPress("delete", job) },
		"retry":   func(job int64) { ui.mustPress("retry", job) },
		"discard": ui.discard,
	}

	// Before there is a worker.
	due := time.Now().Add(8 * time.Second)
	for _, do := range press {
		do(ui.job(submit(nil), "available"))
		do(ui.job(submit(&due), "scheduled"))
	}
	early := map[string]bool{} // subjects of the scheduled ones
	for i := 1; i < n; i += 2 {
		early[fmt.Sprint("Mail ", i)] = true
	}

	// While the provider is at it: of three it accepts two, and answers one.
	var log sends
	firstRunning := n
	release := make(chan struct{})
	provider.Respond(func(r providertest.Seen) providertest.Reaction {
		var mail struct{ Subject string }
		var number int
		if json.Unmarshal(r.Body, &mail) == nil {
			_, _ = fmt.Sscanf(mail.Subject, "Mail %d", &number)
		}
		switch first := log.note(r.Reference); {
		case !first || number < firstRunning:
			return providertest.Accept()
		case (number-firstRunning)%3 == 0:
			return providertest.Accept().When(release)
		case (number-firstRunning)%3 == 1:
			return providertest.Accept().When(release).Then(providertest.Reset())
		default:
			return providertest.Reset().When(release)
		}
	})
	in.start("worker", env...).ready()
	press["delete"] = func(job int64) { // River refuses
		if a := ui.press("delete", job); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "is running") {
			t.Errorf("delete of a running job: answer %d %s, want 400", a.status, a.body)
		}
	}
	for _, do := range press {
		for range 3 {
			id := submit(nil)
			number := n - 1
			eventually(t, "the provider has it", func() bool { return sawMail(provider, number) })
			do(ui.job(id, "running"))
		}
	}
	close(release)
	in.awaitEnded()

	// Once more, when all is over.
	last := submit(nil)
	in.awaitEnded()
	job := ui.job(last, "completed")
	requests := provider.Requests()
	ui.mustPress("retry", job)
	eventually(t, "the job runs again", func() bool {
		return in.count("SELECT count(*) FROM outbox.river_job WHERE id = $1 AND state = 'completed' AND cardinality(attempted_by) > 1", job) == 1
	})
	if provider.Requests() != requests {
		t.Error("an email that is sent was sent again")
	}
	in.checkOnce(provider, n)
	for _, a := range provider.Accepted() {
		var mail struct{ Subject string }
		if err := json.Unmarshal(a.Body, &mail); err != nil {
			t.Fatal(err)
		}
		if early[mail.Subject] && a.At.Before(due) {
			t.Errorf("%s was sent %v before its time", mail.Subject, due.Sub(a.At))
		}
	}
}

// sawMail reports whether a hand-over of a mail has arrived.
func sawMail(p *providertest.HTTP, number int) bool {
	quoted := fmt.Sprintf(`"Mail %d"`, number)
	for _, r := range p.Seen() {
		if strings.Contains(string(r.Body), quoted) {
			return true
		}
	}
	return false
}
