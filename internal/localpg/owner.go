package localpg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// owner is the ordinary role that owns the databases. Row-level security does not
// hold for a superuser, so nobody should work as one, nor test as one.
const owner = "outboxd"

// sqlMakeOwner makes the role where it is missing, and the database's schemas,
// tables, functions and types its own: data of earlier versions belongs to the
// superuser. What belongs to an extension or follows its table stays.
const sqlMakeOwner = `
DO $$
DECLARE
    thing text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '` + owner + `') THEN
        CREATE ROLE ` + owner + ` LOGIN CREATEDB;
    END IF;
    EXECUTE format('ALTER DATABASE %I OWNER TO ` + owner + `', current_database());
    FOR thing IN
        WITH own AS (
            SELECT oid, nspname, nspowner FROM pg_namespace
            WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
        ), part AS (
            SELECT classid, objid FROM pg_depend WHERE deptype IN ('e', 'a', 'i')
                AND refclassid IN ('pg_extension'::regclass, 'pg_class'::regclass)
        )
        SELECT format('SCHEMA %I', nspname) FROM own WHERE nspowner = 10 AND nspname <> 'public'
        UNION ALL
        SELECT format('%s %s', CASE c.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'
            ELSE 'TABLE' END, c.oid::regclass)
        FROM pg_class c JOIN own ON own.oid = c.relnamespace
        WHERE c.relowner = 10 AND c.relkind IN ('r', 'p', 'S', 'v', 'm')
            AND NOT EXISTS (SELECT FROM part WHERE classid = 'pg_class'::regclass AND objid = c.oid)
        UNION ALL
        SELECT format('ROUTINE %s', p.oid::regprocedure) FROM pg_proc p JOIN own ON own.oid = p.pronamespace
        WHERE p.proowner = 10 AND p.prokind <> 'a'
            AND NOT EXISTS (SELECT FROM part WHERE classid = 'pg_proc'::regclass AND objid = p.oid)
        UNION ALL
        SELECT format('TYPE %s', t.oid::regtype) FROM pg_type t JOIN own ON own.oid = t.typnamespace
        WHERE t.typowner = 10 AND t.typtype IN ('e', 'd') AND NOT EXISTS (
            SELECT FROM part WHERE classid = 'pg_type'::regclass AND objid = t.oid)
    LOOP
        EXECUTE 'ALTER ' || thing || ' OWNER TO ` + owner + `';
    END LOOP;
END $$`

// makeOwner prepares the database for its ordinary role, whose password is the
// superuser's.
func makeOwner(ctx context.Context, superuserURL, password string) error {
	conn, err := pgx.Connect(ctx, superuserURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var replica bool
	if err := conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&replica); err != nil || replica {
		return err // a replica has what its primary has
	}
	if _, err := conn.Exec(ctx, sqlMakeOwner); err != nil {
		return fmt.Errorf("make role %s the owner: %w", owner, err)
	}
	// A generated password holds no quote.
	if _, err := conn.Exec(ctx, "ALTER ROLE "+owner+" PASSWORD '"+password+"'"); err != nil {
		return fmt.Errorf("set the password of role %s: %w", owner, err)
	}
	return nil
}
