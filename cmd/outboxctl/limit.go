package main

import (
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

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
	switch string(text) {
	case "default":
		m.quota = nil
		return nil
	case "off":
		m.quota = new(int)
		return nil
	}
	n, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is no number of emails from 1, nor off, nor default", text)
	}
	quota := int(n)
	m.quota = &quota
	return nil
}
