package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// plan is a node of a plan of Postgres.
type plan struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Cond     string `json:"Index Cond"`
	Plans    []plan
}

// bigTables grow with the emails.
var bigTables = []string{
	"emails", "email_contents", "email_terms", "attachments", "attempts", "events",
	"idempotency_keys", "suppressions", "webhook_messages",
}

// scans are the parts that read a whole table or a whole index.
func (p plan) scans() (list []string) {
	whole := p.Type == "Seq Scan" || strings.Contains(p.Type, "Index") && p.Cond == ""
	big := slices.ContainsFunc(bigTables, func(table string) bool {
		return p.Relation == table || p.Type == "Bitmap Index Scan" && strings.HasPrefix(p.Index, table)
	})
	if whole && big {
		list = append(list, fmt.Sprintf("%s on %s %s", p.Type, p.Relation, p.Index))
	}
	for _, child := range p.Plans {
		list = append(list, child.scans()...)
	}
	return list
}

// Row-level security keeps no statement from its index, as it does from operators
// that may leak. Other plans are forbidden, so the size of the tables does not
// matter: what is left has an index, or scans because it cannot use one.
func TestWallKeepsNoStatementFromItsIndex(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	ctx := context.Background()
	for _, sql := range []string{
		`INSERT INTO outbox.emails (id, org_id, status, created_at)
			SELECT gen_random_uuid(), gen_random_uuid(), 'sending', now() FROM generate_series(1, 3000)`,
		`INSERT INTO outbox.email_contents (email_id, org_id, from_address, to_addresses, subject, recipients)
			SELECT id, org_id, 'a@example.com', '[]', 'x', '{}' FROM outbox.emails`,
		`INSERT INTO outbox.attempts (email_id, number, provider, provider_key, worker, began_at, deadline, payload_sha256)
			SELECT id, 1, 'p', gen_random_uuid(), 'w', now(), now(), 'x' FROM outbox.emails`,
		`INSERT INTO outbox.webhook_messages (id, webhook_id, org_id, type, email_id, created_at, next_attempt_at)
			SELECT id, id, org_id, 'email.sent', id, now(), now() FROM outbox.emails`,
		`INSERT INTO outbox.suppressions (org_id, address, reason)
			SELECT org_id, id || '@example.org', 'manual' FROM outbox.emails`,
		"ANALYZE outbox.emails, outbox.email_contents, outbox.attempts, outbox.webhook_messages, outbox.suppressions",
	} {
		_, err := tx.Exec(ctx, sql)
		must(t, err)
	}
	for _, setting := range []string{
		"plan_cache_mode = force_generic_plan", "enable_seqscan = off", "enable_hashjoin = off", "enable_mergejoin = off", "jit = off",
	} {
		_, err := tx.Exec(ctx, "SET LOCAL "+setting)
		must(t, err)
	}
	statements := map[string]string{}
	maps.Copy(statements, outbox.HotStatements)
	for name, s := range unknown(uuid.New()).statements() {
		statements["tenant_"+name] = s.SQL
	}
	for name, sql := range statements {
		name = "plan of " + name // pgx takes a statement for the prepared one of that name
		prepared, err := tx.Prepare(ctx, name, sql)
		must(t, err)
		call := fmt.Sprintf("EXPLAIN (FORMAT JSON) EXECUTE %q", name)
		if n := len(prepared.ParamOIDs); n > 0 {
			call += "(" + strings.TrimSuffix(strings.Repeat("NULL,", n), ",") + ")"
		}
		var text []byte
		must(t, tx.QueryRow(ctx, call).Scan(&text))
		var explained []struct{ Plan plan }
		must(t, json.Unmarshal(text, &explained))
		if scans := explained[0].Plan.scans(); scans != nil {
			t.Errorf("%s: %s\n%s", name, strings.Join(scans, ", "), text)
		}
	}
	if len(statements) < 40 {
		t.Errorf("only %d statements were looked at", len(statements))
	}
}
