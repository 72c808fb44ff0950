package api_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxd/outboxd/api"
)

// In any stretch of time, no more comes through than the rate lets gather and
// come back; what is refused comes through after the wait that it was told.
func TestBuckets(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := api.Rate{Count: rapid.IntRange(1, 50).Draw(t, "count"), Per: rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(t, "per")}
		b := api.NewBuckets(rate)
		now, taken := time.Unix(1000, 0), []time.Time{}
		for range rapid.IntRange(1, 200).Draw(t, "requests") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(rate.Per/10)).Draw(t, "pause")))
			wait, ok := b.Take("a", now)
			if !ok {
				if _, early := b.Take("a", now.Add(wait-1)); early {
					t.Fatal("let through before the wait is over")
				}
				now = now.Add(wait)
				if _, ok := b.Take("a", now); !ok {
					t.Fatal("refused after the wait")
				}
			}
			taken = append(taken, now)
		}
		for i := range taken {
			for j := i; j < len(taken); j++ {
				// A token takes whole nanoseconds to come back.
				one, rounding := rate.Per/time.Duration(rate.Count), time.Duration(rate.Count)
				if n := j - i + 1; time.Duration(n-rate.Count)*one > taken[j].Sub(taken[i])+rounding {
					t.Fatalf("%d came through in %v at %v", n, taken[j].Sub(taken[i]), rate)
				}
			}
		}
	})
}

// Whoever comes with an earlier time than one before, on a busy machine, is not taken
// for one too many.
func TestBucketsMeetAnEarlierTime(t *testing.T) {
	t.Parallel()
	b := api.NewBuckets(api.Rate{Count: 10, Per: time.Second})
	now := time.Unix(1000, 0)
	for i, at := range []time.Time{now.Add(2 * time.Second), now, now.Add(time.Second)} {
		if wait, ok := b.Take("a", at); !ok {
			t.Errorf("request %d of 10 in a second is refused, for %v", i+1, wait)
		}
	}
}

// Buckets of those who have been away are not kept.
func TestBucketsAreForgotten(t *testing.T) {
	t.Parallel()
	b, now := api.NewBuckets(api.Rate{Count: 5, Per: time.Second}), time.Unix(1000, 0)
	for i := range 100_000 {
		now = now.Add(time.Millisecond)
		b.Take(strconv.Itoa(i), now)
		if b.Held() > 2002 {
			t.Fatalf("%d buckets after %d names, of which 200 are in use", b.Held(), i)
		}
	}
}

// limited is the API on the same database with limits.
func (s *service) limited(cfg api.Config) *service {
	s.t.Helper()
	cfg.Pool, cfg.Outbox = s.pool, newOutbox(s.t, s.pool)
	server := httptest.NewServer(conforming(s.t, api.New(cfg)))
	s.t.Cleanup(server.Close)
	return &service{t: s.t, pool: s.pool, url: server.URL, token: s.token}
}

func (s *service) newKey(name string) string {
	s.t.Helper()
	token, err := api.CreateKey(context.Background(), s.pool, api.Key{Org: "acme", Name: name})
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

func statuses(answers ...answer) (list []int) {
	for _, a := range answers {
		list = append(list, a.status)
	}
	return list
}

// Every request of a key counts, whatever becomes of it; a refusal says when to
// come back and stores nothing.
func TestRateLimitOfKey(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	other := s.newKey("other")
	s = s.limited(api.Config{KeyRate: api.Rate{Count: 4, Per: time.Hour}})
	first := s.do("POST", "/emails", simple, "Idempotency-Key", "k")
	if h := first.header; h.Get("ratelimit-limit") != "4" || h.Get("ratelimit-remaining") != "3" || h.Get("ratelimit-reset") != "900" {
		t.Errorf("headers %v, want 3 of 4 left and a quarter of an hour", h)
	}
	replay := s.do("POST", "/emails", simple, "Idempotency-Key", "k")
	read, bad := s.do("GET", "/emails", ""), s.do("POST", "/emails", "{")
	if got := statuses(first, replay, read, bad); !slices.Equal(got, []int{202, 202, 200, 400}) {
		t.Fatalf("answers %v", got)
	}
	before := s.emails()
	refused := s.do("POST", "/emails", simple, "Idempotency-Key", "other")
	if refused.status != http.StatusTooManyRequests || refused.json(t)["name"] != "rate_limit_exceeded" {
		t.Fatalf("answer %d %s, want 429", refused.status, refused.body)
	}
	if wait, _ := strconv.Atoi(refused.header.Get("Retry-After")); wait < 890 || wait > 900 {
		t.Errorf("Retry-After %q, want about a quarter of an hour", refused.header.Get("Retry-After"))
	}
	if left := refused.header.Get("ratelimit-remaining"); left != "0" {
		t.Errorf("%s requests are left", left)
	}
	if s.emails() != before {
		t.Error("a refusal stored something")
	}
	s.token = other
	if got := s.do("POST", "/emails", simple); got.status != http.StatusAccepted {
		t.Errorf("another key: answer %d %s", got.status, got.body)
	}
}

// Nothing is read of a body that is refused.
func TestRateLimitReadsNoBody(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	handler := api.New(api.Config{Pool: s.pool, Outbox: newOutbox(t, s.pool), KeyRate: api.Rate{Count: 1, Per: time.Hour}})
	for _, want := range []int{http.StatusAccepted, http.StatusTooManyRequests} {
		body := &countingReader{Reader: strings.NewReader(simple)}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/emails", body)
		req.Header.Set("Authorization", "Bearer "+s.token)
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, req)
		if rec.Code != want || (body.bytes > 0) != (want == http.StatusAccepted) {
			t.Errorf("answer %d after %d bytes, want %d", rec.Code, body.bytes, want)
		}
	}
}

