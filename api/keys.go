package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Key is an API key to be created.
type Key struct {
	// Org is the org's name.
	Org  string
	Name string
	// Scopes are send, read and admin; empty: send and read.
	Scopes                []string
	FromDomains           []string
	RequireIdempotencyKey bool
	// ExpiresAt is when the key stops working; zero: never.
	ExpiresAt time.Time
	// Token is the key itself, for installations that set it; empty: a new
	// one is made.
	Token string
}

const sqlCreateKey = `
INSERT INTO outbox.api_keys (id, org_id, name, secret_hash, scopes, from_domains, require_idempotency_key, expires_at)
SELECT $1, o.id, $3, $4, $5, $6, $7, $8 FROM outbox.orgs o WHERE o.name = $2 AND o.deleted_at IS NULL`

// CreateKey stores a key and returns its token, which cannot be read again.
func CreateKey(ctx context.Context, pool *pgxpool.Pool, key Key) (token string, err error) {
	if key.Token == "" {
		key.Token = newToken()
	}
	id, secret, ok := splitKey(key.Token)
	if !ok {
		return "", errors.New("an API key looks like ob_<id>_<secret>, in letters and digits, the secret at least 32")
	}
	if len(key.Scopes) == 0 {
		key.Scopes = []string{scopeSend, scopeRead}
	}
	for _, scope := range key.Scopes {
		if !slices.Contains([]string{scopeSend, scopeRead, scopeAdmin}, scope) {
			return "", fmt.Errorf("there is no scope %q: use send, read or admin", scope)
		}
	}
	if !key.ExpiresAt.IsZero() && !key.ExpiresAt.After(time.Now()) {
		return "", fmt.Errorf("the API key would expire at %s, which is past", key.ExpiresAt.UTC().Format(time.RFC3339))
	}
	domains, err := normalizeDomains(key.FromDomains)
	if err != nil {
		return "", err
	}
	tag, err := pool.Exec(ctx, sqlCreateKey, id, key.Org, key.Name, hashSecret(secret),
		key.Scopes, domains, key.RequireIdempotencyKey, orNull(key.ExpiresAt))
	if isUniqueViolation(err) {
		return "", fmt.Errorf("API key %s %w", id, ErrExists)
	}
	if err != nil {
		return "", fmt.Errorf("create API key: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return "", noOrg(key.Org)
	}
	return key.Token, nil
}

// KeyState is whether a key works.
type KeyState string

// The states.
const (
	KeyActive KeyState = "active"
	// KeyRotating works until it expires; another has replaced it.
	KeyRotating KeyState = "rotating"
	KeyExpired  KeyState = "expired"
	KeyRevoked  KeyState = "revoked"
)

// KeyDetail is a stored API key. Its secret is not known.
type KeyDetail struct {
	ID                    string     `json:"id"`
	Org                   string     `json:"org"`
	Name                  string     `json:"name"`
	State                 KeyState   `json:"state"`
	Scopes                []string   `json:"scopes"`
	FromDomains           []string   `json:"from_domains"`
	RequireIdempotencyKey bool       `json:"require_idempotency_key"`
	CreatedAt             time.Time  `json:"created_at"`
	ExpiresAt             *time.Time `json:"expires_at"`
	RevokedAt             *time.Time `json:"revoked_at"`
	// LastUsedAt may be a minute old. Null: never.
	LastUsedAt *time.Time `json:"last_used_at"`
	// ReplacedBy is the id of the key that was made when this one was rotated.
	ReplacedBy *string `json:"replaced_by"`
}

const keyColumnsSQL = `
SELECT k.id, o.name, k.name,
    CASE WHEN k.revoked_at IS NOT NULL THEN 'revoked' WHEN k.expires_at <= now() THEN 'expired'
        WHEN k.replaced_by IS NOT NULL THEN 'rotating' ELSE 'active' END,
    k.scopes, k.from_domains, k.require_idempotency_key, k.created_at, k.expires_at, k.revoked_at, k.last_used_at, k.replaced_by
FROM outbox.api_keys k JOIN outbox.orgs o ON o.id = k.org_id AND o.deleted_at IS NULL `

const sqlListKeys = keyColumnsSQL + `WHERE $1 = '' OR o.name = $1 ORDER BY o.name, k.created_at, k.id`

// Keys returns the API keys of an org, by its name; of all orgs if that is empty.
func Keys(ctx context.Context, pool *pgxpool.Pool, org string) ([]KeyDetail, error) {
	if org != "" {
		if _, err := FindOrg(ctx, pool, org); err != nil {
			return nil, err
		}
	}
	rows, err := pool.Query(ctx, sqlListKeys, org)
	if err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[KeyDetail])
	if err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	return list, nil
}

