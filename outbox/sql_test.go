package outbox_test

import (
	"testing"

	"github.com/outboxd/outboxd/internal/testdb"
)

func TestSQLPrepares(t *testing.T) {
	t.Parallel()
	testdb.PrepareSQL(t)
}
