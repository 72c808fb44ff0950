package outbox_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// What an email is found by is the same through Go and through SQL, also for what
// the migration fills in, and belongs to one org.
func TestSearchTermsAreTheSameInSQL(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	org := uuid.New()
	recipients := []string{"a@example.com", "jürgen@xn--mller-kva.example", `"o'b\"@example.com`}
	tags := []outbox.Tag{{Name: "kind", Value: "receipt"}, {Name: "kind", Value: "kind"}, {Name: "shop", Value: "7"}}
	rows, err := tx.Query(context.Background(), "SELECT outbox.enqueue_terms($1, $2, $3)", org, recipients, tags)
	must(t, err)
	sql, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	must(t, err)
	want := outbox.SearchTerms(org, recipients, tags)
	byBytes := func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
	slices.SortFunc(sql, byBytes)
	slices.SortFunc(want, byBytes)
	if len(want) != 3+2+3 || !slices.Equal(want, sql) {
		t.Errorf("terms %v in Go, %v in SQL; want the same 8", want, sql)
	}
	for _, term := range outbox.SearchTerms(uuid.New(), recipients, tags) {
		if slices.Contains(want, term) {
			t.Errorf("term %s is of two orgs", term)
		}
	}
}
