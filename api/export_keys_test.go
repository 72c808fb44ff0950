package api

import (
	"context"
	"time"
)

// SetClock gives the keyring another clock.
func (s *Server) SetClock(now func() time.Time) { s.keys.now = now }

// WriteUsage writes down when keys were last used, as Run does every minute.
func (s *Server) WriteUsage(ctx context.Context) error { return s.keys.usage.write(ctx, s.keys.pool) }

// LooksDamaged reports whether a token looks mistyped or cut.
func LooksDamaged(token string) bool { return looksDamaged(token) }

// NobodyHasSecret compares a secret where there is no key.
func NobodyHasSecret(secret string) bool { return (*apiKey)(nil).hasSecret(secret) }

// KeyFreshness is how long a process trusts what it knows of a key.
const KeyFreshness = keyFreshness
