package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

const (
	sqlVersion = `SELECT current_setting('server_version'), current_setting('server_version_num')::integer`

	// minVersion is the oldest Postgres that outboxd is made for.
	minVersion = 140000
)

func reachable(ctx context.Context, p *patient) Finding {
	if p.pool == nil {
		return problem("there is no connection: "+oneLine(p.poolErr.Error()), "Set DATABASE_URL, and see that Postgres answers there.")
	}
	var name string
	var number int
	if err := p.pool.QueryRow(ctx, sqlVersion).Scan(&name, &number); err != nil {
		return unclear(err)
	}
	return supported(name, number)
}

func supported(name string, number int) Finding {
	if number < minVersion {
		return problem("Postgres "+name+" is too old", "Upgrade it to 14 or newer.")
	}
	return ok("Postgres %s", name)
}

// databaseHosts looks for several hosts of which any may answer, the standby too.
func databaseHosts(_ context.Context, p *patient) Finding {
	cfg, err := pgxpool.ParseConfig(p.cfg.DatabaseURL)
	if err != nil {
		return problem("DATABASE_URL cannot be read", "It looks like postgres://user:password@host:5432/database.")
	}
	hosts := []string{cfg.ConnConfig.Host}
	for _, f := range cfg.ConnConfig.Fallbacks {
		if !slices.Contains(hosts, f.Host) {
			hosts = append(hosts, f.Host)
		}
	}
	if len(hosts) > 1 && cfg.ConnConfig.ValidateConnect == nil {
		return problem(fmt.Sprintf("DATABASE_URL names %s, and whichever answers is taken, a standby too", strings.Join(hosts, ", ")),
			"Add target_session_attrs=read-write to DATABASE_URL.")
	}
	return ok("%s", strings.Join(hosts, ", "))
}

func databaseEncryption(ctx context.Context, p *patient) Finding {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return unclear(err)
	}
	defer conn.Release()
	_, encrypted := conn.Conn().PgConn().Conn().(*tls.Conn)
	cfg := conn.Conn().Config()
	return judgeEncryption(cfg.Host, encrypted, cfg.TLSConfig, strings.Contains(p.cfg.DatabaseURL, "sslmode=disable"))
}

func judgeEncryption(host string, encrypted bool, cfg *tls.Config, wanted bool) Finding {
	const advice = "Add sslmode=verify-full, and sslrootcert if the authority is your own, to DATABASE_URL."
	switch {
	case isLocal(host):
		return ok("the database is on this machine")
	case !encrypted && wanted:
		return warning("mail and its content go to "+host+" in the clear, as sslmode=disable says", advice)
	case !encrypted:
		return problem("mail and its content go to "+host+" in the clear", advice)
	case cfg != nil && cfg.InsecureSkipVerify && cfg.VerifyPeerCertificate == nil && cfg.VerifyConnection == nil:
		return warning("the connection is encrypted, and nobody checks with whom", advice)
	}
	return ok("the connection is encrypted and the server's certificate checked")
}

const sqlReadOnly = `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::boolean`

func readWrite(ctx context.Context, p *patient) Finding {
	var standby, readOnly bool
	if err := p.pool.QueryRow(ctx, sqlReadOnly).Scan(&standby, &readOnly); err != nil {
		return unclear(err)
	}
	return judgeReadOnly(standby, readOnly)
}

func judgeReadOnly(standby, readOnly bool) Finding {
	switch {
	case standby:
		return problem("the database is a standby", "Point DATABASE_URL at the primary, or add target_session_attrs=read-write.")
	case readOnly:
		return problem("transactions are read-only for this role or database",
			"ALTER ROLE ... SET default_transaction_read_only = off, or the same of the database.")
	}
	return ok("the database takes writes")
}

func sessions(ctx context.Context, p *patient) Finding {
	if _, err := outbox.TrySession(ctx, p.pool); err != nil {
		return problem(oneLine(err.Error()), "Point the workers' DATABASE_URL straight at Postgres, or at a pooler in session mode.")
	}
	return ok("a worker's session keeps its lock")
}

func vanishedHosts(ctx context.Context, p *patient) Finding {
	lost, err := outbox.TrySession(ctx, p.pool)
	if err != nil {
		return warning("it depends on the check sessions", "See there.")
	}
	return judgeVanished(p.pool.Config().ConnConfig.Host, lost)
}

// judgeVanished has nothing to say about a Unix socket: there is no host to vanish.
func judgeVanished(host string, lost map[string]string) Finding {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(lost)) {
		if name != "application_name" && (!isLocal(host) || !strings.HasPrefix(name, "tcp_")) {
			names = append(names, name+" is "+lost[name])
		}
	}
	if len(names) > 0 {
		return warning("a worker's session has not the settings that it asks for: "+strings.Join(names, ", "),
			"Let the pooler or the server's system keep them: a worker whose host vanishes is noticed late, or one that is idle is cut off.")
	}
	return ok("a worker whose host vanishes is noticed within seconds")
}

