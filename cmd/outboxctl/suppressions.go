package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

type suppressionsCmd struct {
	List         suppressionsListCmd   `cmd:"" help:"List the addresses that an org does not send to."`
	Add          suppressionsAddCmd    `cmd:"" help:"Keep an org from sending to addresses."`
	Remove       suppressionsRemoveCmd `cmd:"" help:"Let an org send to addresses again."`
	RotateSecret rotateSecretCmd       `cmd:"" help:"Make a new secret for links to unsubscribe. Older links work on."`
}

// orgName is the option of all that is about one org.
type orgName struct {
	Org string `required:"" help:"The org's name." placeholder:"NAME"`
}

// with runs a command on the org.
func (o orgName) with(e environment, run func(*outbox.Client, uuid.UUID) error) error {
	return e.withClient(outbox.Config{}, func(client *outbox.Client, pool *pgxpool.Pool) error {
		org, err := api.FindOrg(e.ctx, pool, o.Org)
		if err != nil {
			return err
		}
		return run(client, org)
	})
}

// printSuppressions writes what is asked for, so it shows addresses.
func (e environment) printSuppressions(asJSON bool, list []outbox.Suppression) error {
	details, text := make([]any, len(list)), strings.Builder{}
	for i := range list {
		s := &list[i]
		details[i] = api.SuppressionDetail(s)
		fmt.Fprintf(&text, "%s  %-11s  %s  %s\n", s.CreatedAt.UTC().Format(time.RFC3339), s.Reason, s.Address, s.Detail)
	}
	return e.print(asJSON, details, text.String())
}

type suppressionsListCmd struct {
	orgName
	JSON bool `help:"Print JSON."`
}

// pageSize is how many are read at a time.
const pageSize = 1000

func (c suppressionsListCmd) Run(e environment) error {
	return c.with(e, func(client *outbox.Client, org uuid.UUID) error {
		all := []outbox.Suppression{}
		q := outbox.SuppressionQuery{Org: org, Limit: pageSize}
		for more := true; more; {
			var page []outbox.Suppression
			var err error
			if page, more, err = client.Suppressions(e.ctx, q); err != nil {
				return err
			}
			if all = append(all, page...); more {
				q.After = page[len(page)-1].Address
			}
		}
		return e.printSuppressions(c.JSON, all)
	})
}

type suppressionsAddCmd struct {
	orgName
	Addresses []string `arg:"" help:"The addresses."`
	Reason    string   `help:"Why." enum:"hard_bounce,manual,unsubscribe,complaint" default:"manual" placeholder:"REASON"`
	JSON      bool     `help:"Print JSON."`
}

func (c suppressionsAddCmd) Run(e environment) error {
	return c.with(e, func(client *outbox.Client, org uuid.UUID) error {
		list := make([]outbox.Suppression, 0, len(c.Addresses))
		for _, address := range c.Addresses {
			stored, err := client.Suppress(e.ctx, org, outbox.Suppression{
				Address: address, Reason: outbox.SuppressionReason(c.Reason), Detail: "by " + who(),
			})
			if err != nil {
				return fmt.Errorf("%s: %w", address, err)
			}
			list = append(list, *stored)
		}
		return e.printSuppressions(c.JSON, list)
	})
}

type suppressionsRemoveCmd struct {
	orgName
	Addresses []string `arg:"" help:"The addresses."`
	JSON      bool     `help:"Print JSON."`
}

func (c suppressionsRemoveCmd) Run(e environment) error {
	return c.with(e, func(client *outbox.Client, org uuid.UUID) error {
		for _, address := range c.Addresses {
			if err := client.Unsuppress(e.ctx, org, address); err != nil {
				return fmt.Errorf("%s: %w", address, err)
			}
		}
		return e.print(c.JSON, map[string][]string{"removed": c.Addresses}, "")
	})
}

type rotateSecretCmd struct {
	JSON bool `help:"Print JSON."`
}

func (c rotateSecretCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		id, err := outbox.RotateUnsubscribeSecret(e.ctx, pool)
		if err != nil {
			return err
		}
		return e.print(c.JSON, map[string]int16{"id": id}, fmt.Sprintf("Links use secret %d from a minute on.\n", id))
	})
}
