package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

const (
	scopeSend  = "send"
	scopeRead  = "read"
	scopeAdmin = "admin"
)

// keyFreshness is how long a process trusts what it knows of a key. A revoked
// key stops working everywhere within it.
const keyFreshness = 3 * time.Second

// keyTimeout bounds the read of a key. It is longer than submissions wait for a
// connection, so that in a crowd of them it comes to its turn.
const keyTimeout = 5 * time.Second

// apiKey is what an API key may do.
type apiKey struct {
	id, name   string
	org        uuid.UUID
	secretHash []byte
	scopes     []string
	// orgDomains and keyDomains restrict From; empty: any.
	orgDomains, keyDomains []string
	requireIdempotencyKey  bool
	expiresAt              *time.Time
	revokedAt              *time.Time
}

// who names the key in the record of what it did.
func (k *apiKey) who() string {
	if k.name == "" {
		return "API key " + k.id
	}
	return "API key " + k.id + " (" + k.name + ")"
}

func (k *apiKey) allows(scope string) bool {
	return slices.Contains(k.scopes, scope) || slices.Contains(k.scopes, scopeAdmin)
}

func (k *apiKey) valid(now time.Time) bool {
	return k.revokedAt == nil && (k.expiresAt == nil || k.expiresAt.After(now))
}

// authenticate finds the key of a request and checks its secret and scope.
func (s *server) authenticate(r *http.Request, scope string) (*apiKey, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token == "" || !strings.EqualFold(scheme, "Bearer") {
		return nil, problem(http.StatusUnauthorized, "missing_api_key",
			"Send the API key in the header Authorization: Bearer <key>.")
	}
	token = strings.TrimSpace(token)
	id, secret, ok := splitKey(token)
	if !ok {
		return nil, invalidKey(token)
	}
	key, err := s.keys.find(r.Context(), id)
	if err != nil {
		return nil, err
	}
	now := s.keys.now()
	if !key.hasSecret(secret) || !key.valid(now) {
		return nil, invalidKey(token)
	}
	s.keys.usage.note(id, now)
	if !key.allows(scope) {
		return nil, problem(http.StatusForbidden, "restricted_api_key",
			"This API key lacks the scope "+scope+".")
	}
	return key, nil
}

// invalidKey is the answer to a key that does not work. What it says about the
// key is read from the key alone, so it tells nobody which ones there are.
func invalidKey(token string) *Error {
	message := "The API key is not valid."
	if looksDamaged(token) {
		message = "The API key is not valid: it looks mistyped or cut. Copy all of it, from ob_ to the last character."
	}
	return problem(http.StatusUnauthorized, "invalid_api_key", message)
}

// keyring reads API keys and remembers them for [keyFreshness].
type keyring struct {
	pool    *pgxpool.Pool
	now     func() time.Time
	usage   keyUsage
	mu      sync.Mutex
	seen    map[string]remembered
	lookups map[string]*lookup // those that run
	guesses *buckets
}

type remembered struct {
	key *apiKey // nil: there is no such key
	at  time.Time
}

// lookup is a read of a key that all requests with that key wait for. When each
// read it for itself, a database that was away would be met by a crowd of them
// at its return, ahead of all work.
type lookup struct {
	done chan struct{}
	key  *apiKey
	err  error
}

// maxRemembered bounds the memory that guessed ids can take.
const maxRemembered = 10_000

// guessRate bounds what guessed ids cost the database: how often this process
// looks for ids that it does not know to exist.
var guessRate = Rate{Count: 1000, Per: 10 * time.Second}

func newKeyring(pool *pgxpool.Pool) *keyring {
	return &keyring{pool: pool, now: time.Now, seen: map[string]remembered{}, lookups: map[string]*lookup{}, guesses: newBuckets(guessRate)}
}

const sqlFindAPIKey = `
SELECT k.id, k.name, k.org_id, k.secret_hash, k.scopes, o.from_domains, k.from_domains,
    o.require_idempotency_key OR k.require_idempotency_key, k.expires_at, k.revoked_at
FROM outbox.api_keys k JOIN outbox.orgs o ON o.id = k.org_id
WHERE k.id = $1 AND o.deleted_at IS NULL`

// find returns nil for an id that does not exist.
func (k *keyring) find(ctx context.Context, id string) (*apiKey, error) {
	k.mu.Lock()
	known, ok := k.seen[id]
	if ok && k.now().Sub(known.at) < keyFreshness {
		k.mu.Unlock()
		return known.key, nil
	}
	l, ok := k.lookups[id]
	if !ok && known.key == nil {
		if wait, ok := k.guesses.take("", k.now()); !ok {
			k.mu.Unlock()
			return nil, tooMany("with API keys that are not known", guessRate, wait)
		}
	}
	if !ok {
		l = &lookup{done: make(chan struct{})}
		k.lookups[id] = l
		// The one who began it may go away before the others.
		go k.run(context.WithoutCancel(ctx), id, l)
	}
	k.mu.Unlock()
	select {
	case <-l.done:
		return l.key, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// run reads a key for all who wait for it.
func (k *keyring) run(ctx context.Context, id string, l *lookup) {
	// From before the read: what is remembered is as old as its beginning.
	at := k.now()
	l.key, l.err = k.read(ctx, id)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.lookups, id)
	close(l.done)
	if l.err != nil {
		return
	}
	if _, ok := k.seen[id]; !ok && len(k.seen) >= maxRemembered {
		// Those that exist stay: guesses must not make them unknown.
		maps.DeleteFunc(k.seen, func(_ string, r remembered) bool { return r.key == nil })
	}
	k.seen[id] = remembered{l.key, at}
}

func (k *keyring) read(ctx context.Context, id string) (*apiKey, error) {
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	key := new(apiKey)
	// The wall is lowered: whose key it is, is what the read finds out.
	err := outbox.AcrossOrgs(k.pool).QueryRow(ctx, func(row pgx.Row) error {
		return row.Scan(&key.id, &key.name, &key.org, &key.secretHash, &key.scopes,
			&key.orgDomains, &key.keyDomains, &key.requireIdempotencyKey, &key.expiresAt, &key.revokedAt)
	}, sqlFindAPIKey, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read API key: %w", err)
	}
	return key, nil
}
