package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Dossier is what operators see of one email.
type Dossier struct {
	// Listing has the attempts and events too.
	Listing
	// Jobs are as [ListJobs] returns them.
	Jobs []JobInfo
}

const sqlGetDossier = `
SELECT ` + listingColumnsSQL + `, 'id' FROM (SELECT $1::uuid AS id) found` + listingTablesSQL

// Dossier returns an email of any org with its attempts, events and jobs, and
// without its bodies, or [ErrNotFound].
func (c *Client) Dossier(ctx context.Context, id uuid.UUID) (*Dossier, error) {
	var batch pgx.Batch
	d := new(Dossier)
	batch.Queue(sqlGetDossier, id).Query(func(rows pgx.Rows) (err error) {
		d.Listing, err = pgx.CollectExactlyOneRow(rows, c.scanListing)
		return err
	})
	batch.Queue(sqlGetAttempts, id).Query(collect(&d.Attempts, scanAttempt))
	batch.Queue(sqlGetEvents, id).Query(collect(&d.Events, pgx.RowToStructByPos[Event]))
	batch.Queue(sqlListJobs, id).Query(collect(&d.Jobs, pgx.RowToStructByPos[JobInfo]))
	err := AcrossOrgs(c.pool).Send(ctx, &batch)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read dossier: %w", err)
	}
	return d, nil
}