type countingReader struct {
	io.Reader
	bytes int
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.bytes += n
	return n, err
}

// The keys of an org share its limit.
func TestRateLimitOfOrg(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	other := s.newKey("other")
	s = s.limited(api.Config{KeyRate: api.Rate{Count: 100, Per: time.Hour}, OrgRate: api.Rate{Count: 2, Per: time.Hour}})
	first := s.do("POST", "/emails", simple)
	if first.header.Get("ratelimit-limit") != "2" {
		t.Errorf("headers %v do not show the sharper limit", first.header)
	}
	s.token = other
	second, third := s.do("POST", "/emails", simple), s.do("POST", "/emails", simple)
	if got := statuses(first, second, third); !slices.Equal(got, []int{202, 202, 429}) {
		t.Errorf("answers %v", got)
	}
}

// A batch counts for all its emails. It comes through if one could, and is paid
// for by what comes later.
func TestRateLimitOfBatch(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{}).limited(api.Config{KeyRate: api.Rate{Count: 2, Per: time.Hour}})
	batch := s.do("POST", "/emails/batch", batchOf(numbered(0), numbered(1), numbered(2), numbered(3)))
	after := s.do("GET", "/emails", "")
	if got := statuses(batch, after); !slices.Equal(got, []int{202, 429}) {
		t.Fatalf("answers %v: %s", got, batch.body)
	}
	// Four were taken of two, so three have to come back, at two in an hour.
	if wait, _ := strconv.Atoi(after.header.Get("Retry-After")); wait < 5300 || wait > 5400 {
		t.Errorf("Retry-After %d, want an hour and a half", wait)
	}
	if batch.header.Get("ratelimit-remaining") != "0" {
		t.Errorf("headers %v", batch.header)
	}
}

// Guessed keys cost the database a bounded number of looks, and nobody else
// anything: a key that is known works on, also when it has to be read again.
func TestGuessedKeys(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	p := s.newProcess() // its clock stands still
	get := func(token string) *httptest.ResponseRecorder {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/emails", http.NoBody)
		req.Header.Set("Authorization", "Bearer "+token)
		rec := httptest.NewRecorder()
		p.server.ServeHTTP(rec, req)
		return rec
	}
	if got := get(s.token); got.Code != http.StatusOK {
		t.Fatalf("answer %d %s", got.Code, got.Body)
	}
	p.ahead.Store(int64(2 * api.KeyFreshness))
	for i := range api.GuessRate.Count + 10 {
		got := get(fmt.Sprintf("ob_guess%d_%032d", i, i))
		want := http.StatusUnauthorized
		if i >= api.GuessRate.Count {
			want = http.StatusTooManyRequests
		}
		if got.Code != want || (got.Header().Get("Retry-After") == "1") != (want == http.StatusTooManyRequests) {
			t.Fatalf("guess %d: answer %d %s, want %d", i, got.Code, got.Body, want)
		}
	}
	if got := get(s.token); got.Code != http.StatusOK {
		t.Errorf("a known key: answer %d %s", got.Code, got.Body)
	}
}
