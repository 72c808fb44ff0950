package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// A worker is alive while its session stands, then gone, and has ended once others
// have taken over what it held.
func TestListWorkers(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	dying, kill := d.worker, d.kill
	d.deliverer = d.newDeliverer(newSendGrid(t, d.provider.URL()))
	alive := d.worker
	first, second := d.enqueue(), d.enqueue()
	d.running(first, dying)
	d.running(second, dying)
	d.running(d.enqueue(), alive)
	d.exec(`INSERT INTO outbox.river_leader (leader_id, elected_at, expires_at) VALUES ($1, now(), now() + interval '1 hour')`, alive)
	d.exec(`INSERT INTO outbox.workers (id, lock_key, host, pid, version, started_at, ended_at)
		SELECT 'old/' || n, n, 'old', n, '1', now() - interval '2 days', now() - interval '1 day' FROM generate_series(1, 60) n`)
	pool := testdb.Reopen(t, d.pool, outbox.OrgSetting, outbox.NoOrg)
	list := func() (workers map[string]outbox.WorkerInfo, first outbox.WorkerInfo) {
		t.Helper()
		all, err := outbox.ListWorkers(context.Background(), pool)
		must(t, err)
		workers = map[string]outbox.WorkerInfo{}
		for _, w := range all {
			workers[w.ID] = w
		}
		return workers, all[0]
	}

	workers, newest := list()
	if w := workers[dying]; w.State != outbox.WorkerAlive || w.Delivering != 2 || w.Recovered != 0 || w.Leads || !w.EndedAt.IsZero() {
		t.Errorf("at work: %+v", w)
	}
	if w := workers[alive]; w != newest || w.State != outbox.WorkerAlive || w.Delivering != 1 || !w.Leads || w.Version != "test" || w.PID == 0 || w.Host == "" || w.StartedAt.IsZero() {
		t.Errorf("the newest: %+v", w)
	}
	if len(workers) != 2+50 || workers["old/1"].State != outbox.WorkerEnded {
		t.Errorf("%d workers, of those that ended the first is %+v", len(workers), workers["old/1"])
	}

	kill()
	d.awaitLocks(1)
	workers, _ = list()
	if w := workers[dying]; w.State != outbox.WorkerGone || w.Delivering != 2 {
		t.Errorf("killed: %+v", w)
	}
	s := d.sweeper()
	d.sweep(s)
	d.sweep(s)
	workers, _ = list()
	if w := workers[dying]; w.State != outbox.WorkerEnded || w.Delivering != 0 || w.Recovered != 2 ||
		time.Since(w.RecoveredAt) > time.Hour || w.EndedAt.IsZero() {
		t.Errorf("taken over from: %+v", w)
	}
	if w := workers[alive]; w.State != outbox.WorkerAlive || w.Recovered != 0 {
		t.Errorf("the other one: %+v", w)
	}
}
