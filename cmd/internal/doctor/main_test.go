package doctor

import (
	"testing"

	"github.com/outboxd/outboxd/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestSQLPrepares(t *testing.T) {
	t.Parallel()
	testdb.PrepareSQL(t)
}
