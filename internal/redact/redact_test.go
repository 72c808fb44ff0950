package redact_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/internal/redact"
	"github.com/outboxd/outboxd/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                     "",
		"relation \"outbox.emails\" is absent": "relation \"outbox.emails\" is absent",
		"550 <jane@example.org> unknown, jane+x@b.example too":                     "550 <(address)> unknown, (address) too",
		"jürgen@müller.example":                                                    "(address)",
		"to=jane%40example.org&from=1":                                             "to=(address)&from=1",
		`Get "https://api.test/v3/events?recipient=jane%40example.org&key=s": EOF`: `Get "https://api.test/v3/events?(query)": EOF`,
		"see https://api.test/docs, or not?":                                       "see https://api.test/docs, or not?",
	} {
		if got := redact.Text(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	if got := redact.Quoted(`parsing time "canary "x"" for a@b`); got != `parsing time "(value)" for (address)` {
		t.Errorf("quoted: %q", got)
	}
}

// Errors of Postgres and of its driver quote the values that they are about. What
// helps to find the fault stays: the code, and the names of tables and constraints.
func TestErrorsOfPostgres(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sql  string
		args []any
		into any
		keep string
	}{
		"cast":       {`SELECT $1::text::timestamptz`, []any{"canary subject"}, nil, "22007"},
		"marks":      {`SELECT $1::integer`, []any{"canary \"subject\"\ncanary@example.org"}, nil, "22P02"},
		"uuid":       {`SELECT $1::text::uuid`, []any{"canary"}, nil, "22P02"},
		"array":      {`SELECT $1::text::text[]`, []any{"canary, canary@example.org"}, nil, "22P02"},
		"json":       {`SELECT $1::text::jsonb`, []any{`{"subject": canary}`}, nil, "22P02"},
		"not unique": {`INSERT INTO outbox.orgs (id, name) VALUES ($1, 'canary'), ($1, 'canary2')`, []any{uuid.New()}, nil, "orgs_pkey"},
		"too long":   {`SELECT $1::text::bit(3)`, []any{"canary"}, nil, "22P02"},
		"no table":   {`SELECT FROM outbox.nowhere`, nil, nil, "outbox.nowhere"},
		"encode":     {`SELECT $1::integer`, []any{[]string{"canary \"subject\"\ncanary@example.org"}}, nil, "unable to encode (value) into"},
		"scan":       {`SELECT 'canary'::text`, nil, new(uuid.UUID), "can't scan into dest[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows, err := testdb.Tx(t).Query(t.Context(), test.sql, test.args...)
			if err == nil && test.into != nil {
				_, err = pgx.ForEachRow(rows, []any{test.into}, func() error { return nil })
			} else if err == nil {
				rows.Close()
				err = rows.Err()
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, wrapped := range []error{err, fmt.Errorf("store email: %w", err), errors.Join(errors.New("first"), err)} {
				if text := redact.Error(wrapped); strings.Contains(text, "canary") || !strings.Contains(text, test.keep) {
					t.Errorf("%q became %q", wrapped, text)
				}
			}
		})
	}
}

// A connection string is not shown: not every password in it is recognised.
func TestErrorsOfConnectionStrings(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres://u:canary@h:port/db", "host=h password = canary sslmode=bad", "host=h password='a `canary` b' port=z"} {
		_, err := pgx.ParseConfig(url)
		if err == nil {
			t.Fatalf("%s: no error", url)
		}
		if text := redact.Error(err); strings.Contains(text, "canary") || !strings.Contains(text, "cannot parse it: ") {
			t.Errorf("%s: %s", url, text)
		}
	}
}

// Whatever an attribute is, and wherever it stands.
func TestLogger(t *testing.T) {
	t.Parallel()
	for name, format := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		var out bytes.Buffer
		log := redact.Logger(redact.Logger(slog.New(format(&out))))
		const secret = "canary@example.org"
		log.Info("to "+secret, "text", secret, "error", errors.New(secret), "list", []string{secret},
			"struct", struct{ To string }{secret}, slog.Group("group", "to", secret, "kept", "a"), "number", 7)
		log.With("to", secret).WithGroup("g").Warn("with", "also", secret)
		slog.NewLogLogger(log.Handler(), slog.LevelWarn).Printf("http: panic serving %s", secret)
		if text := out.String(); strings.Contains(text, "canary") || strings.Count(text, "(address)") != 9 ||
			!strings.Contains(text, "kept") || !strings.Contains(text, "7") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}
