package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// JobInfo is a River job that delivers an email, as an operator sees it.
type JobInfo struct {
	ID    int64  `json:"id"`
	State string `json:"state"`
	Queue string `json:"queue"`
	// ScheduledAt is when it runs, or could run for the last time.
	ScheduledAt time.Time `json:"scheduled_at"`
	// Worker ran it last, or runs it. Empty: none has.
	Worker string `json:"worker,omitempty"`
	// Error is what its last run that failed said. Empty: none failed.
	Error string `json:"error,omitempty"`
}

const sqlListJobs = `
SELECT j.id, j.state::text, j.queue, j.scheduled_at, coalesce(j.attempted_by[array_upper(j.attempted_by, 1)], ''),
    coalesce(j.errors[array_upper(j.errors, 1)] ->> 'error', '')
FROM outbox.river_job j
WHERE j.args ->> 'email_id' = $1::uuid::text AND j.kind = 'deliver_email'
ORDER BY j.id DESC LIMIT 10`

// ListJobs returns the last 10 jobs of an email that River still keeps, the newest
// first.
func ListJobs(ctx context.Context, pool *pgxpool.Pool, email uuid.UUID) ([]JobInfo, error) {
	rows, err := pool.Query(ctx, sqlListJobs, email)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[JobInfo])
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	return jobs, nil
}
