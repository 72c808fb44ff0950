package main

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/cmd/internal/app"
	"github.com/outboxd/outboxd/outbox"
)

type orgRetentionCmd struct {
	Name      string    `arg:"" help:"The org's name."`
	Retention retention `arg:"" help:"How long addresses and content are kept after an email's end: a duration such as 7d, at least 1h; off for ever; default for OUTBOXD_CONTENT_RETENTION." placeholder:"DURATION|off|default"`
	JSON      bool      `help:"Print JSON."`
}

// Run sets how long the content of an org's emails is kept.
func (c orgRetentionCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		if err := outbox.SetContentRetention(e.ctx, pool, c.Name, c.Retention.duration); err != nil {
			return err
		}
		return e.print(c.JSON, map[string]string{"name": c.Name, "content_retention": c.Retention.String()},
			c.Name+": "+c.Retention.explain()+"\n")
	})
}

// retention is an org's in words: 7d, off or default.
type retention struct{ duration *time.Duration }

const byDefault = "default"

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *retention) UnmarshalText(text []byte) error {
	if string(text) == byDefault {
		r.duration = nil
		return nil
	}
	var parsed app.Retention
	if err := parsed.UnmarshalText(text); err != nil {
		return fmt.Errorf("%w, nor default", err)
	}
	d := parsed.D()
	r.duration = &d
	return nil
}

// String returns the word or duration.
func (r retention) String() string {
	if r.duration == nil {
		return byDefault
	}
	return app.Retention(*r.duration).String()
}

func (r retention) explain() string {
	switch {
	case r.duration == nil:
		return "content is purged after OUTBOXD_CONTENT_RETENTION of the workers."
	case *r.duration < 0:
		return "content is kept as long as the emails."
	}
	return "content is purged " + r.String() + " after an email's end, that of earlier emails too."
}
