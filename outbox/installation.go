package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A snapshot that is restored elsewhere, or a database that is copied, holds
// emails that the original is sending or has sent. So the first worker records
// which database it is in, and each worker that starts compares. In another
// database, whatever was submitted before it was noticed is held: no attempt
// begins and none is sent again until a person says so, see restored.go. What is
// submitted afterwards is sent as always.
//
// A standby that is promoted has the identity of its primary, and nothing is held.
// So has a disk snapshot: only the name of the installation, which processes are
// given, tells it from the original.

// reasonRestored is why an email waits, or why it was canceled.
const reasonRestored = "restored"

// heldInterval is how often a held email is looked at. A release does not wait
// for that.
const heldInterval = 6 * time.Hour

// heldMessageInterval is how often a webhook's message about a held email is looked
// at: the original has told the endpoint.
const heldMessageInterval = 15 * time.Minute

// submittedSQL is when an email was submitted or, in a restored database, when a
// person released it.
const submittedSQL = `coalesce(e.released_at, e.created_at)`

// heldSQL is the condition that an email waits for a person.
const heldSQL = submittedSQL + ` < (SELECT i.held_before FROM outbox.installation i)`

// vouchedSQL releases an email of a restored database that a person asks to be
// sent.
const vouchedSQL = `CASE WHEN ` + heldSQL + `
        THEN ` + releasedAtSQL + ` ELSE e.released_at END`

// identity tells a database from its copies.
type identity struct {
	Name     string // of the installation; empty: none
	System   *int64 // the cluster's identifier; nil: the role may not read it
	OID      uint32
	Database string
}

// Installation is which database this is, as recorded and as found.
type Installation struct {
	// Recorded is false until a worker has run on the database.
	Recorded bool
	// Name is the recorded one; empty: none.
	Name string
	// Differs says in what this database, seen from a process of the name that was
	// asked for, is not the one that is recorded. Empty: in nothing.
	Differs string
	// HeldBefore is when that was first noticed: emails submitted before wait for a
	// person. Zero: none is held.
	HeldBefore time.Time
	// HeldBecause is what differed then.
	HeldBecause string
}

const (
	sqlMayReadSystem = `SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')`
	sqlReadSystem    = `SELECT system_identifier FROM pg_catalog.pg_control_system()`
	sqlReadDatabase  = `SELECT oid, datname FROM pg_catalog.pg_database WHERE datname = current_database()`

	sqlReadInstallation = `
SELECT coalesce(name, ''), system_identifier, database_oid, database_name, held_before, coalesce(held_because, '')
FROM outbox.installation`

	sqlRecordInstallation = `
INSERT INTO outbox.installation (name, system_identifier, database_oid, database_name)
VALUES (nullif($1, ''), $2, $3, $4) ON CONFLICT (single) DO NOTHING`

	sqlLockInstallation = `SELECT FROM outbox.installation FOR UPDATE`

	// sqlCompleteInstallation adds what was not known before. A database that was
	// renamed in its place is the same.
	sqlCompleteInstallation = `
UPDATE outbox.installation SET name = coalesce(name, nullif($1, '')),
    system_identifier = coalesce(system_identifier, $2), database_name = $3
WHERE (name, system_identifier, database_name) IS DISTINCT FROM
    (coalesce(name, nullif($1, '')), coalesce(system_identifier, $2), $3)`

	// sqlHoldInstallation goes by the newest email too, which the clock of another
	// machine may have dated a little ahead.
	sqlHoldInstallation = `
UPDATE outbox.installation SET held_because = $1, held_before = least(now() + interval '15 minutes', greatest(now(),
    (SELECT e.created_at + interval '1 millisecond' FROM outbox.emails e ORDER BY e.id DESC LIMIT 1)))
WHERE held_before IS NULL`
)

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readIdentity looks which database this is.
func readIdentity(ctx context.Context, db querier, name string) (identity, error) {
	here := identity{Name: name}
	if err := db.QueryRow(ctx, sqlReadDatabase).Scan(&here.OID, &here.Database); err != nil {
		return here, fmt.Errorf("identify the database: %w", err)
	}
	var may bool
	if err := db.QueryRow(ctx, sqlMayReadSystem).Scan(&may); err != nil || !may {
		return here, err
	}
	if err := db.QueryRow(ctx, sqlReadSystem).Scan(&here.System); err != nil {
		return here, fmt.Errorf("identify the database: %w", err)
	}
	return here, nil
}

