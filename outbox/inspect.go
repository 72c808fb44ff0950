package outbox

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What a tool that examines an installation asks of this package.

// riverRescue is how long River leaves a running job alone.
const riverRescue = time.Hour

// Times are bounds of a delivery, each of which has to be longer than the one
// before.
type Times struct {
	// Send bounds a call to a provider, SoftStop what is being sent when a worker
	// stops, Job a whole job, and Rescue is when River's last resort takes the job
	// for lost.
	Send, SoftStop, Job, Rescue time.Duration
}

// Times returns the bounds that a worker with this configuration has.
func (cfg WorkerConfig) Times() (Times, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Times{}, err
	}
	d := &deliverer{cfg: cfg}
	return Times{Send: cfg.SendTimeout, SoftStop: d.softStop(), Job: d.Timeout(nil), Rescue: riverRescue}, nil
}

// JobKinds are the kinds of jobs that workers know. Any other kind in [Schema] is an
// application's own, or a mistake.
func JobKinds() []string {
	return []string{
		deliverArgs{}.Kind(), webhookArgs{}.Kind(), purgeKeysArgs{}.Kind(), adoptEventsArgs{}.Kind(), keepWebhooksArgs{}.Kind(),
		purgeOrgsArgs{}.Kind(), sealArgs{}.Kind(), purgeContentsArgs{}.Kind(),
	}
}

// Queues are the queues that workers work on.
func Queues() []string { return []string{Queue, WebhookQueue, maintenanceQueue} }

// sqlCountAlive counts workers by their locks.
const sqlCountAlive = `SELECT count(DISTINCT l.pid) FROM ` + aliveSQL + ` WHERE w.ended_at IS NULL`

// CountWorkers returns how many workers are alive.
func CountWorkers(ctx context.Context, pool *pgxpool.Pool) (n int, err error) {
	if err := pool.QueryRow(ctx, sqlCountAlive, lockNamespace).Scan(&n); err != nil {
		return 0, fmt.Errorf("count workers: %w", err)
	}
	return n, nil
}

// sqlShowSettings reads what is in effect, in the units of the setting.
const sqlShowSettings = `SELECT name, setting FROM pg_settings WHERE name = ANY ($1::text[])`

// TrySession opens a worker's liveness session for a moment, and returns those of
// its settings that are not in effect, with what is instead. The error says that
// the connection keeps no session, as behind a pooler in transaction mode.
func TrySession(ctx context.Context, pool *pgxpool.Pool) (lost map[string]string, err error) {
	conn, err := pgx.ConnectConfig(ctx, sessionConfig(pool))
	if err != nil {
		return nil, fmt.Errorf("liveness session: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	s := &session{conn: conn, id: "doctor/" + rand.Text()}
	var locked bool
	if err := conn.QueryRow(ctx, sqlLockWorker, lockNamespace, lockKey(s.id)).Scan(&locked, &s.backend); err != nil {
		return nil, fmt.Errorf("liveness session: %w", err)
	}
	if err := s.checkOwn(ctx, pool); err != nil {
		return nil, err
	}
	wanted := maps.Clone(sessionSettings)
	wanted["statement_timeout"], wanted["lock_timeout"] = "5000", "5000"
	names := make([]string, 0, len(wanted))
	for name := range wanted {
		names = append(names, name)
	}
	rows, err := conn.Query(ctx, sqlShowSettings, names)
	if err != nil {
		return nil, err
	}
	lost = map[string]string{}
	var name, setting string
	_, err = pgx.ForEachRow(rows, []any{&name, &setting}, func() error {
		if setting != wanted[name] {
			lost[name] = setting
		}
		return nil
	})
	return lost, err
}
