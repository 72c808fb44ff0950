package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// process is an API process with a clock that stands still.
type process struct {
	*service
	server *api.Server
	ahead  *atomic.Int64
}

func (s *service) newProcess() process {
	s.t.Helper()
	walled := testdb.Reopen(s.t, s.pool, outbox.OrgSetting, outbox.NoOrg) // as the API's
	p := process{server: api.New(api.Config{Pool: walled, Outbox: newOutbox(s.t, walled)}), ahead: new(atomic.Int64)}
	start := time.Now()
	p.server.SetClock(func() time.Time { return start.Add(time.Duration(p.ahead.Load())) })
	listener := httptest.NewServer(conforming(s.t, p.server))
	s.t.Cleanup(listener.Close)
	p.service = &service{t: s.t, pool: s.pool, url: listener.URL, token: s.token}
	return p
}

// pass lets time pass.
func (p process) pass(d time.Duration) { p.ahead.Add(int64(d)) }

func (p process) ask() answer { return p.do("POST", "/emails", simple) }

func idOf(token string) string { return strings.Split(token, "_")[1] }

func keysOf(t *testing.T, s *service) map[string]api.KeyDetail {
	t.Helper()
	list, err := api.Keys(context.Background(), s.pool, "acme")
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]api.KeyDetail{}
	for _, k := range list {
		byID[k.ID] = k
	}
	return byID
}

// What is changed about a key holds on every process within the time that it
// trusts what it knows, and not before it has run out.
func TestChangesOfKeysHoldEverywhere(t *testing.T) {
	t.Parallel()
	if api.KeyFreshness >= 5*time.Second {
		t.Fatalf("a revoked key works for %v", api.KeyFreshness)
	}
	for name, change := range map[string]struct {
		sql    string
		status int
		error  string
	}{
		"expired":      {"UPDATE outbox.api_keys SET expires_at = now()", 401, "invalid_api_key"},
		"other scopes": {"UPDATE outbox.api_keys SET scopes = '{read}'", 403, "restricted_api_key"},
		"key's domain": {"UPDATE outbox.api_keys SET from_domains = '{example.net}'", 403, "invalid_from_address"},
		"org's domain": {"UPDATE outbox.orgs SET from_domains = '{example.net}'", 403, "invalid_from_address"},
		"org deleted":  {"UPDATE outbox.orgs SET deleted_at = now()", 401, "invalid_api_key"},
		"revoked":      {"", 401, "invalid_api_key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, api.Org{}, api.Key{})
			processes := []process{s.newProcess(), s.newProcess()}
			for _, p := range processes {
				if got := p.ask(); got.status != http.StatusAccepted {
					t.Fatalf("answer %d %s", got.status, got.body)
				}
			}
			if change.sql != "" {
				s.exec(change.sql)
			} else if _, err := api.RevokeKey(context.Background(), s.pool, idOf(s.token)); err != nil {
				t.Fatal(err)
			}
			for i, p := range processes {
				if got := p.ask(); got.status != http.StatusAccepted {
					t.Errorf("process %d asks the database for each request: %d", i, got.status)
				}
				p.pass(api.KeyFreshness)
				if got := p.ask(); got.status != change.status || got.json(t)["name"] != change.error {
					t.Errorf("process %d answers %d %s, want %d %s", i, got.status, got.body, change.status, change.error)
				}
			}
		})
	}
}

// What a read says is as old as the beginning of the read, however long it took.
func TestSlowReadOfAKeyDoesNotLiveLonger(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	p := s.newProcess()
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE outbox.api_keys"); err != nil {
		t.Fatal(err)
	}
	answered := make(chan answer)
	go func() { answered <- p.ask() }()
	await(t, s.pool, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox.api_keys'::regclass`, 1)
	p.pass(api.KeyFreshness - time.Second)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; got.status != http.StatusAccepted {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	if _, err := api.RevokeKey(t.Context(), s.pool, idOf(s.token)); err != nil {
		t.Fatal(err)
	}
	p.pass(time.Second)
	if got := p.ask(); got.status != http.StatusUnauthorized {
		t.Errorf("answer %d: the key lives from the end of its read", got.status)
	}
}

// await waits until a query counts so many.
func await(t *testing.T, pool *pgxpool.Pool, sql string, want int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for n := 0; n < want; {
		if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%d are counted, want %d: %s", n, want, sql)
		}
	}
}

