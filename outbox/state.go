package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// State is what waits in the whole deployment, as its metrics show it.
type State struct {
	// Waiting are the emails that have not ended, by status and priority; those of
	// which there are none included.
	Waiting []Waiting
	// Workers is how many are alive.
	Workers int
	// FailingWebhooks are endpoints of orgs whose last request failed.
	FailingWebhooks int
}

// Waiting are the emails of a status and a priority.
type Waiting struct {
	Status   Status
	Priority Priority
	// Emails stops at 100000 scheduled and 100000 others.
	Emails int
	// Oldest is the age of the oldest of them since it was due, of status unknown
	// since it is in doubt. Zero: none is due.
	Oldest time.Duration
}

// ReadState reads the state of the deployment. It costs the same however much
// mail is stored.
func ReadState(ctx context.Context, pool *pgxpool.Pool) (*State, error) {
	s := new(State)
	ages := map[[2]string]time.Duration{}
	err := AcrossOrgs(pool).Query(ctx, func(rows pgx.Rows) error {
		var name string
		var labels [2]string
		var value float64
		_, err := pgx.ForEachRow(rows, []any{&name, &labels[0], &labels[1], &value}, func() error {
			switch name {
			case "outboxd_emails":
				s.Waiting = append(s.Waiting, Waiting{Status: Status(labels[0]), Priority: Priority(labels[1]), Emails: int(value)})
			case "outboxd_oldest_email_seconds":
				ages[labels] = time.Duration(value * float64(time.Second))
			case "outboxd_workers_alive":
				s.Workers = int(value)
			case "outboxd_webhooks_failing":
				s.FailingWebhooks = int(value)
			}
			return nil
		})
		return err
	}, sqlState, lockNamespace, stateLimit, Queues())
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	for i, w := range s.Waiting {
		s.Waiting[i].Oldest = ages[[2]string{string(w.Status), string(w.Priority)}]
	}
	return s, nil
}

// Pace is how fast emails come and go, in emails per second.
type Pace struct {
	// Submitted are new emails, and Accepted those that a provider took. Otherwise
	// are those that ended in any other way.
	Submitted, Accepted, Otherwise float64
}

const (
	// paceWindow is the time that a pace is measured over, and paceLimit how many
	// emails are looked at: beyond it the window is as short as they need.
	paceWindow = 5 * time.Minute
	paceLimit  = 5000
)

// sqlPace goes by the time in the ids of emails, and by River's index of when jobs
// were done: an email ends with its job. What belongs to a job is looked up one by
// one, by subqueries that no plan turns into a reading of all emails.
const sqlPace = `
WITH submitted AS (
    SELECT e.created_at AS at FROM outbox.emails e
    WHERE e.id >= rpad(lpad(to_hex((extract(epoch FROM now() - $1::interval) * 1000)::bigint), 12, '0'), 32, '0')::uuid
    ORDER BY e.id DESC LIMIT $2
), done AS (
    SELECT j.finalized_at AS at, (j.args ->> 'email_id')::uuid AS id FROM outbox.river_job j
    WHERE j.state = 'completed' AND j.finalized_at > now() - $1::interval AND j.kind = 'deliver_email'
    ORDER BY j.finalized_at DESC LIMIT $2
), ended AS (
    SELECT (SELECT e.status IN ('sent', 'delivered', 'bounced', 'complained') FROM outbox.emails e
        WHERE e.id = d.id AND e.ended_at IS NOT NULL) AS accepted
    FROM done d
), counts AS (
    SELECT (SELECT count(*) FROM submitted) AS submitted,
        (SELECT CASE WHEN count(*) = $2 THEN now() - min(at) ELSE $1::interval END FROM submitted) AS submitted_over,
        (SELECT count(*) FROM ended WHERE accepted) AS accepted, (SELECT count(*) FROM ended WHERE NOT accepted) AS otherwise,
        (SELECT CASE WHEN count(*) = $2 THEN now() - min(at) ELSE $1::interval END FROM done) AS ended_over
)
SELECT submitted / greatest(extract(epoch FROM submitted_over), 1)::float8,
    accepted / greatest(extract(epoch FROM ended_over), 1)::float8,
    otherwise / greatest(extract(epoch FROM ended_over), 1)::float8
FROM counts`

// ReadPace measures the pace of the last five minutes, or of less when it is so
// fast that the newest few thousand emails say enough.
func ReadPace(ctx context.Context, pool *pgxpool.Pool) (p Pace, err error) {
	err = AcrossOrgs(pool).QueryRow(ctx, scan(&p.Submitted, &p.Accepted, &p.Otherwise), sqlPace, paceWindow, paceLimit)
	if err != nil {
		return Pace{}, fmt.Errorf("read pace: %w", err)
	}
	return p, nil
}

