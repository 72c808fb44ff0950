package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const sqlDurability = `
SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names')`

// durability asks for what makes a 2xx outlive the next crash. What holds is what
// this role has in this database.
func durability(ctx context.Context, p *patient) Finding {
	var fsync, pages, commit, standbys string
	if err := p.pool.QueryRow(ctx, sqlDurability).Scan(&fsync, &pages, &commit, &standbys); err != nil {
		return unclear(err)
	}
	switch {
	case fsync != "on":
		return problem("fsync is off: a crash of the machine can lose all data", "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();")
	case pages != "on":
		return problem("full_page_writes is off: a crash of the machine can ruin tables",
			"ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf(); unless the file system writes pages as a whole.")
	case commit == "off":
		return problem("synchronous_commit is off: an email that was answered 2xx can be lost in a crash",
			"ALTER DATABASE or ROLE ... SET synchronous_commit = on, or take it out of DATABASE_URL.")
	case commit == "local" && standbys != "":
		return problem("synchronous_commit is local, beside synchronous standbys: a failover can lose emails that were answered 2xx",
			"Set synchronous_commit = on.")
	case standbys == "":
		return ok("a 2xx is on the disk of this server; no synchronous standby has it, so a failover can lose the last moment")
	}
	return ok("a 2xx is on disk, and with the standbys %s (synchronous_commit is %s)", standbys, commit)
}

const sqlRole = `
SELECT r.rolname, r.rolsuper, r.rolbypassrls,
    coalesce(pg_has_role(r.rolname, n.nspowner, 'USAGE'), false)
FROM pg_roles r LEFT JOIN pg_namespace n ON n.nspname = 'outbox' WHERE r.rolname = current_user`

func role(ctx context.Context, p *patient) Finding {
	var name string
	var super, bypass, owns bool
	if err := p.pool.QueryRow(ctx, sqlRole).Scan(&name, &super, &bypass, &owns); err != nil {
		return unclear(err)
	}
	const advice = "Run api and workers as an ordinary role that has rights on the schema outbox and no more."
	switch {
	case super:
		return warning("the role "+name+" is a superuser: no wall inside Postgres applies to it", advice)
	case bypass:
		return warning("the role "+name+" has BYPASSRLS: row-level security does not apply to it", advice)
	case owns:
		return ok("the role %s is an ordinary one; it owns the schema outbox, as for migrations", name)
	}
	return ok("the role %s is an ordinary one, and does not own the schema outbox", name)
}

const (
	sqlVacuum = `
SELECT current_setting('autovacuum')::boolean, age(datfrozenxid)::bigint,
    coalesce((SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class c
        WHERE c.relnamespace = to_regnamespace('outbox') AND 'autovacuum_enabled=false' = ANY (c.reloptions)), '')
FROM pg_database WHERE datname = current_database()`

	// Postgres refuses writes when the age comes near 2,100 million.
	oldAge     = 1_000_000_000
	veryOldAge = 1_800_000_000
)

func vacuum(ctx context.Context, p *patient) Finding {
	var on bool
	var age int64
	var disabled string
	if err := p.pool.QueryRow(ctx, sqlVacuum).Scan(&on, &age, &disabled); err != nil {
		return unclear(err)
	}
	return judgeVacuum(on, age, disabled)
}

func judgeVacuum(on bool, age int64, disabled string) Finding {
	old := fmt.Sprintf("the oldest row is %d million transactions old; Postgres stops at 2,100 million", age/1_000_000)
	switch {
	case age > veryOldAge:
		return problem(old, "VACUUM FREEZE; and end what holds vacuum back, see long-transactions and replication-slots.")
	case !on:
		return problem("autovacuum is off: tables of jobs grow without bound", "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf();")
	case disabled != "":
		return warning("autovacuum is off for "+disabled, "ALTER TABLE outbox.... RESET (autovacuum_enabled);")
	case age > oldAge:
		return warning(old, "See why autovacuum does not keep up: long-transactions and replication-slots.")
	}
	return ok("autovacuum is on")
}

// sqlLongTransactions counts what keeps dead rows from being removed.
const sqlLongTransactions = `
SELECT pid, coalesce(application_name, ''), floor(extract(epoch FROM now() - xact_start))::bigint
FROM pg_stat_activity
WHERE datname = current_database() AND xact_start < now() - $1::interval AND pid <> pg_backend_pid()
    AND backend_type = 'client backend'
UNION ALL
SELECT 0, 'prepared ' || gid, floor(extract(epoch FROM now() - prepared))::bigint
FROM pg_prepared_xacts WHERE database = current_database() AND prepared < now() - $1::interval
ORDER BY 3 DESC`

// longTransaction is how old a transaction may be.
const longTransaction = "15 minutes"

func longTransactions(ctx context.Context, p *patient) Finding {
	return transactionsOver(ctx, p, longTransaction)
}

func transactionsOver(ctx context.Context, p *patient, age string) Finding {
	rows, err := p.pool.Query(ctx, sqlLongTransactions, age)
	if err != nil {
		return unclear(err)
	}
	var list []string
	var pid, seconds int64
	var name string
	_, err = pgx.ForEachRow(rows, []any{&pid, &name, &seconds}, func() error {
		list = append(list, fmt.Sprintf("%s (pid %d, %d s)", name, pid, seconds))
		return nil
	})
	if err != nil {
		return unclear(err)
	}
	if len(list) > 0 {
		return warning(fmt.Sprintf("%d transactions hold back vacuum: %s", len(list), strings.Join(list[:min(len(list), 3)], ", ")),
			"End them: SELECT pg_terminate_backend(pid), or ROLLBACK PREPARED.")
	}
	return ok("no transaction is older than %s", age)
}

// sqlSlots are those that keep WAL for nobody, or more of it than they should.
const sqlSlots = `
SELECT slot_name, active, coalesce(wal_status, ''),
    coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint
FROM pg_replication_slots WHERE NOT active AND restart_lsn IS NOT NULL
    OR wal_status IN ('unreserved', 'lost') ORDER BY slot_name`

func replicationSlots(ctx context.Context, p *patient) Finding {
	rows, err := p.pool.Query(ctx, sqlSlots)
	if err != nil {
		return unclear(err)
	}
	var list []string
	var name, status string
	var active bool
	var held int64
	_, err = pgx.ForEachRow(rows, []any{&name, &active, &status, &held}, func() error {
		list = append(list, fmt.Sprintf("%s (%s, %d MB)", name, status, held>>20))
		return nil
	})
	if err != nil {
		return unclear(err)
	}
	if len(list) > 0 {
		return warning("replication slots that nobody reads keep WAL until the disk is full: "+strings.Join(list, ", "),
			"Start their readers, or SELECT pg_drop_replication_slot(slot_name).")
	}
	return ok("no replication slot keeps WAL for nobody")
}
