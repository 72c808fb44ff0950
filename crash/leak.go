package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// canary is in each address, in the subject and in the text of a cell's email, and
// nowhere else.
const (
	canary   = "canary"
	canaryTo = canary + "-to@example.net"
)

// leaks returns what holds content of the email and must not: lines that workers
// printed, and jobs, whose arguments and errors everybody sees who looks at queues.
func (x *experiment) leaks(ctx context.Context) ([]string, error) {
	var found []string
	for i, w := range x.all {
		for _, line := range w.printed() {
			if strings.Contains(line, canary) {
				found = append(found, fmt.Sprintf("worker %d printed %s", i+1, line))
			}
		}
	}
	jobs, err := x.db.jobsWith(ctx, canary)
	return append(found, jobs...), err
}

// jobsWith returns the jobs that hold a text anywhere.
func (d *database) jobsWith(ctx context.Context, text string) ([]string, error) {
	rows, err := d.pool.Query(ctx, `SELECT to_jsonb(j)::text FROM outbox.river_job j WHERE strpos(to_jsonb(j)::text, $1) > 0`, text)
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	return jobs, nil
}