// With real clocks: no request that begins 5 seconds after the revocation passes.
func TestRevocationInRealTime(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	first, second := s.limited(api.Config{}), s.limited(api.Config{})
	for _, p := range []*service{first, second} {
		if got := p.do("GET", "/emails", ""); got.status != http.StatusOK {
			t.Fatalf("answer %d %s", got.status, got.body)
		}
	}
	if _, err := api.RevokeKey(context.Background(), s.pool, idOf(s.token)); err != nil {
		t.Fatal(err)
	}
	revoked := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for _, p := range []*service{first, second} {
		for {
			begun := time.Since(revoked)
			if p.do("GET", "/emails", "").status == http.StatusUnauthorized {
				break
			}
			if begun > 5*time.Second {
				t.Fatalf("a request that began %v after the revocation passed", begun)
			}
			<-tick.C
		}
	}
}

// When keys were last used is written together, not by requests, and never set
// back; what cannot be written is not lost, and no request suffers.
func TestLastUsed(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	unused, other := s.newKey("unused"), s.newKey("other")
	p := s.newProcess()
	ctx := context.Background()
	lastUsed := func(token string) *time.Time { return keysOf(t, s)[idOf(token)].LastUsedAt }

	p.ask()
	p.pass(time.Minute)
	p.ask()
	p.doAs("Bearer "+other, "GET", "/emails", "")
	p.doAs("Bearer "+unused[:len(unused)-1]+"-", "GET", "/emails", "")
	p.doAs("Bearer ob_"+idOf(unused)+"_"+strings.Repeat("a", 38), "GET", "/emails", "")
	if at := lastUsed(s.token); at != nil {
		t.Errorf("a request wrote %v", at)
	}
	s.exec("ALTER TABLE outbox.api_keys RENAME last_used_at TO hidden")
	if err := p.server.WriteUsage(ctx); err == nil {
		t.Error("the write did not fail")
	}
	if got := p.ask(); got.status != http.StatusAccepted {
		t.Errorf("answer %d while the time cannot be written", got.status)
	}
	s.exec("ALTER TABLE outbox.api_keys RENAME hidden TO last_used_at")
	if err := p.server.WriteUsage(ctx); err != nil {
		t.Error(err)
	}
	at := lastUsed(s.token)
	if at == nil || at.Before(time.Now()) || lastUsed(other) == nil || lastUsed(unused) != nil {
		t.Fatalf("last used %v, the other %v, the unused one %v", at, lastUsed(other), lastUsed(unused))
	}

	behind := s.newProcess()
	behind.pass(-time.Hour)
	behind.ask()
	if err := behind.server.WriteUsage(ctx); err != nil {
		t.Error(err)
	}
	if again := lastUsed(s.token); !again.Equal(*at) {
		t.Errorf("set back from %v to %v", at, again)
	}
	s.exec("UPDATE outbox.api_keys SET last_used_at = NULL")
	if err := p.server.WriteUsage(ctx); err != nil || lastUsed(s.token) != nil {
		t.Errorf("written again without a use: %v, %v", lastUsed(s.token), err)
	}
}

// At its end, a process writes what it has not written yet.
func TestLastUsedAtTheEnd(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	p := s.newProcess()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.server.Run(ctx)
	}()
	p.ask()
	cancel()
	<-ended
	if keysOf(t, s)[idOf(s.token)].LastUsedAt == nil {
		t.Error("the last use is not written")
	}
}

// A rotated key is followed by one with the same rights, and works for the
// overlap.
func TestRotateKey(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{
		Name: "shop", Scopes: []string{"read", "send"}, FromDomains: []string{"example.com"}, RequireIdempotencyKey: true,
		ExpiresAt: time.Now().Add(30 * 24 * time.Hour),
	})
	s.exec("UPDATE outbox.api_keys SET created_at = created_at - interval '60 days'")
	ctx := context.Background()
	rotated, err := api.RotateKey(ctx, s.pool, idOf(s.token), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	keys := keysOf(t, s)
	before, after := keys[idOf(s.token)], keys[rotated.ID]
	if before.State != api.KeyRotating || before.ReplacedBy == nil || *before.ReplacedBy != rotated.ID || !before.ExpiresAt.Equal(rotated.Until) {
		t.Errorf("the old key: %+v, rotated %+v", before, rotated)
	}
	if left := time.Until(rotated.Until); left > 24*time.Hour || left < 23*time.Hour {
		t.Errorf("the old key works for %v", left)
	}
	same := cmpopts.IgnoreFields(api.KeyDetail{}, "ID", "State", "CreatedAt", "ExpiresAt", "ReplacedBy")
	if diff := cmp.Diff(before, after, same); diff != "" || after.State != api.KeyActive {
		t.Errorf("state %s, rights (-old +new):\n%s", after.State, diff)
	}
	if lives := after.ExpiresAt.Sub(after.CreatedAt); lives < 89*24*time.Hour || lives > 91*24*time.Hour {
		t.Errorf("the new key lives %v, the old one was to live 90 days", lives)
	}
	for _, token := range []string{s.token, rotated.Key} {
		if got := s.doAs("Bearer "+token, "GET", "/emails", ""); got.status != http.StatusOK {
			t.Errorf("answer %d %s", got.status, got.body)
		}
	}
	s.exec("UPDATE outbox.api_keys SET expires_at = now() WHERE id = $1", idOf(s.token))
	if got := s.newProcess().do("GET", "/emails", ""); got.status != http.StatusUnauthorized {
		t.Errorf("after the overlap: answer %d", got.status)
	}
}

