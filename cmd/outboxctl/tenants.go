package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
)

type orgCmd struct {
	Create    orgCreateCmd    `cmd:"" help:"Create an org: a tenant with keys, emails and settings of its own."`
	Limit     orgLimitCmd     `cmd:"" help:"Say how many of an org's emails may wait."`
	Retention orgRetentionCmd `cmd:"" help:"Say how long the content of an org's emails is kept after their end."`
	List      orgListCmd      `cmd:"" help:"List all orgs, and what they have waiting."`
	Pause     orgPauseCmd     `cmd:"" help:"Let an org send nothing and submit nothing until it is resumed."`
	Resume    orgResumeCmd    `cmd:"" help:"End the pause of an org, and send what waited."`
	Delete    orgDeleteCmd    `cmd:"" help:"Delete an org with all that it has. What waits is not sent."`
}

type orgCreateCmd struct {
	Name                  string   `arg:"" help:"The org's name."`
	FromDomain            []string `help:"A domain that the org may send from; repeatable. Without one: any." placeholder:"DOMAIN"`
	RequireIdempotencyKey bool     `help:"Refuse submissions without an idempotency key."`
	OnUnknown             string   `help:"What becomes of emails in doubt: retry, hold or drop." enum:",retry,hold,drop" default:"" placeholder:"POLICY"`
	JSON                  bool     `help:"Print JSON."`
}

func (c orgCreateCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		id, err := api.CreateOrg(e.ctx, pool, api.Org{
			Name: c.Name, FromDomains: c.FromDomain, RequireIdempotencyKey: c.RequireIdempotencyKey, OnUnknown: c.OnUnknown,
		})
		if err != nil {
			return err
		}
		return e.print(c.JSON, map[string]string{"id": id.String(), "name": c.Name}, id.String()+"\n")
	})
}

// devKeyVariable holds the API key that an installation for development uses.
const devKeyVariable = "OUTBOXD_DEV_API_KEY"

type bootstrapCmd struct {
	Org string `default:"demo" help:"The org's name." placeholder:"NAME"`
}

func (c bootstrapCmd) Run(e environment) error {
	token := os.Getenv(devKeyVariable)
	if token == "" {
		return errors.New(devKeyVariable + " is not set; it looks like ob_<id>_<secret>, in letters and digits, the secret at least 32")
	}
	return e.withPool(func(pool *pgxpool.Pool) error {
		return bootstrap(e.ctx, pool, c.Org, token)
	})
}

// bootstrap makes an org and an admin key where they are missing.
func bootstrap(ctx context.Context, pool *pgxpool.Pool, org, token string) error {
	if _, err := api.CreateOrg(ctx, pool, api.Org{Name: org}); err != nil && !errors.Is(err, api.ErrExists) {
		return err
	}
	_, err := api.CreateKey(ctx, pool, api.Key{
		Org: org, Name: "bootstrap", Scopes: []string{"send", "read", "admin"}, Token: token,
	})
	if err != nil && !errors.Is(err, api.ErrExists) {
		return fmt.Errorf("%s: %w", devKeyVariable, err)
	}
	return nil
}
