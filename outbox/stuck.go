package outbox

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// An email that should be over and is not has one reason to be shown with: the
// first that keeps it, so that who removes it sees the next one or none. What it
// is comes from the facts in the database, see stuck_reason.go; nothing is changed.

const (
	// stuckSlice is how many emails that are not over one statement looks at, and
	// stuckScan how many one call does.
	stuckSlice = 1000
	stuckScan  = 20_000

	// stuckLimit is how many emails are returned if nobody says how many.
	stuckLimit = 50
)

// StuckFilter selects emails that are stuck. The zero value: the oldest 50 of all.
type StuckFilter struct {
	// Org is one org; zero: all.
	Org uuid.UUID
	// Reason is one reason; empty: all.
	Reason StuckReason
	// After is where an earlier call said to go on; zero: at the oldest.
	After uuid.UUID
	// Limit is how many emails to return at most. Zero: 50.
	Limit int

	// UnknownWait and OnUnknown are as in the [WorkerConfig] of the workers, and
	// say when a doubt is left to a person. Zero: the defaults.
	UnknownWait time.Duration
	OnUnknown   Policy
	// Keys are those of the workers. Nil: whether one is missing is known of
	// emails only that a worker has looked at.
	Keys *KeyRing
}

// StuckEmail is an email that is not over, should be, and will not be soon by
// itself. It holds nothing that its sender wrote.
type StuckEmail struct {
	ID uuid.UUID `json:"id"`
	// Org is the org's name; empty: there is none of that id.
	Org    string      `json:"org"`
	OrgID  uuid.UUID   `json:"org_id"`
	Status Status      `json:"status"`
	Reason StuckReason `json:"reason"`
	// Advice is the reason in words, with what to do.
	Advice string `json:"advice"`
	// Since is when it was due, or when its doubt began.
	Since     time.Time `json:"since"`
	CreatedAt time.Time `json:"created_at"`
	Attempts  int       `json:"attempts"`
	// Provider is that of the attempt which is not over, with the key that it was
	// made under and the worker that made it. Empty: there is none.
	Provider    string    `json:"provider,omitempty"`
	ProviderKey uuid.UUID `json:"provider_key,omitzero"`
	Worker      string    `json:"worker,omitempty"`
	// JobID is the River job that should deliver the email, or the last that did;
	// zero: there is none.
	JobID    int64  `json:"job_id,omitzero"`
	JobState string `json:"job_state,omitempty"`
	JobQueue string `json:"job_queue,omitempty"`
}

// sqlStuckFacts reads the next emails that are not over, the oldest first, with
// all that says why. Those that wait for a time of their own are there for the
// cursor alone, and nothing is looked up for them.
const sqlStuckFacts = `
SELECT w.id, w.org_id, coalesce(o.name, ''), w.status, coalesce(w.reason, ''), w.priority, coalesce(w.provider, ''),
    coalesce(w.on_unknown, o.on_unknown, ''), w.created_at,
    greatest(w.began, o.resumed_at, a.ended_at, CASE WHEN w.reason IS NULL THEN w.next_attempt_at END),
    w.skipped, w.held, o.paused_at, coalesce(o.paused_reason, ''), w.attempts, coalesce(c.key_id, ''),
    a.stage IS NOT DISTINCT FROM 'sending', coalesce(a.provider, ''), coalesce(a.provider_key, w.id), coalesce(a.worker, ''),
    coalesce(a.began_at, w.created_at), coalesce(a.deadline, w.created_at), a.in_doubt_at,
    coalesce(j.id, 0), coalesce(j.state, ''), coalesce(j.queue, ''), coalesce(j.comes, false), coalesce(j.owner, ''),
    coalesce(j.attempted_at, w.created_at), coalesce(j.error, ''), coalesce(s.kind, '')
FROM (
    SELECT e.id, e.org_id, e.status, e.reason, e.priority, e.provider, e.on_unknown, e.created_at, e.attempts, e.next_attempt_at,
        greatest(e.created_at, e.scheduled_at, e.released_at) AS began,
        greatest(e.scheduled_at, e.next_attempt_at) AS due,
        ` + heldSQL + ` IS TRUE AS held,
        e.status IN ('scheduled', 'queued') AND greatest(e.scheduled_at,
            CASE WHEN e.reason IS NULL THEN e.next_attempt_at END) > now() IS TRUE
            OR $3::uuid IS NOT NULL AND e.org_id <> $3 AS skipped
    FROM outbox.emails e
    WHERE e.ended_at IS NULL AND e.id > $1
    ORDER BY e.id LIMIT $2
) w
LEFT JOIN outbox.orgs o ON o.id = w.org_id
LEFT JOIN LATERAL (
    SELECT a.* FROM outbox.attempts a WHERE a.email_id = w.id AND a.number = w.attempts AND NOT w.skipped LIMIT 1
) a ON true
LEFT JOIN LATERAL (
    SELECT c.key_id FROM outbox.email_contents c WHERE c.email_id = w.id AND NOT w.skipped LIMIT 1
) c ON true
LEFT JOIN LATERAL (
    SELECT j.id, j.state::text, j.queue, j.attempted_at, j.attempted_by[array_upper(j.attempted_by, 1)] AS owner,
        j.errors[array_upper(j.errors, 1)] ->> 'error' AS error, ` + comingJobSQL + ` AS comes
    FROM outbox.river_job j
    WHERE j.args ->> 'email_id' = w.id::text AND j.kind = 'deliver_email' AND NOT w.skipped
    ORDER BY ` + comingJobSQL + ` DESC, j.queue = '` + Queue + `' DESC, j.id DESC LIMIT 1
) j ON true
LEFT JOIN LATERAL (
    SELECT s.kind FROM outbox.river_job s
    WHERE j.id IS NULL AND s.args @> jsonb_build_object('email_id', w.id) AND s.kind <> 'deliver_email' AND s.finalized_at IS NULL
        AND NOT w.skipped LIMIT 1
) s ON true
ORDER BY w.id`

