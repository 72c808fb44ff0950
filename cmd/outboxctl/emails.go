package main

import (
	"fmt"
	"os/user"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

type emailsCmd struct {
	Show    emailsShowCmd    `cmd:"" help:"Show an email with its attempts."`
	Cancel  emailsCancelCmd  `cmd:"" help:"Withdraw an email before its first attempt."`
	Retry   emailsRetryCmd   `cmd:"" help:"Give a failed email one more attempt."`
	Resolve emailsResolveCmd `cmd:"" help:"Say what became of an email in doubt."`
}

// emailID is the argument of all that is about one email.
type emailID struct {
	ID uuid.UUID `arg:"" help:"The email's id."`
}

// with runs a command on the email, in whichever org it is.
func (id emailID) with(e environment, run func(*outbox.Client, uuid.UUID) error) error {
	keys, err := e.keys()
	if err != nil {
		return err
	}
	return e.withClient(outbox.Config{Keys: keys}, func(client *outbox.Client, _ *pgxpool.Pool) error {
		org, err := client.OrgOf(e.ctx, id.ID)
		if err != nil {
			return err
		}
		return run(client, org)
	})
}

// who is the person at the keyboard, for the record.
func who() string {
	u, err := user.Current()
	if err != nil {
		return "outboxctl"
	}
	return "outboxctl, user " + u.Username
}

type emailsShowCmd struct {
	emailID
	JSON bool `help:"Print JSON."`
}

func (c emailsShowCmd) Run(e environment) error {
	return c.with(e, func(client *outbox.Client, org uuid.UUID) error {
		email, err := client.Get(e.ctx, org, c.ID)
		if err != nil {
			return err
		}
		return e.print(c.JSON, api.Detail(email), describe(email))
	})
}

// describe leaves out bodies and addresses: terminals are logged.
func describe(email *outbox.Email) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s  %s", email.ID, email.Status)
	if email.Reason != "" {
		fmt.Fprintf(&text, " (%s)", strings.TrimSuffix(email.Reason+": "+email.ReasonDetail, ": "))
	}
	if email.PossibleDuplicate {
		text.WriteString(", possibly sent twice")
	}
	fmt.Fprintf(&text, "\nsubmitted %s\n", email.CreatedAt.Format(time.RFC3339))
	if purged := email.ContentPurgedAt; !purged.IsZero() {
		fmt.Fprintf(&text, "content purged %s\n", purged.Format(time.RFC3339))
	}
	for _, a := range email.Attempts {
		fmt.Fprintf(&text, "attempt %d  %-9s %-9s %s  key %s  %s\n", a.Number, a.Provider, a.Stage,
			a.BeganAt.Format(time.RFC3339), a.ProviderKey, strings.TrimSpace(fmt.Sprint(a.Code, " ", a.Detail)))
	}
	for _, event := range email.Events {
		fmt.Fprintf(&text, "%s  %s  %s\n", event.OccurredAt.Format(time.RFC3339), event.Type, event.Detail)
	}
	return text.String()
}

type emailsCancelCmd struct{ emailID }

func (c emailsCancelCmd) Run(e environment) error {
	return c.with(e, func(client *outbox.Client, org uuid.UUID) error { return client.Cancel(e.ctx, org, c.ID) })
}

type emailsRetryCmd struct{ emailID }

func (c emailsRetryCmd) Run(e environment) error {
	return c.with(e, func(client *outbox.Client, org uuid.UUID) error { return client.Retry(e.ctx, org, c.ID, who()) })
}

type emailsResolveCmd struct {
	emailID
	Outcome string `required:"" enum:"accepted,not_accepted" help:"accepted: the provider has it. not_accepted: it does not; send it again."`
}

func (c emailsResolveCmd) Run(e environment) error {
	return c.with(e, func(client *outbox.Client, org uuid.UUID) error {
		return client.Resolve(e.ctx, org, c.ID, outbox.Outcome(c.Outcome), who())
	})
}
