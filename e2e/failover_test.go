package e2e_test

import (
	"errors"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/outboxd/outboxd/internal/localpg"
	"github.com/outboxd/outboxd/providers/providertest"
)

// replicated is a primary with a synchronous streaming replica.
type replicated struct {
	t                *testing.T
	primary, replica *localpg.Server
}

func startReplicated(t *testing.T) *replicated {
	t.Helper()
	p := &replicated{t: t, primary: startDurable(t, devData(t))}
	replicaData := devData(t)
	if err := p.primary.Replicate(t.Context(), replicaData); errors.Is(err, localpg.ErrNotFound) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	p.replica = startDurable(t, replicaData)
	above := p.above(p.primary)
	above.exec("ALTER SYSTEM SET synchronous_standby_names = '*'")
	above.exec("SELECT pg_reload_conf()")
	eventually(t, "the replica follows, and commits wait for it", func() bool {
		return above.count("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	})
	return p
}

func startDurable(t *testing.T, data string) *localpg.Server {
	t.Helper()
	server, err := localpg.Start(t.Context(), localpg.Options{DataDir: data})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// url names both hosts, as a DATABASE_URL for a pair does: clients take the one
// that can be written to.
func (p *replicated) url() string {
	p.t.Helper()
	both, err := url.Parse(p.primary.URL())
	if err != nil {
		p.t.Fatal(err)
	}
	replica, err := url.Parse(p.replica.URL())
	if err != nil {
		p.t.Fatal(err)
	}
	both.Host += "," + replica.Host
	both.RawQuery += "&target_session_attrs=read-write"
	return both.String()
}

// failOver kills the primary and makes the replica the new one.
func (p *replicated) failOver() {
	p.t.Helper()
	if err := p.primary.Kill(); err != nil {
		p.t.Fatal(err)
	}
	p.above(p.replica).exec("SELECT pg_promote()")
}

// above is one of the servers as its superuser sees it.
func (p *replicated) above(server *localpg.Server) *installation {
	p.t.Helper()
	return connect(p.t, server.SuperuserURL())
}

// The primary gets SIGKILL under load and its synchronous replica is promoted.
// What was acknowledged is there, under its key, and is sent once, by the API and
// the workers that were there before (I1, I2, I3, I6, I10).
func TestFailover(t *testing.T) {
	t.Parallel()
	const perSecond = 50
	total := 300
	if os.Getenv(longEnv) != "" {
		total = 3000
	}
	db := startReplicated(t)
	outboxctl(t, db.url(), "migrate", "up")
	in := installOn(t, db.url())
	provider := providertest.NewHTTP(t, providertest.Resend)
	provider.Respond(func(providertest.Seen) providertest.Reaction {
		return providertest.Accept().Late(50 * time.Millisecond) // so that the kill meets sends
	})
	env := resendEnv(provider)
	api := in.start("api", env...)
	workers := []*process{in.start("worker", env...), in.start("worker", env...)}
	for _, w := range workers {
		w.ready()
	}

	load := submitSteadily(api.url("api"), in.token, total, perSecond)
	var got []acknowledgement
	var killed time.Time
	for len(got) < total {
		a := await(t, "an acknowledgement", load)
		if a.err != nil {
			t.Fatalf("submission %d: %v", a.number, a.err)
		}
		if got = append(got, a); len(got) == total/2 {
			killed = time.Now()
			db.failOver()
		}
	}
	in.awaitEnded()
	took := time.Since(killed)

	in.wantRows(total, total)
	in.checkAcknowledged(got)
	in.checkOnce(provider, total)
	in.awaitAlive(workers...)
	t.Logf("%d emails acknowledged, and sent once each; all ended %v after the primary was killed; %s",
		total, took.Round(100*time.Millisecond), summary(got))
}