// Without an overlap the old key is void; a key that was never to expire is
// followed by another.
func TestRotateKeyAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	rotated, err := api.RotateKey(context.Background(), s.pool, s.token, 0) // the whole key does, too
	if err != nil {
		t.Fatal(err)
	}
	keys := keysOf(t, s)
	if old := keys[idOf(s.token)]; old.State != api.KeyRevoked || keys[rotated.ID].ExpiresAt != nil {
		t.Errorf("the old key: %+v, the new one %+v", old, keys[rotated.ID])
	}
	if got := s.do("GET", "/emails", ""); got.status != http.StatusUnauthorized {
		t.Errorf("answer %d to the old key", got.status)
	}
}

// Keys that are void or about to be are not rotated, and of several rotations at
// once one is.
func TestRotateKeyRefusals(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	ctx := context.Background()
	refused := func(want, id string, overlap time.Duration) {
		t.Helper()
		before := len(keysOf(t, s))
		if _, err := api.RotateKey(ctx, s.pool, id, overlap); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
		if n := len(keysOf(t, s)); n != before {
			t.Errorf("%d keys, were %d", n, before)
		}
	}
	revoked, expired, racing := idOf(s.newKey("a")), idOf(s.newKey("b")), idOf(s.newKey("c"))
	first, err := api.RevokeKey(ctx, s.pool, revoked)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := api.RevokeKey(ctx, s.pool, revoked); err != nil || !again.RevokedAt.Equal(first.RevokedAt) {
		t.Errorf("revoked again: %+v, %v; first %+v", again, err, first)
	}
	s.exec("UPDATE outbox.api_keys SET expires_at = now() WHERE id = $1", expired)
	refused("is revoked", revoked, time.Hour)
	refused("is expired", expired, time.Hour)
	refused("must not be negative", idOf(s.token), -time.Hour)
	refused("there is no such API key: nobody", "nobody", time.Hour)
	if _, err := api.RevokeKey(ctx, s.pool, "nobody"); !errors.Is(err, api.ErrNoKey) {
		t.Errorf("revoke: %v", err)
	}

	if n := rotateAtOnce(t, s, racing, 5); n != 1 {
		t.Errorf("%d of 5 rotations at once, want 1", n)
	}
	refused("has been rotated", racing, time.Hour)
}

// rotateAtOnce rotates a key several times, all of which meet at its row, and
// returns how many succeed.
func rotateAtOnce(t *testing.T, s *service, id string, times int) int32 {
	t.Helper()
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM outbox.api_keys WHERE id = $1 FOR UPDATE", id); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var rotated atomic.Int32
	for range times {
		wg.Go(func() {
			if _, err := api.RotateKey(t.Context(), s.pool, id, time.Hour); err == nil {
				rotated.Add(1)
			} else if !strings.Contains(err.Error(), "has been rotated") {
				t.Error(err)
			}
		})
	}
	const waiting = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
	await(t, s.pool, waiting, times)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	return rotated.Load()
}

// A key whose own time ends before the overlap does not get more of it.
func TestRotationDoesNotProlongAKey(t *testing.T) {
	t.Parallel()
	expires := time.Now().Add(time.Hour).Truncate(time.Second)
	s := newService(t, api.Org{}, api.Key{ExpiresAt: expires})
	rotated, err := api.RotateKey(t.Context(), s.pool, idOf(s.token), 24*time.Hour)
	if err != nil || !rotated.Until.Equal(expires) {
		t.Errorf("it works until %v, want %v: %v", rotated.Until, expires, err)
	}
}