// ProviderPace is how a provider has done lately, by the last attempts of emails
// that ended in the time of a [Pace].
type ProviderPace struct {
	Name string
	// Accepted and Rejected are attempts per second.
	Accepted, Rejected float64
	// Median is how long half of those attempts took at most.
	Median time.Duration
}

const sqlProviderPaces = `
WITH done AS (
    SELECT j.finalized_at AS at, (j.args ->> 'email_id')::uuid AS id FROM outbox.river_job j
    WHERE j.state = 'completed' AND j.finalized_at > now() - $1::interval AND j.kind = 'deliver_email'
    ORDER BY j.finalized_at DESC LIMIT $2
), span AS (
    SELECT greatest(extract(epoch FROM CASE WHEN count(*) = $2 THEN now() - min(at) ELSE $1::interval END), 1)::float8 AS seconds FROM done
)
SELECT a.provider, count(*) FILTER (WHERE a.stage = 'accepted') / s.seconds, count(*) FILTER (WHERE a.stage = 'rejected') / s.seconds,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY a.ended_at - a.began_at)
FROM (SELECT DISTINCT id FROM done) d CROSS JOIN span s CROSS JOIN LATERAL (
    SELECT a.provider, a.stage, a.began_at, a.ended_at FROM outbox.attempts a WHERE a.email_id = d.id ORDER BY a.number DESC LIMIT 1) a
WHERE a.stage IN ('accepted', 'rejected') AND a.ended_at > now() - $1::interval
GROUP BY a.provider, s.seconds ORDER BY a.provider`

// ReadProviderPaces measures what [ReadPace] does, for each provider that had
// something to do, by name.
func ReadProviderPaces(ctx context.Context, pool *pgxpool.Pool) (paces []ProviderPace, err error) {
	err = AcrossOrgs(pool).Query(ctx, collect(&paces, pgx.RowToStructByPos[ProviderPace]), sqlProviderPaces, paceWindow, paceLimit)
	if err != nil {
		return nil, fmt.Errorf("read pace of providers: %w", err)
	}
	return paces, nil
}

// Pause is something that somebody has stopped.
type Pause struct {
	// Kind is org, queue or installation.
	Kind string
	// Name is the org's or the queue's.
	Name string
	// Reason is empty when nobody gave one.
	Reason string
	// Since is when it was stopped.
	Since time.Time
}

// The kinds of pauses.
const (
	PauseOfOrg          = "org"
	PauseOfQueue        = "queue"
	PauseOfInstallation = "installation" // a restored database: its mail is held
)

const sqlListPauses = `
SELECT 'installation', '', coalesce(held_because, ''), recorded_at FROM outbox.installation WHERE held_before IS NOT NULL
UNION ALL (SELECT 'queue', name, '', paused_at FROM outbox.river_queue WHERE paused_at IS NOT NULL AND name = ANY ($1::text[]) ORDER BY name)
UNION ALL (SELECT 'org', name, coalesce(paused_reason, ''), paused_at FROM outbox.orgs WHERE paused_at IS NOT NULL AND deleted_at IS NULL ORDER BY name)`

// ListPauses returns what is stopped, but for providers: see [ProviderStates].
func ListPauses(ctx context.Context, pool *pgxpool.Pool) (list []Pause, err error) {
	err = AcrossOrgs(pool).Query(ctx, collect(&list, pgx.RowToStructByPos[Pause]), sqlListPauses, Queues())
	if err != nil {
		return nil, fmt.Errorf("list pauses: %w", err)
	}
	return list, nil
}

// Recovery is one time that jobs were taken from a worker and given to others.
type Recovery struct {
	At time.Time
	// Reason is the line that the jobs show in River UI.
	Reason string
	// Jobs is how many deliveries it was.
	Jobs int
}

// sqlListRecoveries reads the lines that a sweep leaves in the errors of the jobs
// that it frees, all of one pass with the same time.
const sqlListRecoveries = `
SELECT (x.error ->> 'at')::timestamptz, x.error ->> 'error', count(*)
FROM outbox.river_job j CROSS JOIN LATERAL unnest(j.errors) AS x (error)
WHERE j.metadata ? 'river:rescue_count' AND j.kind = 'deliver_email'
    AND (x.error ->> 'error' LIKE '` + goneBeforeID + `%` + goneAfterID + `' OR x.error ->> 'error' = '` + deliveryOverdue + `')
GROUP BY 1, 2 ORDER BY 1 DESC LIMIT $1`

// ListRecoveries returns the newest recoveries, as long as River keeps the jobs: a
// day, unless it is configured otherwise.
func ListRecoveries(ctx context.Context, pool *pgxpool.Pool, limit int) (list []Recovery, err error) {
	err = AcrossOrgs(pool).Query(ctx, collect(&list, pgx.RowToStructByPos[Recovery]), sqlListRecoveries, limit)
	if err != nil {
		return nil, fmt.Errorf("list recoveries: %w", err)
	}
	return list, nil
}
