package e2e_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/internal/pgproxy"
)

// death is where an application's COMMIT is when the application is killed.
type death int

const (
	unsent    death = iota // Postgres never gets it
	underway               // Postgres gets it when the application is dead, and what comes of it nobody can say
	committed              // Postgres has it, the application has no answer
	deaths
)

// The application is killed between its INSERT and the answer to its COMMIT:
// there is no mail without its order and no order without its mail. Then it
// places all orders again, as it would after a restart, and each is there with
// one mail. OUTBOXD_TEST_APP_KILLS=100 does more.
func TestKilledApplication(t *testing.T) {
	t.Parallel()
	for name, find := range map[string]func(*testing.T) example{"go-order": goExample, "node-order": nodeExample} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := find(t)
			openShop(t).checkKills(e, repeats(t, "OUTBOXD_TEST_APP_KILLS", int(deaths)))
		})
	}
}

func (s *shop) checkKills(e example, kills int) {
	s.t.Helper()
	var all, sure, doubtful []string
	for i := range kills {
		order := fmt.Sprint(1000 + i)
		all = append(all, order)
		at := death(i) % deaths
		s.killAt(at, e, order)
		if at == committed {
			sure = append(sure, order)
		}
		if at == underway {
			doubtful = append(doubtful, order)
		}
	}
	stored := s.texts("SELECT id FROM orders ORDER BY id")
	s.wantOrders(len(stored))
	s.wantMails(stored...)
	if diff := cmp.Diff(stored, s.texts("SELECT substr(key, 9) FROM outbox.idempotency_keys ORDER BY key")); diff != "" {
		s.t.Errorf("keys (-orders +keys):\n%s", diff)
	}
	known := slices.DeleteFunc(slices.Clone(stored), func(order string) bool { return slices.Contains(doubtful, order) })
	if diff := cmp.Diff(sure, known); diff != "" {
		s.t.Errorf("orders (-committed +stored):\n%s", diff)
	}
	s.t.Logf("%d kills: %d orders, each with its mail", kills, len(stored))

	for _, order := range all {
		s.place(e, order, "19.90").id()
	}
	s.wantOrders(kills)
	s.wantMails(all...)
}

// killAt kills a program that is placing an order, and waits until Postgres is
// done with its transaction.
func (s *shop) killAt(at death, e example, order string) {
	s.t.Helper()
	release := make(chan struct{})
	action := pgproxy.HoldBefore(release)
	if at == committed {
		action = pgproxy.HoldAfter(release)
	}
	rule := s.proxy.On(pgproxy.Commit, action, pgproxy.Saw(insertsOrder))
	placed := s.place(e, order, "19.90")
	await(s.t, "the COMMIT", rule.Fired())
	if err := placed.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	if err := await(s.t, "the end of the application", placed.done); err == nil || placed.out.Len() > 0 {
		s.t.Fatalf("the application ended with %v and printed %s, it was not killed in time", err, &placed.out)
	}
	if at == underway {
		close(release)
	} else {
		s.proxy.CutAll()
	}
	eventually(s.t, "its session ends", func() bool {
		return s.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'shop'") == 0
	})
}