// copied says in what a database is another than the recorded one; empty: it is
// the same.
func (here identity) copied(recorded identity) string {
	known := here.System != nil && recorded.System != nil
	switch {
	case known && *here.System != *recorded.System:
		return "it is in another database cluster"
	case here.OID != recorded.OID, !known && here.Database != recorded.Database:
		return fmt.Sprintf("it is a copy: it was the database %q with the number %d, and is %q with %d",
			recorded.Database, recorded.OID, here.Database, here.OID)
	}
	return ""
}

// renamed says that the process is of another installation; empty: it is not, or
// none is recorded.
func (here identity) renamed(recorded identity) string {
	if recorded.Name == "" || recorded.Name == here.Name {
		return ""
	}
	return fmt.Sprintf("it belongs to the installation %q, and OUTBOXD_INSTALLATION is %q here", recorded.Name, here.Name)
}

// ReadInstallation says which database this is, for a process of an installation
// of that name. It changes nothing.
func ReadInstallation(ctx context.Context, pool *pgxpool.Pool, name string) (*Installation, error) {
	here, err := readIdentity(ctx, pool, name)
	if err != nil {
		return nil, err
	}
	recorded, in, err := readInstallation(ctx, pool)
	if err != nil || !in.Recorded {
		return in, err
	}
	in.Differs = cmp.Or(here.copied(recorded), here.renamed(recorded))
	return in, nil
}

func readInstallation(ctx context.Context, db querier) (recorded identity, in *Installation, err error) {
	in = new(Installation)
	var heldBefore *time.Time
	err = db.QueryRow(ctx, sqlReadInstallation).Scan(&recorded.Name, &recorded.System, &recorded.OID, &recorded.Database,
		&heldBefore, &in.HeldBecause)
	if errors.Is(err, pgx.ErrNoRows) {
		return recorded, in, nil
	}
	if err != nil {
		return recorded, nil, fmt.Errorf("read installation: %w", err)
	}
	in.Recorded, in.Name, in.HeldBefore = true, recorded.Name, timeOf(heldBefore)
	return recorded, in, nil
}

// recognize records which database this is, or compares. In a restored or copied
// one it holds what was submitted before, and says what to do. It returns an error
// if the process does not belong to the workers that are at work here.
func (w *Worker) recognize(ctx context.Context, s *session) error {
	var in *Installation
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) (err error) {
		in, err = w.compare(ctx, tx, s)
		return err
	})
	if err != nil {
		return fmt.Errorf("recognize the database: %w", err)
	}
	if !in.HeldBefore.IsZero() {
		w.log.ErrorContext(ctx, "this database was restored or copied: emails submitted before are held, because the "+
			"original may be sending them. See them with `outboxctl restored`, then type `outboxctl restored release`, "+
			"`outboxctl restored cancel`, or `outboxctl restored adopt` if there is no original any more",
			"held_before", in.HeldBefore, "because", in.HeldBecause)
	}
	return nil
}

// compare holds the row's lock, so that of several workers that start one decides.
func (w *Worker) compare(ctx context.Context, tx pgx.Tx, s *session) (*Installation, error) {
	here, err := readIdentity(ctx, tx, w.cfg.Installation)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, sqlRecordInstallation, here.Name, here.System, here.OID, here.Database); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, sqlLockInstallation); err != nil {
		return nil, err
	}
	recorded, in, err := readInstallation(ctx, tx)
	if err != nil || !in.HeldBefore.IsZero() {
		return in, err
	}
	copied, renamed := here.copied(recorded), here.renamed(recorded)
	switch {
	case copied == "" && renamed == "":
		_, err = tx.Exec(ctx, sqlCompleteInstallation, here.Name, here.System, here.Database)
		return in, err
	case copied == "":
		// Whoever is at work here belongs here: it is this process that is wrong.
		if err := w.checkAlone(ctx, tx, s, renamed); err != nil {
			return nil, err
		}
	}
	if _, err := tx.Exec(ctx, sqlHoldInstallation, cmp.Or(copied, renamed)); err != nil {
		return nil, err
	}
	_, in, err = readInstallation(ctx, tx)
	return in, err
}

