package outbox_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

func TestAddWorkersRefuses(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	cfg := outbox.WorkerConfig{Providers: []providers.Provider{newSendGrid(t, "http://127.0.0.1")}}
	for name, test := range map[string]struct {
		river river.Config
		cfg   outbox.WorkerConfig
		want  string
	}{
		"another schema": {river.Config{Schema: "public"}, cfg, `"public"`},
		"an ID":          {river.Config{ID: "web-1"}, cfg, `"web-1"`},
		"no provider":    {river.Config{}, outbox.WorkerConfig{}, "provider"},
	} {
		if _, err := outbox.AddWorkers(t.Context(), &test.river, pool, test.cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one about %s", name, err, test.want)
		}
	}
	if n := count(t, pool, "SELECT count(*) FROM outbox.workers"); n != 0 {
		t.Errorf("%d workers are registered", n)
	}
}

// A client whose membership is lost sends nothing any more: others may have
// taken over what it had begun.
func TestLostMembershipSendsNothing(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	provider := providertest.NewHTTP(t, providertest.SendGrid)
	config := &river.Config{}
	membership, err := outbox.AddWorkers(t.Context(), config, pool, outbox.WorkerConfig{
		Providers: []providers.Provider{newSendGrid(t, provider.URL())},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer membership.Close(t.Context())
	if config.ID != membership.ID() || config.Schema != outbox.Schema {
		t.Errorf("ID %q and schema %q, want %q and %q", config.ID, config.Schema, membership.ID(), outbox.Schema)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	if err != nil {
		t.Fatal(err)
	}
	failed, cancel := client.Subscribe(river.EventKindJobFailed)
	defer cancel()
	if err := client.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'outboxd-liveness'`); err != nil {
		t.Fatal(err)
	}
	<-membership.Lost()
	if _, err := newClient(t, pool).Enqueue(t.Context(), submission(uuid.New(), "")); err != nil {
		t.Fatal(err)
	}
	if event := <-failed; !strings.Contains(event.Job.Errors[0].Error, "session") {
		t.Errorf("the job failed with %q", event.Job.Errors[0].Error)
	}
	if err := client.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := provider.Requests(); n != 0 {
		t.Errorf("%d requests, want none", n)
	}
}
