package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/cmd/internal/app"
	"github.com/outboxd/outboxd/outbox"
)

// rowLimit is the option of all that list what there may be very much of.
type rowLimit struct {
	Limit int `help:"How many to print at most. Default: 50." default:"50" placeholder:"N"`
}

// Validate is called by the command line.
func (l rowLimit) Validate() error {
	if l.Limit < 1 {
		return errors.New("--limit must be at least 1")
	}
	return nil
}

// doubtPolicy are the settings of the workers that say when a doubt is left to a
// person.
type doubtPolicy struct {
	UnknownWait app.Duration `env:"OUTBOXD_UNKNOWN_WAIT" help:"As the workers have it." default:"2m" placeholder:"DURATION"`
	OnUnknown   string       `env:"OUTBOXD_ON_UNKNOWN" help:"As the workers have it." enum:"retry,hold,drop" default:"retry" placeholder:"POLICY"`
}

// filter is what says of all emails whether they are stuck.
func (p doubtPolicy) filter(e environment) (outbox.StuckFilter, error) {
	keys, err := e.keys()
	return outbox.StuckFilter{UnknownWait: p.UnknownWait.D(), OnUnknown: outbox.Policy(p.OnUnknown), Keys: keys}, err
}

type stuckCmd struct {
	Org    string `help:"Only those of this org." placeholder:"NAME"`
	Reason string `help:"Only those that are stuck for this reason: ${stuck_reasons}." placeholder:"REASON"`
	rowLimit
	doubtPolicy
	JSON bool `help:"Print JSON."`
}

// Validate is called by the command line.
func (c stuckCmd) Validate() error {
	if c.Reason != "" && !slices.Contains(outbox.StuckReasons, outbox.StuckReason(c.Reason)) {
		return fmt.Errorf("--reason must be one of %s", stuckReasons())
	}
	return c.rowLimit.Validate()
}

// stuckReasons names all reasons.
func stuckReasons() string {
	names := make([]string, len(outbox.StuckReasons))
	for i, r := range outbox.StuckReasons {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

// Run lists the emails that somebody should look at.
func (c stuckCmd) Run(e environment) error {
	f, err := c.filter(e)
	if err != nil {
		return err
	}
	f.Reason = outbox.StuckReason(c.Reason)
	return e.withPool(func(pool *pgxpool.Pool) error {
		if c.Org != "" {
			if f.Org, err = api.FindOrg(e.ctx, pool, c.Org); err != nil {
				return err
			}
		}
		stuck, err := listStuck(e, pool, f, c.Limit+1)
		if err != nil {
			return err
		}
		more := len(stuck) > c.Limit
		if more {
			stuck = stuck[:c.Limit]
		}
		return e.print(c.JSON, stuck, stuckTable(stuck, more, time.Now()))
	})
}

// listStuck goes on until it has so many, or there are no more.
func listStuck(e environment, pool *pgxpool.Pool, f outbox.StuckFilter, limit int) ([]outbox.StuckEmail, error) {
	all := []outbox.StuckEmail{}
	for first := true; len(all) < limit && (first || f.After != uuid.Nil); first = false {
		f.Limit = limit - len(all)
		page, next, err := outbox.ListStuck(e.ctx, pool, f)
		if err != nil {
			return nil, err
		}
		all, f.After = append(all, page...), next
	}
	return all, nil
}

// stuckTable shows each email in a line, and each reason with what to do. It leaves
// out what senders wrote: terminals are logged.
func stuckTable(stuck []outbox.StuckEmail, more bool, now time.Time) string {
	if len(stuck) == 0 {
		return "Nothing is stuck.\n"
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "ID\tORG\tSTATUS\tREASON\tFOR\tATTEMPTS\tJOB")
	for _, s := range stuck {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", s.ID, cmp.Or(s.Org, s.OrgID.String()), s.Status, s.Reason,
			ageText(now.Sub(s.Since)), s.Attempts, jobText(s.JobID, s.JobState))
	}
	_ = table.Flush()
	if more {
		text.WriteString("There are more: see --limit, --org and --reason.\n")
	}
	for _, reason := range outbox.StuckReasons {
		of := slices.DeleteFunc(slices.Clone(stuck), func(s outbox.StuckEmail) bool { return s.Reason != reason })
		if len(of) > 0 {
			fmt.Fprintf(&text, "\n%s: %d, the oldest is %s.\n  %s\n", reason, len(of), of[0].ID, of[0].Advice)
		}
	}
	return text.String()
}

func jobText(id int64, state string) string {
	if id == 0 {
		return "none"
	}
	return fmt.Sprintf("%d %s", id, state)
}

// ageText is a duration for people: its two largest units at most.
func ageText(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}
