package main

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/cmd/internal/app"
	"github.com/outboxd/outboxd/outbox"
)

type orgLimitCmd struct {
	Name      string   `arg:"" help:"The org's name."`
	MaxQueued maxQueue `required:"" help:"How many emails may be scheduled, queued or sending: a number, off for any, default for OUTBOXD_MAX_QUEUED." placeholder:"N|off|default"`
}

func (c orgLimitCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		return outbox.SetMaxQueued(e.ctx, pool, c.Name, c.MaxQueued.quota)
	})
}

// maxQueue is an org's quota in words: 5000, off or default.
type maxQueue struct{ quota *int }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *maxQueue) UnmarshalText(text []byte) error {
	if string(text) == "default" {
		m.quota = nil
		return nil
	}
	var quota app.Quota
	if err := quota.UnmarshalText(text); err != nil {
		return fmt.Errorf("%w, nor default", err)
	}
	n := int(quota)
	m.quota = &n
	return nil
}
