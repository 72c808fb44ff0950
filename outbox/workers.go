package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// workersShown is how many workers are listed besides those that are alive.
const workersShown = 50

// WorkerState says what became of a worker.
type WorkerState string

// The states of a worker.
const (
	// WorkerAlive: its session with Postgres stands.
	WorkerAlive WorkerState = "alive"
	// WorkerGone: its session has ended and it has not said so. It was killed, or
	// it is cut off.
	WorkerGone WorkerState = "gone"
	// WorkerEnded: it stopped by itself, or what it held was taken over.
	WorkerEnded WorkerState = "ended"
)

// WorkerInfo is what an operator sees of a worker. A process that loses its session
// goes on as another worker, with an id of its own.
type WorkerInfo struct {
	ID      string      `json:"id"`
	State   WorkerState `json:"state"`
	Host    string      `json:"host"`
	PID     int         `json:"pid"`
	Version string      `json:"version"`
	// Leads says that it is the one which does River's maintenance.
	Leads     bool      `json:"leads"`
	StartedAt time.Time `json:"started_at"`
	// EndedAt is when it stopped or was found dead. Zero: neither.
	EndedAt time.Time `json:"ended_at,omitzero"`
	// Delivering and Telling are how many emails and how many messages of
	// webhooks it has under way.
	Delivering int `json:"delivering"`
	Telling    int `json:"telling_webhooks"`
	// Recovered is how many jobs were taken over from it, of those that River
	// still keeps, and RecoveredAt when the last one was; zero: none.
	Recovered   int       `json:"recovered"`
	RecoveredAt time.Time `json:"recovered_at,omitzero"`
}

// sqlListWorkers counts running jobs, and those that were rescued, by their
// indexes. The session's lock alone proves that a worker lives.
const sqlListWorkers = `
WITH listed AS (
    (SELECT w.*, true AS alive FROM outbox.workers w
    WHERE w.ended_at IS NULL AND w.id IN (` + sqlListAlive + `))
    UNION ALL
    (SELECT w.*, false FROM outbox.workers w
    WHERE w.ended_at IS NOT NULL OR w.id NOT IN (` + sqlListAlive + `)
    ORDER BY coalesce(w.ended_at, w.started_at) DESC LIMIT $2)
), running AS (
    SELECT attempted_by[array_upper(attempted_by, 1)] AS worker,
        count(*) FILTER (WHERE kind = 'deliver_email') AS delivering, count(*) FILTER (WHERE kind = 'deliver_webhook') AS telling
    FROM outbox.river_job WHERE state = 'running' GROUP BY 1
), recovered AS (
    SELECT e.error ->> 'error' AS error, count(*) AS jobs, max((e.error ->> 'at')::timestamptz) AS at
    FROM outbox.river_job j CROSS JOIN LATERAL unnest(j.errors) AS e (error)
    WHERE j.metadata ? 'river:rescue_count' GROUP BY 1
)
SELECT w.id, CASE WHEN w.alive THEN 'alive' WHEN w.ended_at IS NULL THEN 'gone' ELSE 'ended' END,
    w.host, w.pid, w.version, EXISTS (SELECT FROM outbox.river_leader l WHERE l.leader_id = w.id AND l.expires_at > now()),
    w.started_at, w.ended_at, coalesce(r.delivering, 0), coalesce(r.telling, 0), coalesce(t.jobs, 0), t.at
FROM listed w
LEFT JOIN running r ON r.worker = w.id
LEFT JOIN recovered t ON t.error = '` + goneBeforeID + `' || w.id || '` + goneAfterID + `'
ORDER BY w.alive DESC, w.started_at DESC, w.id`

// ListWorkers returns the workers that are alive, and after them the last 50 that
// were; each kind with the newest first.
func ListWorkers(ctx context.Context, pool *pgxpool.Pool) (workers []WorkerInfo, err error) {
	err = AcrossOrgs(pool).Query(ctx, collect(&workers, scanWorker), sqlListWorkers, lockNamespace, workersShown)
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return workers, nil
}

func scanWorker(row pgx.CollectableRow) (w WorkerInfo, err error) {
	var ended, recovered *time.Time
	err = row.Scan(&w.ID, &w.State, &w.Host, &w.PID, &w.Version, &w.Leads, &w.StartedAt, &ended,
		&w.Delivering, &w.Telling, &w.Recovered, &recovered)
	w.StartedAt, w.EndedAt, w.RecoveredAt = w.StartedAt.UTC(), timeOf(ended), timeOf(recovered)
	return w, err
}