// sqlTimeOuts are in milliseconds; zero: no bound.
const sqlTimeOuts = `
SELECT name, setting::bigint FROM pg_settings
WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')`

func timeOuts(ctx context.Context, p *patient) Finding {
	api, err := p.cfg.APIPool()
	if err != nil {
		return unclear(err)
	}
	conn, err := pgx.ConnectConfig(ctx, api.ConnConfig)
	if err != nil {
		return unclear(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	findings := []Finding{}
	for program, db := range map[string]querier{"api": conn, "worker": p.pool} {
		set, err := readTimeOuts(ctx, db)
		if err != nil {
			return unclear(err)
		}
		findings = append(findings, judgeTimeOuts(program, set))
	}
	return worst(findings)
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func readTimeOuts(ctx context.Context, db querier) (map[string]time.Duration, error) {
	rows, err := db.Query(ctx, sqlTimeOuts)
	if err != nil {
		return nil, err
	}
	set := map[string]time.Duration{}
	var name string
	var millis int64
	_, err = pgx.ForEachRow(rows, []any{&name, &millis}, func() error {
		set[name] = time.Duration(millis) * time.Millisecond
		return nil
	})
	return set, err
}

// minStatement is what the largest of our statements need.
const minStatement = 5 * time.Second

func judgeTimeOuts(program string, set map[string]time.Duration) Finding {
	const advice = "Take it out of DATABASE_URL, and let the pooler pass on what api and worker ask for."
	for _, name := range []string{"statement_timeout", "transaction_timeout"} {
		if d := set[name]; d > 0 && d < minStatement {
			return problem(fmt.Sprintf("%s of %s is %v, less than its statements may take", name, program, d), advice)
		}
	}
	for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
		if set[name] == 0 {
			return warning(name+" of "+program+" is off: a process that is frozen may hold up others without bound", advice)
		}
	}
	return ok("statements, locks and idle transactions of api and worker are bounded")
}

// worst returns the finding that matters most.
func worst(findings []Finding) Finding {
	rank := map[Verdict]int{OK: 0, Warning: 1, Problem: 2}
	return slices.MaxFunc(findings, func(a, b Finding) int { return rank[a.Verdict] - rank[b.Verdict] })
}

// sqlConnections counts what is free to this role, and what our processes have by
// now.
const sqlConnections = `
SELECT current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
    (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
    (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
    count(*) FILTER (WHERE a.backend_type = 'client backend' AND a.application_name NOT LIKE 'outboxd-%'),
    count(*) FILTER (WHERE a.application_name = 'outboxd-api' AND a.datname = current_database())
FROM pg_stat_activity a`

func connections(ctx context.Context, p *patient) Finding {
	var limit, roleLimit, databaseLimit, others, apis int
	if err := p.pool.QueryRow(ctx, sqlConnections).Scan(&limit, &roleLimit, &databaseLimit, &others, &apis); err != nil {
		return unclear(err)
	}
	worker, err := p.cfg.WorkerPool()
	if err != nil {
		return unclear(err)
	}
	api, err := p.cfg.APIPool()
	if err != nil {
		return unclear(err)
	}
	workers, err := outbox.CountWorkers(ctx, p.pool)
	if err != nil {
		workers = 0 // not migrated yet
	}
	// A worker has two beside its pool: the liveness session, and River's for
	// notifications.
	perAPI := int(api.MaxConns)
	need := max(workers, 1)*(int(worker.MaxConns)+2) + max((apis+perAPI-1)/perAPI, 1)*perAPI
	for _, own := range []int{roleLimit, databaseLimit} {
		if own >= 0 {
			limit = min(limit, own+others)
		}
	}
	found := fmt.Sprintf("%d api and worker processes may open %d connections, others have %d, and %d are allowed",
		max(workers, 1)+max((apis+perAPI-1)/perAPI, 1), need, others, limit)
	if need+others > limit {
		return warning(found, "Raise max_connections, or the limit of the role or database, or lower OUTBOXD_CONCURRENCY.")
	}
	return ok("%s", found)
}

const sqlClock = `SELECT clock_timestamp()`

func clock(ctx context.Context, p *patient) Finding {
	asked := time.Now()
	var theirs time.Time
	if err := p.pool.QueryRow(ctx, sqlClock).Scan(&theirs); err != nil {
		return unclear(err)
	}
	// In the middle of the round trip, as far as one can tell.
	return judgeClock(theirs.Sub(asked.Add(time.Since(asked) / 2).Round(0)))
}

func judgeClock(ahead time.Duration) Finding {
	found := fmt.Sprintf("this machine's clock and the database's differ by %v", ahead.Abs().Round(time.Millisecond))
	const advice = "Let both machines follow an NTP server."
	switch {
	case ahead.Abs() > 30*time.Second:
		return problem(found, advice)
	case ahead.Abs() > time.Second:
		return warning(found, advice)
	}
	return ok("%s", found)
}
