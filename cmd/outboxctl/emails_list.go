package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/cmd/internal/app"
	"github.com/outboxd/outboxd/outbox"
)

type emailsListCmd struct {
	Org      string       `help:"Only those of this org." placeholder:"NAME"`
	Status   string       `help:"Only those with this status: ${statuses}." placeholder:"STATUS"`
	To       string       `help:"Only those to this address, in To, Cc or Bcc." placeholder:"ADDRESS"`
	Key      string       `help:"Only those submitted under this idempotency key." placeholder:"KEY"`
	Provider string       `help:"Only those that this provider was tried for." placeholder:"NAME"`
	Since    app.Duration `help:"Only those submitted within this time, such as 1h or 2d." placeholder:"DURATION"`
	rowLimit
	JSON bool `help:"Print JSON, with addresses and subject."`
}

// Validate is called by the command line.
func (c emailsListCmd) Validate() error {
	if c.Status != "" && !slices.Contains(outbox.Statuses, outbox.Status(c.Status)) {
		return fmt.Errorf("--status must be one of %s", statuses())
	}
	return c.rowLimit.Validate()
}

// statuses names all statuses.
func statuses() string {
	names := make([]string, len(outbox.Statuses))
	for i, s := range outbox.Statuses {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

// listedEmail is an email with its org's name.
type listedEmail struct {
	outbox.Email
	org string
}

// Run lists emails, the newest first.
func (c emailsListCmd) Run(e environment) error {
	keys, err := e.keys()
	if err != nil {
		return err
	}
	return e.withClient(outbox.Config{Keys: keys}, func(client *outbox.Client, pool *pgxpool.Pool) error {
		orgs, err := c.orgs(e, pool)
		if err != nil {
			return err
		}
		emails, more, err := c.list(e, client, orgs)
		if err != nil {
			return err
		}
		views := make([]any, len(emails))
		for i := range emails {
			views[i] = api.Summary(&emails[i].Email, emails[i].org)
		}
		return e.print(c.JSON, views, emailTable(emails, more))
	})
}

// orgs are those to look at.
func (c emailsListCmd) orgs(e environment, pool *pgxpool.Pool) ([]outbox.OrgInfo, error) {
	if c.Org == "" {
		return outbox.ListOrgs(e.ctx, pool)
	}
	id, err := api.FindOrg(e.ctx, pool, c.Org)
	return []outbox.OrgInfo{{ID: id, Name: c.Org}}, err
}

// list reads org by org, since all that emails are found by is of one, and returns
// the newest of all.
func (c emailsListCmd) list(e environment, client *outbox.Client, orgs []outbox.OrgInfo) (all []listedEmail, more bool, err error) {
	q := outbox.Query{
		Limit: c.Limit, Status: outbox.Status(c.Status), To: c.To, Key: c.Key, Provider: c.Provider, StateOnly: !c.JSON,
	}
	if c.Since > 0 {
		q.CreatedAfter = time.Now().Add(-c.Since.D())
	}
	for _, org := range orgs {
		q.Org = org.ID
		emails, further, err := client.List(e.ctx, q)
		if err != nil {
			return nil, false, err
		}
		more = more || further
		for i := range emails {
			all = append(all, listedEmail{emails[i], org.Name})
		}
		slices.SortFunc(all, func(a, b listedEmail) int { return cmp.Compare(string(b.ID[:]), string(a.ID[:])) })
		if len(all) > c.Limit {
			all, more = all[:c.Limit], true
		}
	}
	return all, more, nil
}

// emailTable leaves out addresses and subjects: terminals are logged.
func emailTable(emails []listedEmail, more bool) string {
	if len(emails) == 0 {
		return "There is no such email.\n"
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "ID\tORG\tSTATUS\tREASON\tSUBMITTED\tNEXT ATTEMPT\tENDED")
	for i := range emails {
		m := &emails[i]
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.ID, m.org, m.Status, cmp.Or(m.Reason, "-"),
			whenText(m.CreatedAt), whenText(nextAttempt(&m.Email)), whenText(m.EndedAt))
	}
	_ = table.Flush()
	if more {
		text.WriteString("There are more: see --limit and the other options.\n")
	}
	return text.String()
}

// nextAttempt is when the next attempt may begin; zero: at once, or none will.
func nextAttempt(m *outbox.Email) time.Time {
	if !m.NextAttemptAt.IsZero() || m.Status != outbox.StatusScheduled {
		return m.NextAttemptAt
	}
	return m.Message.ScheduledAt
}

// whenText is a point in time for people; zero: there is none.
func whenText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
