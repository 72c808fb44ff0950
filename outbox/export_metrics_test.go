package outbox

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// NewState returns the collector of the state, which shows what it has read for
// so long.
func NewState(pool *pgxpool.Pool, kept time.Duration) prometheus.Collector {
	c := newStateCollector(pool)
	c.kept = kept
	return c
}
