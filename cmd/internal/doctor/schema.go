package doctor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxd/outboxd/migrations"
	"github.com/outboxd/outboxd/outbox"
)

func migrated(ctx context.Context, p *patient) Finding {
	err := migrations.Check(ctx, p.pool)
	if pgErr, refused := errors.AsType[*pgconn.PgError](err); refused && pgErr.Code == pgerrcode.InsufficientPrivilege {
		return unclear(err)
	}
	if err != nil {
		return problem(err.Error(), "outboxctl migrate up; or, where the database is newer, run a newer release.")
	}
	list, err := migrations.Status(ctx, p.pool)
	if err != nil {
		return unclear(err)
	}
	newest := map[string]int64{}
	for _, m := range list {
		newest[m.Line] = max(newest[m.Line], m.Version)
	}
	return ok("outboxd's migration %d, River's migration %d (library %s)", newest["outbox"], newest["river"], riverVersion())
}

// riverVersion is that of the library in this program.
func riverVersion() string {
	if info, found := debug.ReadBuildInfo(); found {
		for _, m := range info.Deps {
			if m.Path == "github.com/riverqueue/river" {
				return m.Version
			}
		}
	}
	return "unknown"
}

// sqlUnlogged leaves out what River keeps of its own clients: nothing of that
// matters after a crash.
const sqlUnlogged = `
SELECT coalesce(string_agg(c.relname, ', ' ORDER BY c.relname), '') FROM pg_class c
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r' AND c.relpersistence = 'u'
    AND c.relname NOT IN ('river_leader', 'river_client', 'river_client_queue')`

func unloggedTables(ctx context.Context, p *patient) Finding {
	var names string
	if err := p.pool.QueryRow(ctx, sqlUnlogged).Scan(&names); err != nil {
		return unclear(err)
	}
	if names != "" {
		return problem("these tables are emptied by a crash: "+names, "ALTER TABLE outbox.... SET LOGGED;")
	}
	return ok("every table outlives a crash")
}

// sqlPublicRights looks for rights of everybody. River's functions are harmless.
const sqlPublicRights = `
SELECT coalesce(string_agg(DISTINCT what, ', '), '') FROM (
    SELECT 'the schema' AS what FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = 'outbox' AND a.grantee = 0
    UNION ALL
    SELECT c.relname FROM pg_class c, aclexplode(c.relacl) a WHERE c.relnamespace = 'outbox'::regnamespace AND a.grantee = 0
    UNION ALL
    SELECT f.proname || '()' FROM pg_proc f, aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a
    WHERE f.pronamespace = 'outbox'::regnamespace AND a.grantee = 0 AND f.proname NOT LIKE 'river\_%'
) rights`

func publicRights(ctx context.Context, p *patient) Finding {
	var open string
	if err := p.pool.QueryRow(ctx, sqlPublicRights).Scan(&open); err != nil {
		return unclear(err)
	}
	if open != "" {
		return problem("every role of the database has rights on "+open,
			"REVOKE ALL ON ... FROM PUBLIC; and grant them to the roles that need them.")
	}
	return ok("no right on the schema outbox is everybody's")
}

func installation(ctx context.Context, p *patient) Finding {
	in, err := outbox.ReadInstallation(ctx, p.pool, p.cfg.Installation)
	if err != nil {
		return unclear(err)
	}
	switch {
	case !in.HeldBefore.IsZero():
		held, err := outbox.ListHeld(ctx, p.pool)
		if err != nil {
			return unclear(err)
		}
		n := 0
		for _, h := range held {
			n += h.Emails
		}
		return problem(fmt.Sprintf("%d emails are held since %s: %s", n, in.HeldBefore.UTC().Format(time.RFC3339), in.HeldBecause),
			"outboxctl restored; then outboxctl restored release, cancel or adopt.")
	case in.Differs != "":
		return problem("this is not the database that is recorded: "+in.Differs,
			"A worker that starts holds all emails. If there is no original any more: outboxctl restored adopt.")
	case !in.Recorded:
		return ok("no worker has run on this database yet")
	case in.Name == "":
		return ok("this is the database that is recorded; OUTBOXD_INSTALLATION would tell a disk snapshot of it, too")
	}
	return ok("this is the database of the installation %s", in.Name)
}

// sqlWaiting counts no further than it has to.
const sqlWaiting = `
SELECT count(*) FROM (
    SELECT FROM outbox.emails e
    WHERE e.ended_at IS NULL AND e.created_at < now() - interval '1 minute'
        AND coalesce(greatest(e.scheduled_at, e.next_attempt_at), e.created_at) < now() - interval '1 minute' LIMIT 10000) late`

func workersAlive(ctx context.Context, p *patient) Finding {
	alive, err := outbox.CountWorkers(ctx, p.pool)
	if err != nil {
		return unclear(err)
	}
	if alive > 0 {
		return ok("%d alive", alive)
	}
	var waiting int
	if err := p.pool.QueryRow(ctx, sqlWaiting).Scan(&waiting); err != nil {
		return unclear(err)
	}
	if waiting > 0 {
		return problem(fmt.Sprintf("no worker is alive, and %d emails wait", waiting), "Start a worker.")
	}
	return warning("no worker is alive", "Start a worker.")
}

func providersOut(ctx context.Context, p *patient) Finding {
	states, err := outbox.ProviderStates(ctx, p.pool)
	if err != nil {
		return unclear(err)
	}
	var out []string
	wrong := false
	for _, s := range states {
		if s.Reason != "" {
			out = append(out, fmt.Sprintf("%s (%s: %s)", s.Name, s.Reason, s.Detail))
			wrong = wrong || s.Reason == "misconfigured"
		}
	}
	found := "taken out: " + strings.Join(out, ", ")
	switch {
	case wrong:
		return problem(found, "Give the workers a valid key, and start them anew.")
	case len(out) > 0:
		return warning(found, "It is tried again by itself; see outboxctl providers.")
	}
	return ok("no provider is taken out")
}

