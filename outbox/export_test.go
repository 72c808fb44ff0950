package outbox

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Deliver runs what a job runs, for tests of delivery without a queue.
func (d *Deliverer) Deliver(ctx context.Context, id uuid.UUID) (time.Duration, error) {
	return d.deliver(ctx, id)
}