// A key that is not known says whether it looks mistyped, whoever knows its id.
func TestMistypedKeyIsToldSo(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	own := "ob_" + strings.Repeat("x", 12) + "_" + strings.Repeat("a", 38) // set by the installation: no checksum
	if _, err := api.CreateKey(context.Background(), s.pool, api.Key{Org: "acme", Token: own}); err != nil {
		t.Fatal(err)
	}
	if got := s.doAs("Bearer "+own, "GET", "/emails", ""); got.status != http.StatusOK {
		t.Errorf("a key without a checksum: answer %d %s", got.status, got.body)
	}
	revoked := s.newKey("revoked")
	if _, err := api.RevokeKey(context.Background(), s.pool, idOf(revoked)); err != nil {
		t.Fatal(err)
	}
	for token, mistyped := range map[string]bool{
		s.token[:len(s.token)-1]:                                        true,
		s.token[:len(s.token)-1] + "!":                                  true,
		"ob_nobody_" + strings.Repeat("a", 38):                          true,
		"ob_" + strings.Repeat("x", 12) + "_" + strings.Repeat("b", 38): true,
		"ob_nobody_" + strings.Repeat("a", 32):                          false,
		"re_123":                                                        false,
		revoked:                                                         false,
	} {
		got := s.doAs("Bearer "+token, "GET", "/emails", "")
		if got.status != http.StatusUnauthorized || got.json(t)["name"] != "invalid_api_key" {
			t.Fatalf("%s: answer %d %s", token, got.status, got.body)
		}
		if says := strings.Contains(got.body, "mistyped"); says != mistyped {
			t.Errorf("%s: says so: %v, want %v", token, says, mistyped)
		}
	}
}

// A From domain is itself, however it is written, and none below or above it.
func TestFromDomains(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{FromDomains: []string{"Example.COM.", "müller.example", "xn--mller-kva.example", "localhost"}}, api.Key{})
	for from, allowed := range map[string]bool{
		"a@example.com": true, "A@EXAMPLE.com": true, "Shop <a@example.com.>": true,
		"a@müller.example": true, "a@MÜLLER.example": true, "a@xn--mller-kva.example": true, "a@localhost": true,
		"a@mail.example.com": false, "a@notexample.com": false, "a@com.example": false, "a@example.co": false,
		`"@example.com"@example.net`: false, "example.com <a@example.net>": false, "a@muller.example": false,
	} {
		got := s.do("POST", "/emails", strings.Replace(simple, `"Shop <shop@example.com>"`, fmt.Sprintf("%q", from), 1))
		if ok := got.status == http.StatusAccepted; ok != allowed || !allowed && got.json(t)["name"] != "invalid_from_address" {
			t.Errorf("%s: answer %d %s", from, got.status, got.body)
		}
	}
	var stored []string
	if err := s.pool.QueryRow(context.Background(), "SELECT from_domains FROM outbox.orgs").Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if want := []string{"example.com", "xn--mller-kva.example", "localhost"}; !slices.Equal(stored, want) {
		t.Errorf("stored %q, want %q", stored, want)
	}
	// A key cannot have more than its org.
	wider, err := api.CreateKey(context.Background(), s.pool, api.Key{Org: "acme", FromDomains: []string{"example.net", "example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.doAs("Bearer "+wider, "POST", "/emails", strings.Replace(simple, "shop@example.com", "shop@example.net", 1)); got.status != http.StatusForbidden {
		t.Errorf("answer %d to a domain of the key's that is not the org's", got.status)
	}
}

// What is no domain would never match, so it is refused.
func TestFromDomainsThatAreNone(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	for _, domain := range []string{"", "*.example.com", "@example.com", "a@example.com", "example", "exa mple.com", "<example.com>", "example.com, example.net", "https://example.com"} {
		_, orgErr := api.CreateOrg(context.Background(), s.pool, api.Org{Name: "org of " + domain, FromDomains: []string{domain}})
		_, keyErr := api.CreateKey(context.Background(), s.pool, api.Key{Org: "acme", FromDomains: []string{domain}})
		for _, err := range []error{orgErr, keyErr} {
			if err == nil || !strings.Contains(err.Error(), "is not a domain") {
				t.Errorf("%q: %v", domain, err)
			}
		}
	}
	_, err := api.CreateKey(context.Background(), s.pool, api.Key{Org: "acme", ExpiresAt: time.Now().Add(-time.Second)})
	if err == nil || !strings.Contains(err.Error(), "past") {
		t.Errorf("a key that has expired: %v", err)
	}
}
