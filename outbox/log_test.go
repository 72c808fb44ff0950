package outbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// Each attempt has one line. The addresses that a provider quotes are in none, nor in
// what is kept of the attempt, whether the provider refuses, asks for time, is out or
// has a wrong key.
func TestAttemptLines(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	var log bytes.Buffer
	d.deliverer = d.newDelivererWith(outbox.WorkerConfig{
		Providers: []providers.Provider{newSendGrid(t, d.provider.URL())}, Logger: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	const answer = `{"errors":[{"message":"%d: no mail for <canary-jane@example.org>, see https://sg.test/q?to=canary-jane%%40example.org"}]}`
	statuses := []int{http.StatusBadRequest, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusUnauthorized}
	for _, status := range statuses {
		d.provider.Respond(func(providertest.Seen) providertest.Reaction {
			return providertest.Reply(status, fmt.Sprintf(answer, status))
		})
		id := d.enqueue(func(m *outbox.Message) {
			m.To = []string{"canary-jane@example.org"}
		})
		d.deliver(id)
		email := d.get(id)
		if len(email.Attempts) != 1 || !strings.Contains(email.Attempts[0].Detail, fmt.Sprint(status)) {
			t.Fatalf("%d: attempts %+v, want one with the provider's words", status, email.Attempts)
		}
		for _, text := range []string{email.Attempts[0].Detail, email.ReasonDetail} {
			if strings.Contains(strings.ToLower(text), "canary") {
				t.Errorf("%d: kept %q", status, text)
			}
		}
		d.probeNow()
	}
	lines := 0
	for line := range strings.Lines(log.String()) {
		var l struct{ Msg string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("%v in %s", err, line)
		}
		if l.Msg == "attempt" {
			lines++
		}
		if strings.Contains(strings.ToLower(line), "canary") {
			t.Errorf("logged: %s", line)
		}
	}
	if lines != len(statuses) {
		t.Errorf("%d lines for %d attempts:\n%s", lines, len(statuses), &log)
	}
}

// River keeps and logs the errors and panics of jobs: without what senders wrote.
func TestJobErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New(`no such mailbox: canary@example.org`)
	run := func(kind string, work func() error) (panicked string, err error) {
		defer func() {
			if p := recover(); p != nil {
				panicked = fmt.Sprint(p)
			}
		}()
		err = outbox.RedactJob(t.Context(), &rivertype.JobRow{Kind: kind}, func(context.Context) error { return work() })
		return "", err
	}
	for _, kind := range outbox.JobKinds() {
		_, err := run(kind, func() error { return fmt.Errorf("load email: %w", cause) })
		if err == nil || err.Error() != "load email: no such mailbox: (address)" || !errors.Is(err, cause) {
			t.Errorf("%s: error %v", kind, err)
		}
		if panicked, _ := run(kind, func() error { panic(`of "canary" to canary@example.org`) }); panicked != `of "(value)" to (address)` {
			t.Errorf("%s: panic %q", kind, panicked)
		}
		if _, err := run(kind, func() error { return nil }); err != nil {
			t.Errorf("%s: error %v of a job that went well", kind, err)
		}
	}
	if _, err := run("deliver_email", func() error { return river.JobSnooze(1) }); !errors.As(err, new(*rivertype.JobSnoozeError)) {
		t.Errorf("River takes a snooze for a failure: %v", err)
	}
	if _, err := run("application_job", func() error { return cause }); !errors.Is(err, cause) || err.Error() != cause.Error() {
		t.Errorf("an application's error became %v", err)
	}
}
