package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// An API key is ob_<id>_<secret>, both of letters and digits. The id is looked
// up; of the secret only a hash is stored. A fast hash does: the secret is
// random and has 190 bits, which no dictionary helps to guess.
var keyPattern = regexp.MustCompile(`^ob_([A-Za-z0-9]{1,32})_([A-Za-z0-9]{32,128})$`)

const (
	keyAlphabet     = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	keyIDLength     = 12
	keySecretLength = 32
)

func splitKey(token string) (id, secret string, ok bool) {
	parts := keyPattern.FindStringSubmatch(token)
	if parts == nil {
		return "", "", false
	}
	return parts[1], parts[2], true
}

func hashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// Org is a tenant to be created.
type Org struct {
	Name string
	// FromDomains are the domains that the org may send from; empty: any.
	FromDomains           []string
	RequireIdempotencyKey bool
	// OnUnknown is the default policy of its emails; empty: the installation's.
	OnUnknown string
}

// ErrExists means that the name is taken.
var ErrExists = errors.New("already exists")

const sqlCreateOrg = `
INSERT INTO outbox.orgs (id, name, from_domains, require_idempotency_key, on_unknown)
VALUES ($1, $2, $3, $4, nullif($5, ''))`

// CreateOrg stores an org and returns its id.
func CreateOrg(ctx context.Context, pool *pgxpool.Pool, org Org) (uuid.UUID, error) {
	if org.Name == "" {
		return uuid.Nil, errors.New("an org needs a name")
	}
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.Nil, fmt.Errorf("make an id: %w", err)
	}
	_, err = pool.Exec(ctx, sqlCreateOrg, id, org.Name, domains(org.FromDomains), org.RequireIdempotencyKey, org.OnUnknown)
	if isUniqueViolation(err) {
		return uuid.Nil, fmt.Errorf("org %q %w", org.Name, ErrExists)
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("create org: %w", err)
	}
	return id, nil
}

const sqlFindOrg = `SELECT id FROM outbox.orgs WHERE name = $1 AND deleted_at IS NULL`

// FindOrg returns the id of the org of that name.
func FindOrg(ctx context.Context, pool *pgxpool.Pool, name string) (id uuid.UUID, err error) {
	err = pool.QueryRow(ctx, sqlFindOrg, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return id, fmt.Errorf("there is no org %q: create it with `outboxctl org create`", name)
	}
	if err != nil {
		return id, fmt.Errorf("find org: %w", err)
	}
	return id, nil
}

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
		key.Token = "ob_" + randomText(keyIDLength) + "_" + randomText(keySecretLength)
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
	var expires *time.Time
	if !key.ExpiresAt.IsZero() {
		expires = &key.ExpiresAt
	}
	tag, err := pool.Exec(ctx, sqlCreateKey, id, key.Org, key.Name, hashSecret(secret),
		key.Scopes, domains(key.FromDomains), key.RequireIdempotencyKey, expires)
	switch {
	case isUniqueViolation(err):
		return "", fmt.Errorf("API key %s %w", id, ErrExists)
	case err != nil:
		return "", fmt.Errorf("create API key: %w", err)
	case tag.RowsAffected() == 0:
		return "", fmt.Errorf("there is no org %q: create it with `outboxctl org create`", key.Org)
	}
	return key.Token, nil
}

func isUniqueViolation(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == pgerrcode.UniqueViolation
}

// domains normalises a list for storage; nil would be NULL.
func domains(list []string) []string {
	out := make([]string, len(list))
	for i, d := range list {
		out[i] = strings.ToLower(strings.TrimSuffix(d, "."))
	}
	return out
}

func randomText(length int) string {
	text := make([]byte, length)
	size := big.NewInt(int64(len(keyAlphabet)))
	for i := range text {
		n, err := rand.Int(rand.Reader, size)
		if err != nil {
			// The reader never fails; the program crashes before it does.
			panic(err)
		}
		text[i] = keyAlphabet[n.Int64()]
	}
	return string(text)
}