// sqlUnfinished are the jobs that are to run, by kind and queue.
const sqlUnfinished = `
SELECT kind, queue, count(*) FROM outbox.river_job
WHERE state IN ('available', 'pending', 'retryable', 'scheduled') AND created_at < now() - interval '10 seconds'
GROUP BY kind, queue ORDER BY kind, queue`

type jobCount struct {
	Kind, Queue string
	Jobs        int
}

func unfinished(ctx context.Context, p *patient) ([]jobCount, error) {
	rows, err := p.pool.Query(ctx, sqlUnfinished)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[jobCount])
}

func jobKinds(ctx context.Context, p *patient) Finding {
	list, err := unfinished(ctx, p)
	if err != nil {
		return unclear(err)
	}
	var unknown []string
	for _, j := range list {
		if !slices.Contains(outbox.JobKinds(), j.Kind) {
			unknown = append(unknown, fmt.Sprintf("%d of kind %s in queue %s", j.Jobs, j.Kind, j.Queue))
		}
	}
	if len(unknown) > 0 {
		return warning("jobs that outboxd's workers do not know: "+strings.Join(unknown, ", "),
			"If they are not your application's own, a newer or older release made them: run one version everywhere.")
	}
	return ok("workers know every job")
}

func queues(ctx context.Context, p *patient) Finding {
	list, err := unfinished(ctx, p)
	if err != nil {
		return unclear(err)
	}
	var lost []string
	for _, j := range list {
		if slices.Contains(outbox.JobKinds(), j.Kind) && !slices.Contains(outbox.Queues(), j.Queue) {
			lost = append(lost, fmt.Sprintf("%d of kind %s in queue %s", j.Jobs, j.Kind, j.Queue))
		}
	}
	if len(lost) > 0 {
		return problem("nobody works on these jobs: "+strings.Join(lost, ", "),
			"Delete them in River UI: workers give emails without a job a new one, in the right queue.")
	}
	return ok("every job is in a queue that workers work on")
}

const sqlPaused = `
SELECT coalesce(string_agg(name, ', ' ORDER BY name), '') FROM outbox.river_queue
WHERE paused_at IS NOT NULL AND name = ANY ($1::text[])`

func pausedQueues(ctx context.Context, p *patient) Finding {
	var names string
	if err := p.pool.QueryRow(ctx, sqlPaused, outbox.Queues()).Scan(&names); err != nil {
		return unclear(err)
	}
	if names != "" {
		return problem("paused, so that nothing in them is sent: "+names, "Resume them in River UI, under Queues.")
	}
	return ok("no queue is paused")
}

// sqlOrphans looks at the oldest only: workers give these a job within seconds.
const sqlOrphans = `
SELECT count(*) FROM (
    SELECT e.id FROM outbox.emails e
    WHERE e.ended_at IS NULL AND e.created_at < now() - interval '1 minute' ORDER BY e.id LIMIT 10000) w
WHERE NOT EXISTS (
    SELECT FROM outbox.river_job j
    WHERE j.args ->> 'email_id' = w.id::text AND j.kind = 'deliver_email'
        AND j.state IN ('available', 'pending', 'retryable', 'running', 'scheduled'))`

func orphans(ctx context.Context, p *patient) Finding {
	var n int
	if err := p.pool.QueryRow(ctx, sqlOrphans).Scan(&n); err != nil {
		return unclear(err)
	}
	if n > 0 {
		return warning(fmt.Sprintf("%d emails have no job that comes for them", n),
			"A worker gives them one within seconds. If that does not happen, look at its log.")
	}
	return ok("a job comes for every email")
}

// sqlStuck finds emails that should be over. Those that wait for a person, or for a
// provider's key to be put right, may take any time.
const sqlStuck = `
SELECT count(*) FROM outbox.emails e
WHERE e.ended_at IS NULL
    AND greatest(e.created_at, e.scheduled_at, e.released_at) < now() - $1::interval
    AND coalesce(e.reason, '') NOT IN ('restored', 'org_paused', 'provider_misconfigured')
    AND NOT (e.status = 'unknown' AND coalesce(e.on_unknown, (SELECT o.on_unknown FROM outbox.orgs o WHERE o.id = e.org_id), $2) = 'hold')`

// stuckMargin is for what a doubt adds besides its wait.
const stuckMargin = time.Hour

func stuck(ctx context.Context, p *patient) Finding {
	bound := p.cfg.GiveUpAfter.D() + p.cfg.UnknownWait.D() + stuckMargin
	var n int
	if err := p.pool.QueryRow(ctx, sqlStuck, bound, p.cfg.OnUnknown).Scan(&n); err != nil {
		return unclear(err)
	}
	if n > 0 {
		return problem(fmt.Sprintf("%d emails are older than the %v in which each should end", n, bound),
			"outboxctl stuck says why, and what to do.")
	}
	return ok("no email is older than it may be")
}

const sqlAdminKeys = `
SELECT coalesce(string_agg(id, ', ' ORDER BY id), '') FROM outbox.api_keys
WHERE 'admin' = ANY (scopes) AND revoked_at IS NULL AND expires_at IS NULL AND created_at < now() - interval '1 year'`

func adminKeys(ctx context.Context, p *patient) Finding {
	var ids string
	if err := p.pool.QueryRow(ctx, sqlAdminKeys).Scan(&ids); err != nil {
		return unclear(err)
	}
	if ids != "" {
		return warning("keys with the scope admin are older than a year and do not expire: "+ids, "Make new ones and revoke these.")
	}
	return ok("no key with the scope admin is forgotten")
}