const sqlOthersAlive = `SELECT EXISTS (SELECT FROM ` + aliveSQL + ` WHERE w.id <> $2 AND w.ended_at IS NULL)`

func (w *Worker) checkAlone(ctx context.Context, tx pgx.Tx, s *session, renamed string) error {
	var others bool
	if err := tx.QueryRow(ctx, sqlOthersAlive, lockNamespace, s.id).Scan(&others); err != nil || !others {
		return err
	}
	return errors.New("workers are at work on this database, and " + renamed +
		": correct DATABASE_URL or OUTBOXD_INSTALLATION of this process")
}

// isHeld reports whether a person has to decide about the email before it may
// reach a provider.
func (e *delivery) isHeld() bool {
	return e.held != "" && (e.open != nil || !e.due().After(e.now) && !e.expired())
}

const (
	// sqlHold and sqlHoldPaused show that an email waits for a person, unless it was
	// released in this moment. An org's row is locked: whoever resumes it waits for
	// this, and then finds the email held.
	sqlHold       = holdSQL + heldSQL
	sqlHoldPaused = `WITH ` + pausedSQL + holdSQL + `EXISTS (SELECT FROM paused)`

	holdSQL = `
UPDATE outbox.emails e SET next_attempt_at = now() + $3::interval, reason = $5, reason_detail = NULL
WHERE e.id = $1 AND e.attempts = $2 AND e.org_id = $4 AND e.status IN ('queued', 'scheduled') AND `

	pausedSQL = `paused AS (SELECT FROM outbox.orgs o WHERE o.id = $4 AND o.paused_at IS NOT NULL FOR SHARE)`
)

// keepHeld lets an email of a restored database or a paused org wait. One in doubt
// is shown as such; evidence that is here settles it, and nothing is asked of a
// provider.
func (d *deliverer) keepHeld(ctx context.Context, e *delivery) (time.Duration, error) {
	if e.open != nil {
		return d.keepDoubt(ctx, e)
	}
	wait := heldInterval
	if expires := e.Message.ExpiresAt; !expires.IsZero() {
		wait = min(wait, expires.Sub(e.now)+time.Millisecond)
	}
	statement := sqlHold
	if e.held == reasonOrgPaused {
		statement = sqlHoldPaused
	}
	tag, err := d.pool.Exec(ctx, statement, e.ID, e.attempts, wait, e.Org, e.held)
	if err != nil {
		return 0, fmt.Errorf("hold email: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return time.Second, nil // released, canceled or held by another job in this moment
	}
	return wait, nil
}

const (
	// sqlHoldDoubt and sqlHoldDoubtPaused are the same for an email in doubt.
	sqlHoldDoubt       = `WITH ` + holdDoubtSQL + heldSQL
	sqlHoldDoubtPaused = `WITH ` + pausedSQL + `, ` + holdDoubtSQL + `EXISTS (SELECT FROM paused)`

	holdDoubtSQL = `marked AS (
    UPDATE outbox.attempts SET in_doubt_at = coalesce(in_doubt_at, now())
    WHERE email_id = $1 AND number = $2 AND stage = 'sending' AND worker = $3
    RETURNING email_id
)
UPDATE outbox.emails e SET status = 'unknown', reason = $5, reason_detail = NULL
FROM marked m WHERE e.id = m.email_id AND e.org_id = $4 AND e.status IN ('sending', 'unknown') AND `
)

func (d *deliverer) keepDoubt(ctx context.Context, e *delivery) (time.Duration, error) {
	busy, _, err := d.busy(ctx, e)
	if err != nil || busy > 0 {
		return busy, err
	}
	if e.open.Reported {
		return 0, d.settleReported(ctx, e)
	}
	statement := sqlHoldDoubt
	if e.held == reasonOrgPaused {
		statement = sqlHoldDoubtPaused
	}
	tag, err := d.pool.Exec(ctx, statement, e.ID, e.open.Number, e.open.Worker, e.Org, e.held)
	if err != nil {
		return 0, fmt.Errorf("hold email in doubt: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return time.Second, nil // released or settled in this moment
	}
	return heldInterval, nil
}