// ErrNoKey means that there is no such API key.
var ErrNoKey = errors.New("there is no such API key")

func noKey(id string) error {
	return fmt.Errorf("%w: %s; `outboxctl key list` shows those that there are", ErrNoKey, id)
}

// keyID takes a whole key for its id: who has to revoke one in a hurry has
// perhaps found it in a log.
func keyID(text string) string {
	if id, _, ok := splitKey(text); ok {
		return id
	}
	return text
}

const (
	sqlLockKey = keyColumnsSQL + `WHERE k.id = $1 FOR NO KEY UPDATE OF k`

	// sqlReplaceKey makes the new key. One that was to expire is followed by one
	// that lives as long.
	sqlReplaceKey = `
INSERT INTO outbox.api_keys (id, org_id, name, secret_hash, scopes, from_domains, require_idempotency_key, expires_at)
SELECT $2, org_id, name, $3, scopes, from_domains, require_idempotency_key, now() + (expires_at - created_at)
FROM outbox.api_keys WHERE id = $1`

	// sqlRetireKey lets the old key work on for the overlap, and no longer than
	// it would have.
	sqlRetireKey = `
UPDATE outbox.api_keys
SET replaced_by = $2, expires_at = least(expires_at, now() + $3::interval),
    revoked_at = CASE WHEN $3::interval = '0' THEN now() END
WHERE id = $1
RETURNING expires_at`
)

// Rotated is what came of a rotation.
type Rotated struct {
	ID string `json:"id"`
	// Key is the new key itself, which cannot be read again.
	Key      string `json:"key"`
	Replaces string `json:"replaces"`
	// Until is how long the old one works.
	Until time.Time `json:"until"`
}

// RotateKey makes a new key with the rights of an old one, which works on for
// the overlap; zero: no longer. It returns [ErrNoKey], or says why the key cannot
// be rotated.
func RotateKey(ctx context.Context, pool *pgxpool.Pool, id string, overlap time.Duration) (Rotated, error) {
	if overlap < 0 {
		return Rotated{}, errors.New("the overlap must not be negative")
	}
	token := newToken()
	newID, secret, _ := splitKey(token)
	r := Rotated{ID: newID, Key: token, Replaces: keyID(id)}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlLockKey, r.Replaces)
		if err != nil {
			return err
		}
		old, err := pgx.CollectOneRow(rows, pgx.RowToStructByPos[KeyDetail])
		if err != nil {
			return err
		}
		if old.State != KeyActive {
			return &notRotatableError{old}
		}
		if _, err := tx.Exec(ctx, sqlReplaceKey, r.Replaces, newID, hashSecret(secret)); err != nil {
			return err
		}
		return tx.QueryRow(ctx, sqlRetireKey, r.Replaces, newID, overlap).Scan(&r.Until)
	})
	if refusal, ok := errors.AsType[*notRotatableError](err); ok {
		return Rotated{}, refusal
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return Rotated{}, noKey(r.Replaces)
	}
	if err != nil {
		return Rotated{}, fmt.Errorf("rotate API key: %w", err)
	}
	return r, nil
}

// notRotatableError says why a key is not rotated.
type notRotatableError struct{ key KeyDetail }

func (e *notRotatableError) Error() string {
	if e.key.State == KeyRotating {
		return fmt.Sprintf("API key %s has been rotated: %s replaces it, and it works until %s",
			e.key.ID, *e.key.ReplacedBy, e.key.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("API key %s is %s: make a new one with `outboxctl key create`", e.key.ID, e.key.State)
}

// Revoked is a key that is void.
type Revoked struct {
	ID        string    `json:"id"`
	RevokedAt time.Time `json:"revoked_at"`
}

const sqlRevokeKey = `
UPDATE outbox.api_keys k SET revoked_at = coalesce(k.revoked_at, now())
FROM outbox.orgs o WHERE k.id = $1 AND o.id = k.org_id AND o.deleted_at IS NULL
RETURNING k.revoked_at`

// RevokeKey makes a key void, on all API processes within [keyFreshness]. Doing it
// again changes nothing. It returns [ErrNoKey].
func RevokeKey(ctx context.Context, pool *pgxpool.Pool, id string) (Revoked, error) {
	r := Revoked{ID: keyID(id)}
	err := pool.QueryRow(ctx, sqlRevokeKey, r.ID).Scan(&r.RevokedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return Revoked{}, noKey(r.ID)
	}
	if err != nil {
		return Revoked{}, fmt.Errorf("revoke API key: %w", err)
	}
	return r, nil
}
