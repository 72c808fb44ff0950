package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/cmd/internal/app"
	"github.com/outboxd/outboxd/outbox"
)

type restoredCmd struct {
	Show    restoredShowCmd    `cmd:"" default:"withargs" help:"Show what is held, by org."`
	Release restoredReleaseCmd `cmd:"" help:"Send held emails."`
	Cancel  restoredCancelCmd  `cmd:"" help:"End held emails without sending them."`
	Adopt   restoredAdoptCmd   `cmd:"" help:"There is no original any more: record this database, and send what is held."`
}

// installationName is the option of all that compares this database with the one
// that is recorded.
type installationName struct {
	Installation string `env:"OUTBOXD_INSTALLATION" help:"The name that the workers have." placeholder:"NAME"`
}

type restoredShowCmd struct {
	installationName
	JSON bool `help:"Print JSON."`
}

// restoredView is what is shown of a database.
type restoredView struct {
	Installation string        `json:"installation"`
	Differs      string        `json:"differs"`
	HeldBefore   *time.Time    `json:"held_before"`
	HeldBecause  string        `json:"held_because"`
	Held         []outbox.Held `json:"held"`
}

func (c restoredShowCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		in, err := outbox.ReadInstallation(e.ctx, pool, c.Installation)
		if err != nil {
			return err
		}
		held, err := outbox.ListHeld(e.ctx, pool)
		if err != nil {
			return err
		}
		view := restoredView{Installation: in.Name, Differs: in.Differs, HeldBecause: in.HeldBecause, Held: held}
		if !in.HeldBefore.IsZero() {
			view.HeldBefore = &in.HeldBefore
		}
		return e.print(c.JSON, view, describeRestored(in, held))
	})
}

func describeRestored(in *outbox.Installation, held []outbox.Held) string {
	var text strings.Builder
	switch {
	case !in.Recorded:
		return "No worker has run on this database yet.\n"
	case in.HeldBefore.IsZero() && in.Differs == "":
		return "This is the database that is recorded. Nothing is held.\n"
	case in.HeldBefore.IsZero():
		fmt.Fprintf(&text, "This database is not the one that is recorded: %s. A worker that starts will hold all\n"+
			"emails of before. If there is no original any more, type: outboxctl restored adopt\n", in.Differs)
		return text.String()
	}
	fmt.Fprintf(&text, "Emails submitted before %s are held: %s.\n", in.HeldBefore.UTC().Format(time.RFC3339), in.HeldBecause)
	for _, h := range held {
		fmt.Fprintf(&text, "%-20s  %d emails, %d webhook messages", h.Org, h.Emails, h.Messages)
		if h.Emails > 0 {
			fmt.Fprintf(&text, ", due %s to %s", h.Oldest.UTC().Format(time.RFC3339), h.Newest.UTC().Format(time.RFC3339))
		}
		text.WriteByte('\n')
	}
	text.WriteString("Type: outboxctl restored release|cancel [--org NAME] [--younger-than 1h] [--older-than 1d], or adopt\n")
	return text.String()
}

// heldScope are the options that choose among the held emails.
type heldScope struct {
	installationName
	Org         string       `help:"Only those of this org." placeholder:"NAME"`
	YoungerThan app.Duration `help:"Only those that were due within this time, such as 1h or 2d." placeholder:"DURATION"`
	OlderThan   app.Duration `help:"Only those that were due before that." placeholder:"DURATION"`
	JSON        bool         `help:"Print JSON."`
}

// run changes the held emails, and ends the hold when none is left.
func (s heldScope) run(e environment, did string, change func(*outbox.Client, outbox.HeldScope) (int, error)) error {
	return e.withClient(outbox.Config{}, func(client *outbox.Client, pool *pgxpool.Pool) (err error) {
		scope := outbox.HeldScope{YoungerThan: s.YoungerThan.D(), OlderThan: s.OlderThan.D()}
		if s.Org != "" {
			if scope.Org, err = api.FindOrg(e.ctx, pool, s.Org); err != nil {
				return err
			}
		}
		n, err := change(client, scope)
		if err != nil {
			return err
		}
		ended, err := client.EndHold(e.ctx, s.Installation)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%d emails %s. Others are still held: see outboxctl restored\n", n, did)
		if ended {
			text = fmt.Sprintf("%d emails %s. None is held any more, and this database is recorded.\n", n, did)
		}
		return e.print(s.JSON, map[string]any{did: n, "ended": ended}, text)
	})
}

// progress tells the person at the keyboard that it goes on.
func (e environment) progress(did string) func(int) {
	return func(n int) { _, _ = fmt.Fprintf(e.errOut, "%d %s\n", n, did) }
}

type restoredReleaseCmd struct{ heldScope }

func (c restoredReleaseCmd) Run(e environment) error {
	return c.run(e, "released", func(client *outbox.Client, scope outbox.HeldScope) (int, error) {
		return client.Release(e.ctx, scope, e.progress("released"))
	})
}

type restoredCancelCmd struct{ heldScope }

func (c restoredCancelCmd) Run(e environment) error {
	return c.run(e, "canceled", func(client *outbox.Client, scope outbox.HeldScope) (int, error) {
		return client.CancelHeld(e.ctx, scope, who(), e.progress("canceled"))
	})
}

type restoredAdoptCmd struct {
	installationName
	JSON bool `help:"Print JSON."`
}

func (c restoredAdoptCmd) Run(e environment) error {
	scope := heldScope{installationName: c.installationName, JSON: c.JSON}
	return scope.run(e, "released", func(client *outbox.Client, all outbox.HeldScope) (int, error) {
		return client.Release(e.ctx, all, e.progress("released"))
	})
}
