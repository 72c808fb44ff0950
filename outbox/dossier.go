package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Dossier is what operators see of one email.
type Dossier struct {
	// Listing has the attempts and events too.
	Listing
	// Jobs are the River jobs of its delivery that River still has, the oldest
	// first.
	Jobs []DeliveryJob
}

// DeliveryJob is a River job that delivers an email.
type DeliveryJob struct {
	ID          int64
	State       string
	Attempt     int
	ScheduledAt time.Time
}

const sqlGetDossier = `
SELECT ` + listingColumnsSQL + `, 'id' FROM (SELECT $1::uuid AS id) found` + listingTablesSQL

const sqlGetDeliveryJobs = `
SELECT id, state::text, attempt, scheduled_at FROM outbox.river_job
WHERE kind = 'deliver_email' AND args ->> 'email_id' = $1::text ORDER BY id`

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
	batch.Queue(sqlGetDeliveryJobs, id.String()).Query(collect(&d.Jobs, pgx.RowToStructByPos[DeliveryJob]))
	err := AcrossOrgs(c.pool).Send(ctx, &batch)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read dossier: %w", err)
	}
	return d, nil
}

// WhyStuck returns an email of any org if [ListStuck] would list it with this
// filter, and nil otherwise.
func WhyStuck(ctx context.Context, pool *pgxpool.Pool, id uuid.UUID, filter StuckFilter) (*StuckEmail, error) {
	s, err := readSituation(ctx, pool, filter)
	if err != nil {
		return nil, fmt.Errorf("look why an email is stuck: %w", err)
	}
	var facts []stuckFacts
	err = AcrossOrgs(pool).Query(ctx, collect(&facts, pgx.RowToStructByPos[stuckFacts]), sqlStuckFacts, idBefore(id), 1, nil)
	if err != nil {
		return nil, fmt.Errorf("look why an email is stuck: %w", err)
	}
	if len(facts) == 0 || facts[0].ID != id {
		return nil, nil
	}
	reason := s.judge(&facts[0])
	if reason == "" {
		return nil, nil
	}
	email := s.show(&facts[0], reason)
	return &email, nil
}

// idBefore is the greatest id below another.
func idBefore(id uuid.UUID) uuid.UUID {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]--; id[i] != 0xff {
			break
		}
	}
	return id
}
