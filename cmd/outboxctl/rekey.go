package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

// keys are those that content is sealed under; nil: there are none.
func (e environment) keys() (*outbox.KeyRing, error) {
	keys, err := outbox.ParseKeyRing(e.encryptionKeys)
	if err != nil {
		return nil, fmt.Errorf("OUTBOXD_ENCRYPTION_KEYS: %w", err)
	}
	return keys, nil
}

type rekeyCmd struct {
	DryRun bool `help:"Only say which keys are in use."`
	JSON   bool `help:"Print JSON."`
}

// rekeyed is what the command prints.
type rekeyed struct {
	outbox.Rekeyed
	// InUse counts what is sealed under each key; under the empty one: in clear.
	InUse map[string]int `json:"in_use"`
}

var errStale = errors.New("not everything is sealed under the first key: see the counts, then run it again")

// Run seals what is not sealed under the first key. It can be ended at any time and
// run again.
func (c rekeyCmd) Run(e environment) error {
	keys, err := e.keys()
	if err != nil {
		return err
	}
	if keys == nil {
		return errors.New("OUTBOXD_ENCRYPTION_KEYS is not set; give it the new key first and the old ones after it")
	}
	return e.withPool(func(pool *pgxpool.Pool) error {
		var done rekeyed
		var err error
		if !c.DryRun {
			if done.Rekeyed, err = outbox.Rekey(e.ctx, pool, keys, e.progress("sealed")); err != nil {
				return err
			}
		}
		if done.InUse, err = outbox.KeyUse(e.ctx, pool); err != nil {
			return err
		}
		if err := e.print(c.JSON, done, done.describe(keys, c.DryRun)); err != nil {
			return err
		}
		if !c.DryRun && len(done.Unreadable) > 0 {
			return errStale
		}
		return nil
	})
}

func (r rekeyed) describe(keys *outbox.KeyRing, dryRun bool) string {
	var text strings.Builder
	if !dryRun {
		fmt.Fprintf(&text, "Sealed %d under %s.\n", r.Sealed, keys.First())
	}
	for _, id := range slices.Sorted(maps.Keys(r.Unreadable)) {
		fmt.Fprintf(&text, "%d could not be opened and stay under %s: is the key missing?\n", r.Unreadable[id], id)
	}
	text.WriteString("In use:\n")
	for _, id := range slices.Sorted(maps.Keys(r.InUse)) {
		name := id
		if id == "" {
			name = "in clear"
		}
		fmt.Fprintf(&text, "  %-32s %d\n", name, r.InUse[id])
	}
	return text.String()
}
