package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/outbox"
)

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
	domains, err := normalizeDomains(org.FromDomains)
	if err != nil {
		return uuid.Nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.Nil, fmt.Errorf("make an id: %w", err)
	}
	_, err = pool.Exec(ctx, sqlCreateOrg, id, org.Name, domains, org.RequireIdempotencyKey, org.OnUnknown)
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
		return id, noOrg(name)
	}
	if err != nil {
		return id, fmt.Errorf("find org: %w", err)
	}
	return id, nil
}

func noOrg(name string) error {
	return fmt.Errorf("there is no org %q: create it with `outboxctl org create`", name)
}

func isUniqueViolation(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == pgerrcode.UniqueViolation
}

// normalizeDomains writes From domains as addresses are compared with them: in
// ASCII and lower case, without a dot at the end, each once. The list is never
// nil, which would be stored as NULL.
func normalizeDomains(list []string) ([]string, error) {
	domains := []string{}
	for _, d := range list {
		domain, err := outbox.AddressDomain("a@" + d)
		if err != nil || strings.ContainsAny(d, "@<>") {
			return nil, fmt.Errorf("%q is not a domain such as example.com", d)
		}
		if !slices.Contains(domains, domain) {
			domains = append(domains, domain)
		}
	}
	return domains, nil
}
