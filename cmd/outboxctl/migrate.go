package main

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/migrations"
)

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Apply what is missing. Safe to run at any time and from several places."`
	Status migrateStatusCmd `cmd:"" help:"List migrations and whether the database has them."`
}

type migrateUpCmd struct{}

func (migrateUpCmd) Run(e environment) error {
	if e.databaseURL == "" {
		return errNoDatabase
	}
	if err := migrations.Up(e.ctx, e.databaseURL, logger()); err != nil {
		return err
	}
	_, err := fmt.Fprintln(e.out, "the database is up to date")
	return err
}

type migrateStatusCmd struct {
	JSON bool `help:"Print JSON."`
}

func (c migrateStatusCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		list, err := migrations.Status(e.ctx, pool)
		if err != nil {
			return err
		}
		var text strings.Builder
		for _, m := range list {
			state := "missing"
			if m.Applied {
				state = "applied"
			}
			fmt.Fprintf(&text, "%-8s %-7s %4d  %s\n", state, m.Line, m.Version, m.Name)
		}
		return e.print(c.JSON, list, text.String())
	})
}
