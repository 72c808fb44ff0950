package app

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

func TestLimitsConfig(t *testing.T) {
	t.Parallel()
	load := func(setting string) (Config, error) {
		environ := []string{"DATABASE_URL=postgres://localhost/db", "OUTBOXD_PROVIDERS=smtp"}
		if setting != "" {
			environ = append(environ, setting)
		}
		return LoadConfig(environ)
	}
	cfg, err := load("")
	if err != nil || cfg.MaxBody != 10<<20 || cfg.MaxConnections != 10_000 || cfg.MaxQueued != 0 ||
		cfg.KeyRate != (Limit{Count: 1000, Per: time.Second}) || cfg.OrgRate != (Limit{}) {
		t.Errorf("config %+v, error %v", cfg, err)
	}
	for _, good := range []string{
		"OUTBOXD_MAX_BODY=40MB", "OUTBOXD_MAX_BODY=41943040", "OUTBOXD_MAX_BODY=64KB", "OUTBOXD_MAX_BODY=1mb",
		"OUTBOXD_MAX_CONNECTIONS=1", "OUTBOXD_RATE_LIMIT=off", "OUTBOXD_RATE_LIMIT=5000/h", "OUTBOXD_ORG_RATE_LIMIT=1000000/s",
		"OUTBOXD_MAX_QUEUED=1", "OUTBOXD_MAX_QUEUED=off",
		"OUTBOXD_CONTENT_RETENTION=7d", "OUTBOXD_CONTENT_RETENTION=1h", "OUTBOXD_CONTENT_RETENTION=1d12h", "OUTBOXD_CONTENT_RETENTION=off",
	} {
		if _, err := load(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"OUTBOXD_MAX_BODY=41943041", "OUTBOXD_MAX_BODY=41MB", "OUTBOXD_MAX_BODY=63KB", "OUTBOXD_MAX_BODY=0", "OUTBOXD_MAX_BODY=-1MB",
		"OUTBOXD_MAX_BODY=10GB", "OUTBOXD_MAX_BODY=ten", "OUTBOXD_MAX_BODY=off", "OUTBOXD_MAX_BODY=4194304MB",
		"OUTBOXD_MAX_CONNECTIONS=0", "OUTBOXD_RATE_LIMIT=0/s", "OUTBOXD_RATE_LIMIT=10", "OUTBOXD_RATE_LIMIT=10/d", "OUTBOXD_RATE_LIMIT=1000001/s",
		"OUTBOXD_ORG_RATE_LIMIT=none", "OUTBOXD_MAX_QUEUED=0", "OUTBOXD_MAX_QUEUED=-1", "OUTBOXD_MAX_QUEUED=many",
		"OUTBOXD_CONTENT_RETENTION=0", "OUTBOXD_CONTENT_RETENTION=59m", "OUTBOXD_CONTENT_RETENTION=30", "OUTBOXD_CONTENT_RETENTION=-1d",
		"OUTBOXD_CONTENT_RETENTION=for ever",
	} {
		name, _, _ := strings.Cut(bad, "=")
		if _, err := load(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", bad, err)
		}
	}
	cfg, _ = load("OUTBOXD_RATE_LIMIT=600/m")
	if rate := api.Rate(cfg.KeyRate); rate.String() != "600/m" {
		t.Errorf("rate %v", rate)
	}
}

// A retention is set, reaches the workers, and is shown as it was set.
func TestContentRetention(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": outbox.DefaultContentRetention, "off": outbox.KeepContent, "7d": 7 * 24 * time.Hour, "36h": 36 * time.Hour,
		"1h30m": 90 * time.Minute, "1h0m5s": time.Hour + 5*time.Second,
	} {
		environ := []string{"DATABASE_URL=postgres://localhost/db", "OUTBOXD_PROVIDERS=smtp", "SMTP_URL=smtp://localhost"}
		shown := "30d"
		if text != "" {
			environ, shown = append(environ, "OUTBOXD_CONTENT_RETENTION="+text), text
		}
		cfg, err := LoadConfig(environ)
		if err != nil {
			t.Fatal(err)
		}
		worker, err := cfg.WorkerConfig(slog.New(slog.DiscardHandler))
		if err != nil || worker.ContentRetention != want {
			t.Errorf("%q: workers keep content for %v, error %v; want %v", text, worker.ContentRetention, err, want)
		}
		if got := cfg.ContentRetention.String(); got != shown {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
}

// Beyond the limit connections wait, and come to their turn when one ends.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	l, err := listen("test", "127.0.0.1:0", http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	addr := l.socket.Addr().String()
	l.atMost(2)
	go func() { _ = l.serve() }()
	t.Cleanup(func() { _ = l.server.Close() })
	ask := func(conn net.Conn) chan error {
		answered := make(chan error, 1)
		go func() {
			_, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			answered <- err
		}()
		return answered
	}
	var conns []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		conns = append(conns, conn)
	}
	for _, conn := range conns[:2] {
		if err := <-ask(conn); err != nil {
			t.Fatal(err)
		}
	}
	third := ask(conns[2])
	select {
	case err := <-third:
		t.Fatalf("a third connection was served (%v)", err)
	default:
	}
	_ = conns[0].Close()
	if err := <-third; err != nil {
		t.Fatal(err)
	}
}
