// Command outboxctl is the operator's and developer's tool of outboxd.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/cmd/internal/app"
	"github.com/outboxd/outboxd/outbox"
)

// cli is the command line.
type cli struct {
	DatabaseURL string           `name:"database-url" env:"DATABASE_URL" help:"postgres://user:password@host:5432/database"`
	Version     kong.VersionFlag `help:"Print the version and exit."`

	Migrate      migrateCmd      `cmd:"" help:"Bring the database to this version's schema."`
	Org          orgCmd          `cmd:"" help:"Manage orgs."`
	Key          keyCmd          `cmd:"" help:"Manage API keys."`
	Emails       emailsCmd       `cmd:"" help:"Look at emails and help those that are stuck."`
	Stuck        stuckCmd        `cmd:"" help:"List the emails that are stuck, each with its reason, and say what to do."`
	Workers      workersCmd      `cmd:"" help:"List the workers that are alive, and the last that were."`
	Suppressions suppressionsCmd `cmd:"" help:"List, add and remove addresses that an org does not send to."`
	Doctor       doctorCmd       `cmd:"" help:"Look for what loses mail, stops it or exposes it. It changes nothing."`
	Restored     restoredCmd     `cmd:"" help:"Look after the emails that came with a restored or copied database."`
	Rekey        rekeyCmd        `cmd:"" help:"Seal all content under the first of OUTBOXD_ENCRYPTION_KEYS."`
	Providers    providersCmd    `cmd:"" help:"List the providers, and why one is left alone."`
	Bootstrap    bootstrapCmd    `cmd:"" help:"Make an org with an API key, unless they are there."`
	Dev          devCmd          `cmd:"" help:"Run everything on this machine: Postgres, API, worker and an inbox."`
	FakeESP      fakeESPCmd      `cmd:"" name:"fake-esp" help:"Stand in for all providers, with faults on request, for your own tests."`
	Healthcheck  healthcheckCmd  `cmd:"" help:"Exit 0 if a URL answers 2xx; for images without a shell."`
}

// environment is what commands run in.
type environment struct {
	ctx         context.Context
	databaseURL string
	// encryptionKeys are in no argument: everybody on a machine sees those.
	encryptionKeys string
	out            io.Writer
	errOut         io.Writer
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once

	var c cli
	parser, err := kong.New(&c,
		kong.Name("outboxctl"),
		kong.Description("The operator's and developer's tool of outboxd.\n\n"+
			"Exit codes: 0 it is done; 1 it failed, or doctor found a problem; 2 the command line is wrong."),
		kong.Vars{"version": "outboxctl " + app.Version, "stuck_reasons": stuckReasons(), "statuses": statuses()},
		kong.Writers(out, errOut),
		kong.UsageOnError(),
	)
	if err != nil {
		panic(err) // the command line's own definition is wrong
	}
	command, err := parser.Parse(args)
	if err != nil {
		_, _ = fmt.Fprintf(errOut, "outboxctl: %v\nTry outboxctl --help.\n", err)
		return 2
	}
	env := environment{
		ctx: ctx, databaseURL: c.DatabaseURL, encryptionKeys: os.Getenv("OUTBOXD_ENCRYPTION_KEYS"), out: out, errOut: errOut,
	}
	if err := command.Run(env); err != nil {
		_, _ = fmt.Fprintf(errOut, "outboxctl: %v\n", err)
		return 1
	}
	return 0
}

var errNoDatabase = errors.New("DATABASE_URL is not set; it looks like postgres://user:password@host:5432/database")

// withPool runs a command on the database.
func (e environment) withPool(run func(*pgxpool.Pool) error) error {
	if e.databaseURL == "" {
		return errNoDatabase
	}
	pool, err := pgxpool.New(e.ctx, e.databaseURL)
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer pool.Close()
	return run(pool)
}

// withClient runs a command that works on emails.
func (e environment) withClient(cfg outbox.Config, run func(*outbox.Client, *pgxpool.Pool) error) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		client, err := outbox.NewClient(pool, cfg)
		if err != nil {
			return err
		}
		return run(client, pool)
	})
}

// print writes a result as JSON, or as the text that a person reads.
func (e environment) print(asJSON bool, v any, text string) error {
	if !asJSON {
		_, err := io.WriteString(e.out, text)
		return err
	}
	encoder := json.NewEncoder(e.out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// logger is for work that takes a while.
func logger() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }
