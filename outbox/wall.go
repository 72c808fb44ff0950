package outbox

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// OrgSetting is the setting of Postgres that says whose rows there are. Row-level
	// security compares it with the org of each row; where it is not set or empty,
	// as for workers and in the transactions of applications, all rows are there.
	OrgSetting = "outbox.org"

	// NoOrg is a value that no org has. A pool that is opened with it sees no org's
	// rows but in transactions that say whose: see [AsOrg].
	NoOrg = "none"
)

// Access runs statements in transactions that see the rows of one org, or of all.
// It takes no more round trips than the statements alone.
type Access struct {
	pool *pgxpool.Pool
	org  string // empty: all of them
}

// AsOrg sees the rows of one org. It is the second wall: statements name the org
// as well.
func AsOrg(pool *pgxpool.Pool, org uuid.UUID) Access { return Access{pool, org.String()} }

// AcrossOrgs lowers the wall. It is for what must be read before the org is known,
// and for what providers report of the emails of any org.
func AcrossOrgs(pool *pgxpool.Pool) Access { return Access{pool, ""} }

func (c *Client) as(org uuid.UUID) Access { return AsOrg(c.pool, org) }

// sqlSetOrg lasts until the end of the transaction; a batch is one.
const sqlSetOrg = `SELECT set_config('outbox.org', $1, true)`

// Send runs the statements of a batch in one round trip and in one transaction. It
// returns the first error of a statement or of its callback.
func (a Access) Send(ctx context.Context, batch *pgx.Batch) error {
	var whole pgx.Batch
	whole.Queue(sqlSetOrg, a.org)
	whole.QueuedQueries = append(whole.QueuedQueries, batch.QueuedQueries...)
	return a.pool.SendBatch(ctx, &whole).Close()
}

// Exec runs one statement.
func (a Access) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	var batch pgx.Batch
	batch.Queue(sql, args...).Exec(func(t pgconn.CommandTag) error {
		tag = t
		return nil
	})
	return tag, a.Send(ctx, &batch)
}

// Query runs one statement and gives its rows to read, whose error it returns.
func (a Access) Query(ctx context.Context, read func(pgx.Rows) error, sql string, args ...any) error {
	var batch pgx.Batch
	batch.Queue(sql, args...).Query(read)
	return a.Send(ctx, &batch)
}

// QueryRow runs one statement and gives its row to read, whose error it returns;
// [pgx.ErrNoRows] if there is none.
func (a Access) QueryRow(ctx context.Context, read func(pgx.Row) error, sql string, args ...any) error {
	var batch pgx.Batch
	batch.Queue(sql, args...).QueryRow(read)
	return a.Send(ctx, &batch)
}

// Begin runs f in a transaction and commits it, or rolls it back if f fails.
func (a Access) Begin(ctx context.Context, f func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, a.pool, a.txOptions(), f)
}

// txOptions begin a transaction under READ COMMITTED. The org is an id or empty, so
// it needs no quoting.
func (a Access) txOptions() pgx.TxOptions {
	return pgx.TxOptions{BeginQuery: "begin isolation level read committed; set local " + OrgSetting + " = '" + a.org + "'"}
}

// collect reads all rows of a query into list.
func collect[T any](list *[]T, read pgx.RowToFunc[T]) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*list, err = pgx.CollectRows(rows, read)
		return err
	}
}

// scan reads a row's columns.
func scan(columns ...any) func(pgx.Row) error {
	return func(row pgx.Row) error { return row.Scan(columns...) }
}
