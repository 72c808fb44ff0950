package outbox_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// figures are the series of a registry by name and labels; of a histogram, how
// many values it has seen.
func figures(t *testing.T, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := strings.TrimPrefix(f.GetName(), "outboxd_")
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// counted is a deliverer and a client that count.
type counted struct {
	*delivering
	metrics  *outbox.Metrics
	registry *prometheus.Registry
}

func newCounted(t *testing.T) *counted {
	t.Helper()
	d := newDelivering(t)
	registry := prometheus.NewRegistry()
	c := &counted{delivering: d, registry: registry, metrics: outbox.NewMetrics(registry)}
	var err error
	if d.client, err = outbox.NewClient(d.pool, outbox.Config{Metrics: c.metrics}); err != nil {
		t.Fatal(err)
	}
	c.worker(newSendGrid(t, d.provider.URL()))
	return c
}

// worker replaces the deliverer by one that counts.
func (c *counted) worker(p providers.Provider) {
	c.t.Helper()
	c.kill()
	c.deliverer = c.newDelivererWith(outbox.WorkerConfig{Providers: []providers.Provider{p}, Metrics: c.metrics})
}

// moved is what a step has added to the figures.
func (c *counted) moved(step func()) map[string]float64 {
	c.t.Helper()
	before := figures(c.t, c.registry)
	step()
	moved := map[string]float64{}
	for name, value := range figures(c.t, c.registry) {
		if difference := value - before[name]; difference != 0 {
			moved[name] = difference
		}
	}
	return moved
}

func (c *counted) submit(key string, change func(*outbox.Submission)) error {
	s := submission(c.org, key)
	if change != nil {
		change(&s)
	}
	_, err := c.client.Enqueue(context.Background(), s)
	return err
}

func (c *counted) inTx(run func(tx pgx.Tx) error) {
	c.t.Helper()
	if err := pgx.BeginFunc(context.Background(), c.pool, run); err != nil {
		c.t.Error(err)
	}
}

// leftInDoubt returns an email in doubt whose worker is gone.
func (c *counted) leftInDoubt() uuid.UUID {
	c.t.Helper()
	id := c.enqueue()
	c.crashed(id, true)
	c.worker(newSendGrid(c.t, c.provider.URL()))
	c.deliver(id)
	return id
}

func (c *counted) respond(r providertest.Reaction) {
	c.provider.Respond(func(providertest.Seen) providertest.Reaction { return r })
}

// Each step moves these figures by these values, and no other.
func TestMetricsCountWhatIsDecided(t *testing.T) {
	t.Parallel()
	attempt := func(outcome string) map[string]float64 {
		return map[string]float64{"attempts_total{outcome=" + outcome + ",provider=sendgrid}": 1, "provider_request_seconds{provider=sendgrid}": 1}
	}
	deliver := func(r providertest.Reaction) func(*counted) func() {
		return func(c *counted) func() {
			id := c.enqueue()
			c.respond(r)
			return func() { c.deliver(id) }
		}
	}
	tests := []struct {
		name string
		// setUp prepares the step that it returns.
		setUp func(*counted) func()
		want  map[string]float64
	}{
		{"accepted", func(c *counted) func() {
			return func() { _ = c.submit("k", nil) }
		}, map[string]float64{"submissions_total{outcome=accepted}": 1}},
		{"without a key", func(c *counted) func() {
			return func() { _ = c.submit("", nil) }
		}, map[string]float64{"submissions_total{outcome=accepted}": 1, "submissions_without_key_total": 1}},
		{"replayed", func(c *counted) func() {
			_ = c.submit("k", nil)
			return func() { _ = c.submit("k", nil) }
		}, map[string]float64{"submissions_total{outcome=replayed}": 1}},
		{"key reused", func(c *counted) func() {
			_ = c.submit("k", nil)
			return func() { _ = c.submit("k", func(s *outbox.Submission) { s.Messages[0].Subject = "another" }) }
		}, map[string]float64{"submissions_total{outcome=key_reused}": 1}},
		{"invalid", func(c *counted) func() {
			return func() { _ = c.submit("k", func(s *outbox.Submission) { s.Messages[0].From = "" }) }
		}, map[string]float64{"submissions_total{outcome=invalid}": 1}},
		{"paused org", func(c *counted) func() {
			c.exec("INSERT INTO outbox.orgs (id, name, paused_at) VALUES ($1, 'acme', now())", c.org)
			return func() { _ = c.submit("k", nil) }
		}, map[string]float64{"submissions_total{outcome=org_paused}": 1}},
		{"the database is away", func(c *counted) func() {
			return func() {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				_, _ = c.client.Enqueue(ctx, submission(c.org, ""))
			}
		}, map[string]float64{"submissions_total{outcome=unavailable}": 1}},
		{"in a transaction", func(c *counted) func() {
			return func() {
				c.inTx(func(tx pgx.Tx) error {
					_, err := c.client.EnqueueTx(context.Background(), tx, submission(c.org, "k"))
					return err
				})
			}
		}, map[string]float64{"submissions_total{outcome=accepted}": 1}},
		{"many in a transaction", func(c *counted) func() {
			return func() {
				c.inTx(func(tx pgx.Tx) error {
					_, err := c.client.EnqueueManyTx(context.Background(), tx, []outbox.Submission{submission(c.org, "a"), submission(c.org, "")})
					return err
				})
			}
		}, map[string]float64{"submissions_total{outcome=accepted}": 2, "submissions_without_key_total": 1}},

		{"handed over", deliver(providertest.Accept()), attempt("accepted")},
		{"rejected", deliver(providertest.Reply(400, "")), attempt("rejected")},
		{"deferred", deliver(providertest.Reply(429, "")), attempt("deferred")},
		{"in doubt", deliver(providertest.Reset()), attempt("unknown")},

		{"replay", func(c *counted) func() {
			c.worker(keyed{newSendGrid(c.t, c.provider.URL())})
			id := c.enqueue()
			c.crashed(id, true)
			c.worker(keyed{newSendGrid(c.t, c.provider.URL())})
			return func() { c.deliver(id) }
		}, map[string]float64{
			"doubts_resolved_total{evidence=replay}": 1, "attempts_total{outcome=accepted,provider=sendgrid}": 1,
			"provider_request_seconds{provider=sendgrid}": 1,
		}},
		{"search", func(c *counted) func() {
			id := c.leftInDoubt()
			c.worker(searchable{newSendGrid(c.t, c.provider.URL()), providers.FoundAccepted, new(string)})
			return func() { c.deliver(id) }
		}, map[string]float64{"doubts_resolved_total{evidence=search}": 1}},
		{"person", func(c *counted) func() {
			id := c.leftInDoubt()
			return func() {
				if err := c.client.Resolve(context.Background(), c.org, id, outbox.OutcomeAccepted, "jane"); err != nil {
					c.t.Error(err)
				}
			}
		}, map[string]float64{"doubts_resolved_total{evidence=person}": 1}},
		{"event", func(c *counted) func() {
			id := c.leftInDoubt()
			key := c.get(id).Attempts[0].ProviderKey
			return func() {
				if _, err := c.client.RecordEvents(context.Background(), "sendgrid", []providers.Event{{
					Type: providers.EventDelivered, Reference: key.String(), ProviderMessageID: "m", Recipient: "a@example.com", OccurredAt: time.Now(),
				}}); err != nil {
					c.t.Error(err)
				}
			}
		}, map[string]float64{"doubts_resolved_total{evidence=webhook}": 1, "events_total{provider=sendgrid,type=delivered}": 1}},
		{"policy, then once more", func(c *counted) func() {
			id := c.leftInDoubt()
			c.waited()
			c.respond(providertest.Accept())
			return func() { c.deliver(id) }
		}, map[string]float64{
			"doubts_resolved_total{evidence=policy}": 1, "possible_duplicates_total": 1,
			"attempts_total{outcome=accepted,provider=sendgrid}": 1, "provider_request_seconds{provider=sendgrid}": 1,
		}},

		{"dead worker", func(c *counted) func() {
			c.running(c.enqueue(), c.delivering.worker)
			kill := c.kill
			c.deliverer = c.newDelivererWith(outbox.WorkerConfig{Providers: []providers.Provider{newSendGrid(c.t, c.provider.URL())}, Metrics: c.metrics})
			s := c.sweeper()
			c.sweep(s)
			kill()
			c.awaitLocks(1)
			return func() { c.sweep(s); c.sweep(s) }
		}, map[string]float64{"recoveries_total{reason=worker_died}": 1, "recovery_delay_seconds": 1}},
		{"worker dead since before the sweep began", func(c *counted) func() {
			c.running(c.enqueue(), c.delivering.worker)
			c.worker(newSendGrid(c.t, c.provider.URL()))
			c.awaitLocks(1)
			s := c.sweeper()
			return func() { c.sweep(s); c.sweep(s) }
		}, map[string]float64{"recoveries_total{reason=worker_died}": 1}},
		{"overdue", func(c *counted) func() {
			c.running(c.enqueue(), c.delivering.worker)
			c.exec("UPDATE outbox.river_job SET attempted_at = now() - interval '1 hour'")
			s := c.sweeper()
			return func() { c.sweep(s); c.sweep(s) }
		}, map[string]float64{"recoveries_total{reason=overdue}": 1}},
		{"orphans", func(c *counted) func() {
			c.enqueue()
			c.enqueue()
			c.exec("UPDATE outbox.emails SET created_at = now() - interval '1 minute'")
			c.exec("DELETE FROM outbox.river_job")
			s := c.sweeper()
			return func() { c.sweep(s); c.sweep(s) }
		}, map[string]float64{"orphans_total": 2}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCounted(t)
			if diff := cmp.Diff(test.want, c.moved(test.setUp(c))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMetricsOfWebhooks(t *testing.T) {
	t.Parallel()
	for outcome, answer := range map[string]http.HandlerFunc{
		"delivered": status(http.StatusOK), "refused": status(http.StatusNotFound), "unreachable": hangUp,
	} {
		d := newTelling(t)
		registry := prometheus.NewRegistry()
		var err error
		d.deliverer, err = outbox.NewDeliverer(d.pool, outbox.WorkerConfig{
			Providers: []providers.Provider{newSendGrid(t, d.provider.URL())}, AllowPrivateWebhooks: true,
			Metrics: outbox.NewMetrics(registry),
		})
		if err != nil {
			t.Fatal(err)
		}
		w := d.webhook(newReceiver(t, answer).server.URL)
		d.sent()
		d.tell(d.message(w).ID)
		for name, n := range figures(t, registry) {
			is := name == "webhook_attempts_total{outcome="+outcome+"}"
			if strings.HasPrefix(name, "webhook_attempts_total") && (n == 1) != is {
				t.Errorf("%s: %s is %v", outcome, name, n)
			}
		}
	}
}

// A name is registered once, so that two clients never count into one unnoticed.
func TestMetricsAreRegisteredOnce(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	outbox.NewMetrics(registry)
	defer func() {
		if recover() == nil {
			t.Error("the second registration did not panic")
		}
	}()
	outbox.NewMetrics(registry)
}

func (d *delivering) stateFigures(kept time.Duration) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(outbox.NewState(d.pool, kept))
	return registry
}

func TestStateIsWhatTheDatabaseHas(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	ids := make([]uuid.UUID, 6)
	for i := range ids {
		ids[i] = d.enqueue()
	}
	d.exec("UPDATE outbox.emails SET created_at = now() - interval '3 hours'")
	set := func(i int, sql string) { d.exec("UPDATE outbox.emails SET "+sql+" WHERE id = $1", ids[i]) }
	set(0, "created_at = now() - interval '1 hour'")
	set(1, "next_attempt_at = now() + interval '1 hour', priority = 1")
	set(2, "status = 'sent', ended_at = now()")
	set(3, "status = 'unknown'")
	d.exec(`INSERT INTO outbox.attempts (email_id, number, provider, provider_key, worker, began_at, deadline, in_doubt_at, payload_sha256)
		VALUES ($1, 1, 'sendgrid', gen_random_uuid(), 'w', now(), now(), now() - interval '10 minutes', '')`, ids[3])
	set(4, "status = 'scheduled', scheduled_at = now() + interval '1 day', priority = 3")
	set(5, "status = 'sending', priority = 3")
	d.exec("UPDATE outbox.river_job SET state = 'completed', finalized_at = now() WHERE id % 2 = 0")
	d.exec("INSERT INTO outbox.providers (name, reason, detail, out_since, probe_at) VALUES ('ses', 'unavailable', 'x', now(), now()), ('smtp', NULL, NULL, NULL, NULL)")

	got := figures(t, d.stateFigures(time.Hour))
	near := func(name string, want float64) {
		t.Helper()
		if v, ok := got[name]; !ok || v < want || v > want+60 {
			t.Errorf("%s = %v, want about %v", name, v, want)
		}
	}
	for name, want := range map[string]float64{
		"emails{priority=normal,status=queued}": 1, "emails{priority=high,status=queued}": 1, "emails{priority=normal,status=unknown}": 1,
		"emails{priority=low,status=scheduled}": 1, "emails{priority=low,status=sending}": 1, "emails{priority=low,status=queued}": 0,
		"provider_in_order{provider=ses}": 0, "provider_in_order{provider=smtp}": 1, "workers_alive": 1,
		"jobs{queue=emails,state=available}": 3, "jobs{queue=webhooks,state=available}": 0, "webhooks_failing": 0, "scrape_errors_total": 0,
		"oldest_email_seconds{priority=high,status=queued}": 0, "oldest_email_seconds{priority=low,status=scheduled}": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s = %v (there: %v), want %v", name, v, ok, want)
		}
	}
	near("oldest_email_seconds{priority=normal,status=queued}", 3600)
	near("oldest_email_seconds{priority=normal,status=unknown}", 600)
	near("oldest_email_seconds{priority=low,status=sending}", 3*3600)
}

// The API's connections see no org's rows unless they are told to.
func TestStateIsOfAllOrgs(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.enqueue()
	d.org = uuid.New()
	d.enqueue()
	d.pool = testdb.Reopen(t, d.pool, outbox.OrgSetting, outbox.NoOrg)
	if n := figures(t, d.stateFigures(0))["emails{priority=normal,status=queued}"]; n != 2 {
		t.Errorf("%v emails are queued, want 2", n)
	}
}

// Several scrapers cost no more than one.
func TestStateIsReadOnceForAWhile(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	kept, fresh := d.stateFigures(time.Hour), d.stateFigures(0)
	const queued = "emails{priority=normal,status=queued}"
	figures(t, kept)
	d.enqueue()
	if n := figures(t, kept)[queued]; n != 0 {
		t.Errorf("read again: %v", n)
	}
	if n := figures(t, fresh)[queued]; n != 1 {
		t.Errorf("%v emails are queued, want 1", n)
	}
}

// What cannot be read is absent, and counted.
func TestStateIsAbsentWhenItCannotBeRead(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	state := d.stateFigures(0)
	figures(t, state)
	d.exec("ALTER TABLE outbox.webhooks RENAME TO hidden")
	if diff := cmp.Diff(map[string]float64{"scrape_errors_total": 1}, figures(t, state)); diff != "" {
		t.Error(diff)
	}
	d.exec("ALTER TABLE outbox.hidden RENAME TO webhooks")
	if got := figures(t, state); len(got) < 20 || got["scrape_errors_total"] != 1 {
		t.Errorf("%d series after it is back", len(got))
	}
}
