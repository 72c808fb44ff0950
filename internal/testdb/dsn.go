package testdb

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// withDatabase returns the connection string with another database's name. It
// knows the two forms that PostgreSQL has, a URL and keyword=value pairs, and
// asks pgx whether the result means what it should: a parsed configuration
// cannot be turned back into a string without losing its TLS settings.
func withDatabase(dsn, name string) (string, error) {
	changed := dsn + " dbname=" + name // of repeated keywords the last one counts
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		u, err := url.Parse(dsn)
		if err != nil {
			return "", fmt.Errorf("the database's URL cannot be read") // err quotes its password
		}
		query := u.Query()
		query.Del("dbname")
		u.Path, u.RawPath, u.RawQuery = "/"+name, "", query.Encode()
		changed = u.String()
	}
	config, err := pgx.ParseConfig(changed)
	if err != nil {
		return "", err
	}
	if config.Database != name {
		return "", fmt.Errorf("the database's name cannot be replaced in DATABASE_URL: it still says %q", config.Database)
	}
	return changed, nil
}
