package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

type orgListCmd struct {
	JSON bool `help:"Print JSON."`
}

// orgView is an org as it is printed.
type orgView struct {
	ID           string    `json:"id"`
	Name         string    `json:"name"`
	State        string    `json:"state"`
	PausedReason string    `json:"paused_reason,omitempty"`
	FromDomains  []string  `json:"from_domains"`
	Waiting      int       `json:"waiting"`
	InDoubt      int       `json:"in_doubt"`
	CreatedAt    time.Time `json:"created_at"`
	// ContentRetention is as org retention takes it.
	ContentRetention string `json:"content_retention"`
}

func (c orgListCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		orgs, err := outbox.ListOrgs(e.ctx, pool)
		if err != nil {
			return err
		}
		views := make([]orgView, len(orgs))
		for i, o := range orgs {
			views[i] = orgView{
				ID: o.ID.String(), Name: o.Name, State: string(o.State), PausedReason: o.PausedReason,
				FromDomains: o.FromDomains, Waiting: o.Waiting, InDoubt: o.InDoubt, CreatedAt: o.CreatedAt.UTC(),
				ContentRetention: retention{o.ContentRetention}.String(),
			}
		}
		return e.print(c.JSON, views, orgTable(views))
	})
}

func orgTable(orgs []orgView) string {
	if len(orgs) == 0 {
		return "There is no org yet: create one with `outboxctl org create`.\n"
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAME\tSTATE\tWAITING\tIN DOUBT\tRETENTION\tFROM DOMAINS\tID")
	for _, o := range orgs {
		domains := strings.Join(o.FromDomains, " ")
		if domains == "" {
			domains = "any"
		}
		state := strings.TrimSuffix(o.State+": "+o.PausedReason, ": ")
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n",
			o.Name, state, o.Waiting, o.InDoubt, o.ContentRetention, domains, o.ID)
	}
	_ = table.Flush()
	return text.String()
}

type orgPauseCmd struct {
	Name   string `arg:"" help:"The org's name."`
	Reason string `help:"Why, for other operators." placeholder:"TEXT"`
	JSON   bool   `help:"Print JSON."`
}

func (c orgPauseCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		if err := outbox.PauseOrg(e.ctx, pool, c.Name, c.Reason); err != nil {
			return err
		}
		return e.print(c.JSON, map[string]string{"name": c.Name, "state": "paused"},
			c.Name+" is paused: its emails wait, and nothing new is accepted.\n")
	})
}

type orgResumeCmd struct {
	Name string `arg:"" help:"The org's name."`
	JSON bool   `help:"Print JSON."`
}

func (c orgResumeCmd) Run(e environment) error {
	return e.withClient(outbox.Config{}, func(client *outbox.Client, _ *pgxpool.Pool) error {
		n, err := client.ResumeOrg(e.ctx, c.Name, e.progress("emails go on"))
		if err != nil {
			return err
		}
		return e.print(c.JSON, map[string]any{"name": c.Name, "state": "active", "resumed": n},
			fmt.Sprintf("%s is active again: %d emails that waited go on.\n", c.Name, n))
	})
}

type orgDeleteCmd struct {
	Name string `arg:"" help:"The org's name."`
	Yes  bool   `help:"Do not ask."`
	JSON bool   `help:"Print JSON."`
}

// purgeInterval is how often the command looks whether what is being sent has
// ended.
const purgeInterval = time.Second

func (c orgDeleteCmd) Run(e environment) error {
	if err := c.confirm(e); err != nil {
		return err
	}
	return e.withClient(outbox.Config{}, func(client *outbox.Client, pool *pgxpool.Pool) error {
		org, err := outbox.DeleteOrg(e.ctx, pool, c.Name)
		if err != nil {
			return err
		}
		if err := e.purge(client, org); err != nil {
			return fmt.Errorf("%w\n%s sends nothing any more; the workers remove the rest, or type the same again", err, c.Name)
		}
		return e.print(c.JSON, map[string]string{"name": c.Name, "state": "deleted"}, c.Name+" is deleted.\n")
	})
}

// purge removes what there is until nothing is left.
func (e environment) purge(client *outbox.Client, org uuid.UUID) error {
	tick := time.NewTicker(purgeInterval)
	defer tick.Stop()
	for {
		left, err := client.PurgeOrg(e.ctx, org, e.progress("emails removed"))
		if err != nil || left == 0 {
			return err
		}
		_, _ = fmt.Fprintf(e.errOut, "waiting for %d emails that are being sent\n", left)
		select {
		case <-tick.C:
		case <-e.ctx.Done():
			return e.ctx.Err()
		}
	}
}

// confirm asks for the name again. An org's data cannot be had back.
func (c orgDeleteCmd) confirm(e environment) error {
	if c.Yes {
		return nil
	}
	_, _ = fmt.Fprintf(e.errOut, "All emails, API keys and suppressions of %s will be gone. Type its name to go on: ", c.Name)
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if strings.TrimSpace(line) == c.Name {
		return nil
	}
	if err != nil {
		return errors.New("nothing was deleted: without a terminal, add --yes")
	}
	return errors.New("nothing was deleted: that is another name")
}
