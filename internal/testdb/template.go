package testdb

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/outboxd/outboxd/migrations"
)

const (
	templatePrefix = prefix + "template_"
	// unfinished marks a template that is being built, or whose builder died.
	unfinished = "_unfinished"
)

// schema is how to migrate a database, and a fingerprint of the result.
type schema struct {
	fingerprint func() (string, error)
	migrate     func(ctx context.Context, databaseURL string, log *slog.Logger) error
}

// currentSchema is the one of package migrations.
func currentSchema() schema {
	return schema{fingerprint: migrationsFingerprint, migrate: migrations.Up}
}

// migrationsFingerprint covers everything that migrations.Up applies: our own
// files and River's.
func migrationsFingerprint() (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(migrations.FS, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(migrations.FS, path)
		fmt.Fprintf(hash, "%s %d\n%s", path, len(content), content)
		return err
	})
	if err != nil {
		return "", err
	}
	river, err := rivermigrate.New(riverpgxv5.New(nil), nil)
	if err != nil {
		return "", err
	}
	for _, m := range river.AllVersions() {
		fmt.Fprintf(hash, "river %d %d\n%s", m.Version, len(m.SQLUp), m.SQLUp)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// ensureTemplate finds the template of this schema, or builds it, and holds a
// shared lock on it from then on.
func (s *suite) ensureTemplate(ctx context.Context) error {
	fingerprint, err := s.schema.fingerprint()
	if err != nil {
		return err
	}
	// A role can copy only its own databases, so each role has its template.
	sum := sha256.Sum256([]byte(fingerprint + "\n" + s.session.Config().User))
	s.template = templatePrefix + hex.EncodeToString(sum[:8])

	if err := lockShared(ctx, s.session, s.template); err != nil {
		return err
	}
	if ok, err := s.templateExists(ctx); err != nil || ok {
		return err
	}
	// A lock cannot be upgraded without a deadlock between two that try.
	if err := unlockShared(ctx, s.session, s.template); err != nil {
		return err
	}
	if err := lock(ctx, s.session, s.template); err != nil {
		return err
	}
	ok, err := s.templateExists(ctx)
	if err == nil && !ok {
		err = s.buildTemplate(ctx)
	}
	if err == nil {
		err = lockShared(ctx, s.session, s.template)
	}
	return errors.Join(err, unlock(ctx, s.session, s.template))
}

func (s *suite) templateExists(ctx context.Context) (exists bool, err error) {
	const query = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
	err = s.session.QueryRow(ctx, query, s.template).Scan(&exists)
	return exists, err
}

// buildTemplate migrates a database under another name and renames it last,
// so that one with the template's name is always whole.
func (s *suite) buildTemplate(ctx context.Context) error {
	building := s.template + unfinished
	url, err := withDatabase(s.url, building)
	if err != nil {
		return err
	}
	for _, sql := range []string{dropSQL(building), "CREATE DATABASE " + quote(building) + " TEMPLATE template0"} {
		if _, err := s.session.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := s.schema.migrate(ctx, url, slog.New(slog.DiscardHandler)); err != nil {
		_, dropErr := s.session.Exec(ctx, dropSQL(building))
		return errors.Join(fmt.Errorf("migrating: %w", err), dropErr)
	}
	for _, sql := range []string{
		// A database that somebody is connected to cannot be copied, and
		// autovacuum counts as somebody.
		"ALTER DATABASE " + quote(building) + " ALLOW_CONNECTIONS false",
		"ALTER DATABASE " + quote(building) + " RENAME TO " + quote(s.template),
	} {
		if _, err := s.session.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// sweep drops databases whose process is gone, and templates that no process
// uses. It is a courtesy to a server that many runs share: a database that
// cannot be dropped now is left for the next run.
func (s *suite) sweep(ctx context.Context) error {
	const query = `SELECT datname FROM pg_database
		WHERE starts_with(datname, $1) AND pg_get_userbyid(datdba) = current_user`
	rows, err := s.session.Query(ctx, query, prefix)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		owner := lockName(name)
		if owner == s.ownPrefix() || owner == s.template {
			continue
		}
		free, err := tryLock(ctx, s.session, owner)
		if err != nil {
			return err
		}
		if !free {
			continue
		}
		_, _ = s.session.Exec(ctx, dropSQL(name)) // the next run tries again
		if err := unlock(ctx, s.session, owner); err != nil {
			return err
		}
	}
	return nil
}

// lockName tells which lock guards a database: a template's own, or that of
// the process that made it.
func lockName(database string) string {
	if strings.HasPrefix(database, templatePrefix) {
		return strings.TrimSuffix(database, unfinished)
	}
	return database[:strings.LastIndexByte(database, '_')+1]
}

// Advisory locks are by number and belong to the session: they go when it
// ends, also by a kill.

func lock(ctx context.Context, conn *pgx.Conn, name string) error {
	_, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", lockKey(name))
	return err
}

func lockShared(ctx context.Context, conn *pgx.Conn, name string) error {
	_, err := conn.Exec(ctx, "SELECT pg_advisory_lock_shared($1)", lockKey(name))
	return err
}

func unlock(ctx context.Context, conn *pgx.Conn, name string) error {
	_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", lockKey(name))
	return err
}

func unlockShared(ctx context.Context, conn *pgx.Conn, name string) error {
	_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock_shared($1)", lockKey(name))
	return err
}

func tryLock(ctx context.Context, conn *pgx.Conn, name string) (ok bool, err error) {
	err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", lockKey(name)).Scan(&ok)
	return ok, err
}

func lockKey(name string) int64 {
	sum := sha256.Sum256([]byte("outboxd testdb " + name))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}
