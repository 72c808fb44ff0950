package main

import (
	"fmt"
	"os/user"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

type emailsCmd struct {
	List    emailsListCmd    `cmd:"" help:"List emails, the newest first."`
	Show    emailsShowCmd    `cmd:"" help:"Show an email with its attempts, events and jobs, and why it is stuck."`
	Cancel  emailsCancelCmd  `cmd:"" help:"Withdraw an email before its first attempt."`
	Retry   emailsRetryCmd   `cmd:"" help:"Give a failed email one more attempt."`
	Resolve emailsResolveCmd `cmd:"" help:"Say what became of an email in doubt."`
}

// emailID is the argument of all that is about one email.
type emailID struct {
	ID uuid.UUID `arg:"" help:"The email's id."`
}

// with runs a command on the email, in whichever org it is.
func (id emailID) with(e environment, run func(*outbox.Client, *pgxpool.Pool, uuid.UUID) error) error {
	keys, err := e.keys()
	if err != nil {
		return err
	}
	return e.withClient(outbox.Config{Keys: keys}, func(client *outbox.Client, pool *pgxpool.Pool) error {
		org, err := client.OrgOf(e.ctx, id.ID)
		if err != nil {
			return err
		}
		return run(client, pool, org)
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

type emailsCancelCmd struct {
	emailID
	JSON bool `help:"Print JSON."`
}

// Run withdraws an email before its first attempt.
func (c emailsCancelCmd) Run(e environment) error {
	return c.change(e, c.JSON, func(client *outbox.Client, org uuid.UUID) error {
		return client.CancelBy(e.ctx, org, c.ID, who())
	})
}

type emailsRetryCmd struct {
	emailID
	JSON bool `help:"Print JSON."`
}

func (c emailsRetryCmd) Run(e environment) error {
	return c.change(e, c.JSON, func(client *outbox.Client, org uuid.UUID) error {
		return client.Retry(e.ctx, org, c.ID, who())
	})
}

type emailsResolveCmd struct {
	emailID
	Outcome string `required:"" enum:"accepted,not_accepted" help:"accepted: the provider has it. not_accepted: it does not; send it again."`
	JSON    bool   `help:"Print JSON."`
}

func (c emailsResolveCmd) Run(e environment) error {
	return c.change(e, c.JSON, func(client *outbox.Client, org uuid.UUID) error {
		return client.Resolve(e.ctx, org, c.ID, outbox.Outcome(c.Outcome), who())
	})
}

// change does something about the email, which is kept as an event of it, and
// prints what the email is then.
func (id emailID) change(e environment, asJSON bool, change func(*outbox.Client, uuid.UUID) error) error {
	return id.with(e, func(client *outbox.Client, _ *pgxpool.Pool, org uuid.UUID) error {
		if err := change(client, org); err != nil {
			return err
		}
		email, err := client.GetState(e.ctx, org, id.ID)
		if err != nil {
			return err
		}
		return e.print(asJSON, map[string]any{"id": email.ID, "status": email.Status}, fmt.Sprintf("%s is %s.\n", email.ID, email.Status))
	})
}
