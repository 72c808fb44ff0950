package main

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

type workersCmd struct {
	JSON bool `help:"Print JSON."`
}

// Run lists the workers that are alive, and the last that were.
func (c workersCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		workers, err := outbox.ListWorkers(e.ctx, pool)
		if err != nil {
			return err
		}
		if workers == nil {
			workers = []outbox.WorkerInfo{}
		}
		return e.print(c.JSON, workers, workerTable(workers))
	})
}

func workerTable(workers []outbox.WorkerInfo) string {
	if len(workers) == 0 {
		return "No worker has run on this database yet.\n"
	}
	var text strings.Builder
	if workers[0].State != outbox.WorkerAlive {
		text.WriteString("No worker is alive: nothing is sent. Start one.\n")
	}
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "ID\tSTATE\tVERSION\tSTARTED\tENDED\tEMAILS\tWEBHOOKS\tTAKEN OVER")
	for i := range workers {
		w := &workers[i]
		state := string(w.State)
		if w.Leads {
			state += ", leads"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", w.ID, state, cmp.Or(w.Version, "-"),
			whenText(w.StartedAt), whenText(w.EndedAt), w.Delivering, w.Telling, recoveredText(w))
	}
	_ = table.Flush()
	return text.String()
}

// recoveredText says what became of the jobs that a worker left.
func recoveredText(w *outbox.WorkerInfo) string {
	if w.Recovered == 0 {
		return "-"
	}
	return fmt.Sprintf("%d jobs, %s", w.Recovered, whenText(w.RecoveredAt))
}
