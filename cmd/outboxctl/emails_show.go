package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

type emailsShowCmd struct {
	emailID
	doubtPolicy
	JSON bool `help:"Print JSON, with addresses and content."`
}

// shownEmail is all that there is about an email.
type shownEmail struct {
	email *outbox.Email
	jobs  []outbox.JobInfo
	stuck *outbox.StuckEmail
}

// Run shows what became of an email so far.
func (c emailsShowCmd) Run(e environment) error {
	f, err := c.filter(e)
	if err != nil {
		return err
	}
	return c.with(e, func(client *outbox.Client, pool *pgxpool.Pool, org uuid.UUID) error {
		var s shownEmail
		var err error
		get := client.GetState
		if c.JSON {
			get = client.Get
		}
		if s.email, err = get(e.ctx, org, c.ID); err != nil {
			return err
		}
		if s.jobs, err = outbox.ListJobs(e.ctx, pool, c.ID); err != nil {
			return err
		}
		if s.stuck, err = outbox.WhyStuck(e.ctx, pool, c.ID, f); err != nil {
			return err
		}
		return e.print(c.JSON, s, s.describe())
	})
}

// MarshalJSON adds to what GET /emails/{id} shows what only operators see.
func (s shownEmail) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(api.Detail(s.email))
	if err != nil {
		return nil, err
	}
	members := map[string]any{}
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, err
	}
	members["jobs"], members["stuck"] = s.jobs, s.stuck
	return json.Marshal(members)
}

// describe leaves out bodies and addresses: terminals are logged.
func (s shownEmail) describe() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s  %s", s.email.ID, s.email.Status)
	if s.email.Reason != "" {
		fmt.Fprintf(&text, " (%s)", strings.TrimSuffix(s.email.Reason+": "+s.email.ReasonDetail, ": "))
	}
	if s.email.PossibleDuplicate {
		text.WriteString(", possibly sent twice")
	}
	text.WriteString("\n")
	if s.stuck != nil {
		fmt.Fprintf(&text, "stuck: %s. %s\n", s.stuck.Reason, s.stuck.Advice)
	}
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, m := range timeline(s.email) {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", whenText(m.at), m.what, m.detail)
	}
	for i := range s.jobs {
		j := &s.jobs[i]
		detail := strings.TrimSpace(fmt.Sprintf("in queue %s, %s", j.Queue, j.Error))
		_, _ = fmt.Fprintf(table, "%s\tjob %d %s\t%s\n", whenText(j.ScheduledAt), j.ID, j.State, strings.TrimSuffix(detail, ","))
	}
	_ = table.Flush()
	return text.String()
}

// moment is something that happened to an email.
type moment struct {
	at           time.Time
	what, detail string
}

// timeline is what happened, in its order.
func timeline(email *outbox.Email) []moment {
	list := []moment{{email.CreatedAt, "submitted", ""}}
	for i := range email.Attempts {
		a := &email.Attempts[i]
		name := fmt.Sprintf("attempt %d ", a.Number)
		list = append(list, moment{a.BeganAt, name + "began", fmt.Sprintf("%s, key %s, by %s", a.Provider, a.ProviderKey, a.Worker)})
		if !a.EndedAt.IsZero() {
			list = append(list, moment{a.EndedAt, name + string(a.Stage), outcomeText(a)})
		}
	}
	for _, event := range email.Events {
		list = append(list, moment{event.OccurredAt, event.Type, joined(event.Provider, event.Detail)})
	}
	if at := email.Message.ScheduledAt; !at.IsZero() {
		list = append(list, moment{at, "scheduled", ""})
	}
	if !email.EndedAt.IsZero() {
		list = append(list, moment{email.EndedAt, "over", string(email.Status)})
	} else if !email.NextAttemptAt.IsZero() {
		list = append(list, moment{email.NextAttemptAt, "next attempt", ""})
	}
	if at := email.ContentPurgedAt; !at.IsZero() {
		list = append(list, moment{at, "content purged", ""})
	}
	slices.SortStableFunc(list, func(a, b moment) int { return a.at.Compare(b.at) })
	return list
}

// outcomeText says how an attempt ended, and how that is known.
func outcomeText(a *outbox.Attempt) string {
	status := ""
	if a.StatusCode != 0 {
		status = fmt.Sprint(a.StatusCode)
	}
	known, id := "", ""
	if a.Evidence != "" {
		known = "by " + string(a.Evidence)
	}
	if a.ProviderMessageID != "" {
		id = "message " + a.ProviderMessageID
	}
	took := "after " + a.EndedAt.Sub(a.BeganAt).Round(time.Millisecond).String()
	return joined(known, took, status, a.Code, a.Detail, id)
}

// joined is what is not empty of parts.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ", ")
}
