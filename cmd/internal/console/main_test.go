package console_test

import (
	"testing"

	"github.com/outboxd/outboxd/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }
