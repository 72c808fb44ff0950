package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

type providersCmd struct {
	JSON bool `help:"Print JSON."`
}

// Run lists the providers that workers have been configured with.
func (c providersCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		states, err := outbox.ProviderStates(e.ctx, pool)
		if err != nil {
			return err
		}
		return e.print(c.JSON, states, describeProviders(states))
	})
}

func describeProviders(states []outbox.ProviderState) string {
	if len(states) == 0 {
		return "No worker has run on this database yet.\n"
	}
	var text strings.Builder
	for _, s := range states {
		if s.Reason == "" {
			fmt.Fprintf(&text, "%-10s in order\n", s.Name)
			continue
		}
		fmt.Fprintf(&text, "%-10s %s since %s, tried again in %v: %s\n", s.Name, s.Reason,
			s.OutSince.Format(time.RFC3339), s.ProbeIn.Round(time.Second), s.Detail)
	}
	return text.String()
}
