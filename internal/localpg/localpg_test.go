package localpg

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// helperVar makes the test binary act as a program that owns a server.
const helperVar = "OUTBOXD_LOCALPG_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperVar) != "" {
		ownServer()
	}
	os.Exit(m.Run())
}

// ownServer starts a server, tells where it is, and waits to be killed.
func ownServer() {
	s, err := Start(context.Background(), Options{Ephemeral: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.URL())
	fmt.Println(s.cluster.folder.path)
	select {}
}

func TestEphemeralServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := startServer(t, Options{Ephemeral: true})

	conn := connect(t, s.SuperuserURL()) // only such a one sees all settings
	for setting, want := range map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"max_connections":         "200",
		"fsync":                   "off",
		"synchronous_commit":      "off",
		"full_page_writes":        "off",
		"server_encoding":         "UTF8",
	} {
		var got string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", setting).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}

	dir := s.cluster.folder.path
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if exists(dir) {
		t.Errorf("the temporary folder %s is still there", dir)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}

func TestServerAsksForThePassword(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{Ephemeral: true})
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(superuser, "guess")
	_, err = pgx.Connect(t.Context(), u.String())
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pgErr.Code != "28P01" {
		t.Errorf("with a wrong password: %v, want SQLSTATE 28P01", err)
	}
	info, err := os.Stat(s.cluster.folder.file(passwordName))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the password's file has mode %o, want 600", info.Mode().Perm())
	}
}

func TestPersistentDataSurvivesARestart(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	first := startServer(t, Options{DataDir: dir})
	execSQL(t, first.URL(), "CREATE TABLE kept AS SELECT 42 AS answer")
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}

	second := startServer(t, Options{DataDir: dir})
	var answer int
	if err := connect(t, second.URL()).QueryRow(t.Context(), "SELECT answer FROM kept").Scan(&answer); err != nil {
		t.Fatal(err)
	}
	if answer != 42 {
		t.Errorf("answer = %d, want 42", answer)
	}
	var fsync string
	if err := connect(t, second.URL()).QueryRow(t.Context(), "SHOW fsync").Scan(&fsync); err != nil {
		t.Fatal(err)
	}
	if fsync != "on" {
		t.Errorf("fsync = %s, want on: this data is to be kept", fsync)
	}

	_, err := Start(t.Context(), Options{DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), "in use by another instance") {
		t.Errorf("starting on data in use: %v", err)
	}
}

func TestInterruptedInitdbIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	for _, name := range []string{lockName, passwordName, unfinished + "/PG_VERSION"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	execSQL(t, startServer(t, Options{DataDir: dir, Ephemeral: true}).URL(), "SELECT 1")
}

func TestDataOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	if err := os.MkdirAll(filepath.Join(dir, clusterName), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{lockName: "", clusterName + "/PG_VERSION": "9\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Start(t.Context(), Options{DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), "was made by PostgreSQL 9,") {
		t.Errorf("got %v", err)
	}
}

func TestForeignFolderIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("got %v", err)
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Start(t.Context(), Options{Ephemeral: true, Port: l.Addr().(*net.TCPAddr).Port})
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got %v", err)
	}
}

func TestCanceledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := reachableDir(t)
	if _, err := Start(ctx, Options{DataDir: dir}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	// The folder is free at once.
	startServer(t, Options{DataDir: dir, Ephemeral: true})
}

func TestLostServerIsReported(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{Ephemeral: true})
	pid, err := s.cluster.folder.postmaster()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("Done was not closed")
	}
	if err := s.Stop(); err == nil {
		t.Error("Stop: no error after the server was killed")
	}
}

func TestKilledServerRecovers(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	first := startServer(t, Options{DataDir: dir})
	execSQL(t, first.URL(), "CREATE TABLE kept AS SELECT 42 AS answer")
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Errorf("Stop after Kill: %v", err)
	}
	second := startServer(t, Options{DataDir: dir})
	execSQL(t, second.URL(), "SELECT answer FROM kept")
	if err := second.Stop(); err != nil {
		t.Error(err)
	}
	// All that it printed: on a slow machine its end tells of those who came too early.
	if !strings.Contains(second.log.String(), "was not properly shut down") {
		t.Error("the server did not crash")
	}
}

// TestServerDiesWithItsOwner is the promise that no server is left behind: the
// owner gets SIGKILL, which no program can handle.
func TestServerDiesWithItsOwner(t *testing.T) {
	t.Parallel()
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), helperVar+"=1")
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	serverURL := lines.Text()
	lines.Scan()
	dir := lines.Text()
	execSQL(t, serverURL, "SELECT 1")

	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // says that it was killed
	eventually(t, "the temporary folder is removed", func() bool { return !exists(dir) })
	if _, err := pgx.Connect(t.Context(), serverURL); err == nil {
		t.Error("the server still answers")
	}
}

func TestFolderOutOfReach(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root changes users")
	}
	closed := filepath.Join(reachableDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{DataDir: filepath.Join(closed, "data")})
	if err == nil || !strings.Contains(err.Error(), "may not enter "+closed) {
		t.Errorf("got %v", err)
	}
}

// reachableDir is a temporary folder that the server's user can get to;
// t.TempDir is closed to others when root runs the tests.
func reachableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "outboxd-localpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
	return dir
}

// loggedServer is a server and all that it prints, to be read when it has stopped.
type loggedServer struct {
	*Server
	log *bytes.Buffer
}

func startServer(t *testing.T, opts Options) loggedServer {
	t.Helper()
	log := new(bytes.Buffer)
	opts.Log = log
	s, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Stop() // a test that cares has called it itself
		if t.Failed() {
			t.Logf("PostgreSQL's log:\n%s", log.String())
		}
	})
	return loggedServer{s, log}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execSQL(t *testing.T, url, sql string) {
	t.Helper()
	if _, err := connect(t, url).Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

// Nobody works as the superuser: also data that an earlier version made as one
// becomes the ordinary role's.
func TestOrdinaryRoleOwnsTheData(t *testing.T) {
	t.Parallel()
	dir := reachableDir(t)
	first := startServer(t, Options{DataDir: dir})
	execSQL(t, first.SuperuserURL(), `CREATE SCHEMA app;
		CREATE TYPE app.mood AS ENUM ('good');
		CREATE TABLE app.orders (id serial PRIMARY KEY, other integer GENERATED ALWAYS AS IDENTITY, mood app.mood);
		CREATE SEQUENCE app.numbers;
		CREATE VIEW app.seen AS SELECT id FROM app.orders;
		CREATE FUNCTION app.one() RETURNS integer LANGUAGE sql AS 'SELECT 1';
		CREATE TABLE public.loose (id integer)`)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	second := startServer(t, Options{DataDir: dir})
	execSQL(t, second.URL(), `INSERT INTO app.orders DEFAULT VALUES;
		ALTER TABLE app.orders ADD COLUMN more text;
		ALTER TYPE app.mood ADD VALUE 'bad';
		DROP VIEW app.seen;
		DROP FUNCTION app.one();
		DROP SEQUENCE app.numbers;
		DROP TABLE public.loose;
		DROP SCHEMA app CASCADE`)
	execSQL(t, second.URL(), "CREATE DATABASE another")
	var above bool
	const query = "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
	if err := connect(t, second.URL()).QueryRow(t.Context(), query).Scan(&above); err != nil || above {
		t.Errorf("above row-level security: %v, error %v", above, err)
	}
}