// stuckFacts is what is known of an email that is not over.
type stuckFacts struct {
	ID, Org   uuid.UUID
	OrgName   string
	Status    Status
	Reason    string
	Priority  int16
	Pinned    string // the provider that it may go to; empty: any
	OnUnknown Policy // its own or its org's
	CreatedAt time.Time
	// DueAt is when its next attempt could begin, whatever put that off.
	DueAt time.Time
	// Skipped says that it waits for a time of its own, or is not asked for.
	Skipped, Held bool
	PausedAt      *time.Time
	PausedReason  string
	Attempts      int16
	KeyID         string
	// Open says that the last attempt is not over; what follows is of that one.
	Open              bool
	Provider          string
	ProviderKey       uuid.UUID
	Worker            string
	BeganAt, Deadline time.Time
	InDoubtAt         *time.Time
	// JobID is the job that comes for it or, if none does, the last one; zero:
	// there is none.
	JobID          int64
	JobState       string
	JobQueue       string
	JobComes       bool
	JobOwner       string
	JobAttemptedAt time.Time
	JobError       string
	StrangeKind    string // of a job for it that is no delivery
}

// ListStuck returns emails that need an operator: they are not over, do not wait
// for a time of their own, and something keeps them for longer than it should. The
// oldest come first, those of all orgs. In order not to hold up a database with
// very many waiting emails, one call looks at the next 20000 only: next is where
// to go on with [StuckFilter.After]; zero: there are no more.
func ListStuck(ctx context.Context, pool *pgxpool.Pool, filter StuckFilter) (stuck []StuckEmail, next uuid.UUID, err error) {
	filter.Limit = cmp.Or(filter.Limit, stuckLimit)
	next = filter.After
	for range stuckScan / stuckSlice {
		// Anew for each slice: workers come and go meanwhile.
		s, err := readSituation(ctx, pool, filter)
		if err != nil {
			return nil, next, fmt.Errorf("list stuck emails: %w", err)
		}
		facts, err := readStuckFacts(ctx, pool, next, stuckSlice, filter.Org)
		if err != nil {
			return nil, next, fmt.Errorf("list stuck emails: %w", err)
		}
		for i := range facts {
			f := &facts[i]
			next = f.ID
			reason := s.judge(f)
			if reason == "" || filter.Reason != "" && reason != filter.Reason {
				continue
			}
			if stuck = append(stuck, s.show(f, reason)); len(stuck) == filter.Limit {
				return stuck, next, nil
			}
		}
		if len(facts) < stuckSlice {
			return stuck, uuid.Nil, nil
		}
	}
	return stuck, next, nil
}

// WhyStuck returns an email if it is stuck, and nil if it is not. Of the filter,
// only what the workers are configured with counts.
func WhyStuck(ctx context.Context, pool *pgxpool.Pool, id uuid.UUID, filter StuckFilter) (*StuckEmail, error) {
	s, err := readSituation(ctx, pool, filter)
	if err != nil {
		return nil, fmt.Errorf("why is it stuck: %w", err)
	}
	facts, err := readStuckFacts(ctx, pool, before(id), 1, uuid.Nil)
	if err != nil {
		return nil, fmt.Errorf("why is it stuck: %w", err)
	}
	if len(facts) == 0 || facts[0].ID != id {
		return nil, nil // it is over
	}
	reason := s.judge(&facts[0])
	if reason == "" {
		return nil, nil
	}
	e := s.show(&facts[0], reason)
	return &e, nil
}

// before returns the id that comes just before.
func before(id uuid.UUID) uuid.UUID {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]--; id[i] != 0xff {
			break
		}
	}
	return id
}

// sqlNoJIT is for a statement that Postgres takes for expensive, since it does not
// know that a job is found by its email at once: compiling takes seconds.
const sqlNoJIT = `SELECT set_config('jit', 'off', true)`

func readStuckFacts(ctx context.Context, pool *pgxpool.Pool, after uuid.UUID, n int, org uuid.UUID) (facts []stuckFacts, err error) {
	var batch pgx.Batch
	batch.Queue(sqlNoJIT)
	batch.Queue(sqlStuckFacts, after, n, nullable(org)).Query(collect(&facts, pgx.RowToStructByPos[stuckFacts]))
	return facts, AcrossOrgs(pool).Send(ctx, &batch)
}

// show is what an operator sees.
func (s *situation) show(f *stuckFacts, reason StuckReason) StuckEmail {
	e := StuckEmail{
		ID: f.ID, Org: f.OrgName, OrgID: f.Org, Status: f.Status, Reason: reason, Advice: s.advise(f, reason),
		Since: f.since().UTC(), CreatedAt: f.CreatedAt.UTC(), Attempts: int(f.Attempts),
		JobID: f.JobID, JobState: f.JobState, JobQueue: f.JobQueue,
	}
	if f.Open {
		e.Provider, e.ProviderKey, e.Worker = f.Provider, f.ProviderKey, f.Worker
	}
	return e
}

// since is when the email was due, or when its open attempt began or was doubted.
func (f *stuckFacts) since() time.Time {
	switch {
	case f.Open && f.InDoubtAt != nil:
		return *f.InDoubtAt
	case f.Open:
		return f.BeganAt
	}
	return f.DueAt
}
