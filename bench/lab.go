package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/internal/localpg"
	"github.com/outboxd/outboxd/migrations"
)

// lab is what all figures are measured with: a durable server, the programs as they
// are released, and a provider that answers at once.
type lab struct {
	scale
	progress io.Writer
	dir      string
	server   *localpg.Server
	template string
	made     int
	provider *provider
	// perSecond is the rate of submissions of the first figure, ours and pgbench's.
	perSecond, pgbenchPerSecond float64
	// memory is the most that a program has had resident, in MB.
	memory map[string]float64
}

func newLab(ctx context.Context, s scale, server localpg.Options, progress io.Writer) (_ *lab, err error) {
	b := &lab{scale: s, progress: progress, template: "bench_template", memory: map[string]float64{}}
	if b.dir, err = os.MkdirTemp("", "outboxd-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	fmt.Fprintln(progress, "==> build")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", b.dir+string(filepath.Separator), "./cmd/api", "./cmd/worker", "./cmd/outboxctl")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	if b.server, err = localpg.Start(ctx, server); err != nil {
		return nil, err
	}
	if b.provider, err = startProvider(); err != nil {
		return nil, err
	}
	if err := b.admin(ctx, "CREATE DATABASE "+b.template); err != nil {
		return nil, err
	}
	return b, migrations.Up(ctx, b.url(b.template), slog.New(slog.DiscardHandler))
}

func (b *lab) close() error {
	var err error
	if b.provider != nil {
		err = b.provider.close()
	}
	if b.server != nil {
		err = errors.Join(err, b.server.Stop())
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// url is the address of a database of the server.
func (b *lab) url(database string) string {
	u, err := url.Parse(b.server.URL())
	if err != nil {
		panic(err) // it is our own
	}
	u.Path = "/" + database
	return u.String()
}

func (b *lab) admin(ctx context.Context, sql string) error {
	return exec1(ctx, b.server.URL(), sql)
}

func exec1(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

func queryRow(ctx context.Context, url, sql string, into ...any) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return conn.QueryRow(ctx, sql).Scan(into...)
}

// anew returns a measurement that is taken on a new database, which then goes, so
// that autovacuum has nothing to do in it during the next one.
func anew[T any](ctx context.Context, b *lab, measure func(*database) (T, error)) func() (T, error) {
	return func() (figure T, err error) {
		db, err := b.newDatabase(ctx)
		if err != nil {
			return figure, err
		}
		defer func() {
			err = errors.Join(err, b.admin(context.WithoutCancel(ctx), "DROP DATABASE "+db.name+" WITH (FORCE)"))
		}()
		return measure(db)
	}
}

// database is one of its own, migrated and empty.
type database struct {
	lab       *lab
	name, url string
	// token is an API key that may send.
	token string
	// filled are how many emails fill has submitted, and the number of the last one.
	filled int
}

func (b *lab) newDatabase(ctx context.Context) (*database, error) {
	b.made++
	name := "bench_" + strconv.Itoa(b.made)
	if err := b.admin(ctx, "CREATE DATABASE "+name+" TEMPLATE "+b.template); err != nil {
		return nil, err
	}
	// What the copy has left to write is not to be paid by who is measured first.
	if err := exec1(ctx, b.superuserURL(name), "CHECKPOINT"); err != nil {
		return nil, err
	}
	d := &database{lab: b, name: name, url: b.url(name)}
	if _, err := d.outboxctl(ctx, "org", "create", "bench"); err != nil {
		return nil, err
	}
	out, err := d.outboxctl(ctx, "key", "create", "--org", "bench", "--scopes", "send")
	if err != nil {
		return nil, err
	}
	lines := strings.Fields(out)
	d.token = lines[len(lines)-1]
	return d, nil
}

func (b *lab) superuserURL(database string) string {
	u, err := url.Parse(b.server.SuperuserURL())
	if err != nil {
		panic(err)
	}
	u.Path = "/" + database
	return u.String()
}

func (d *database) outboxctl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(d.lab.dir, "outboxctl"), args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+d.url)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("outboxctl %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// program is a running one.
type program struct {
	name string
	lab  *lab
	cmd  *exec.Cmd
	addr string // of its first listener
}

// start starts a program of the release, or this one with arguments, and returns when
// it listens or says that it has started.
func (d *database) start(ctx context.Context, name, path string, args []string, env ...string) (*program, error) {
	p := &program{name: name, lab: d.lab, cmd: exec.CommandContext(ctx, path, args...)}
	p.cmd.Env = append(os.Environ(), append([]string{
		"DATABASE_URL=" + d.url, "OUTBOXD_ADDR=127.0.0.1:0", "OUTBOXD_OPS_ADDR=127.0.0.1:0", "OUTBOXD_LOG_FORMAT=json",
		"OUTBOXD_RATE_LIMIT=off", "OUTBOXD_CONCURRENCY=" + strconv.Itoa(deliveriesAtOnce),
		"OUTBOXD_PROVIDERS=resend", "RESEND_API_KEY=re_bench", "RESEND_BASE_URL=" + d.lab.provider.url,
	}, env...)...)
	output, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go listen(output, ready)
	select {
	case p.addr = <-ready:
		return p, nil
	case <-time.After(time.Minute):
		return nil, errors.Join(fmt.Errorf("%s did not start", name), p.stop())
	}
}

// listen reads a program's log to its end and tells once that it is ready.
func listen(output io.Reader, ready chan<- string) {
	for scanner := bufio.NewScanner(output); scanner.Scan(); {
		var line struct{ Msg, Name, Addr string }
		_ = json.Unmarshal(scanner.Bytes(), &line)
		if line.Msg == "listening" && line.Name == "api" || line.Msg == "worker started" {
			select {
			case ready <- line.Addr:
			default:
			}
		}
	}
}

func (d *database) startAPI(ctx context.Context) (*program, error) {
	return d.start(ctx, "api", filepath.Join(d.lab.dir, "api"), nil)
}

func (d *database) startWorker(ctx context.Context) (*program, error) {
	return d.start(ctx, "worker", filepath.Join(d.lab.dir, "worker"), nil)
}

// stop notes what memory the program has used, and ends it.
func (p *program) stop() error {
	p.lab.memory[p.name] = max(p.lab.memory[p.name], p.memoryMB("VmHWM:"))
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// kill ends it at once.
func (p *program) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	_ = p.cmd.Wait() // says that it was killed
	return nil
}

// memoryMB is what of its memory is resident, VmRSS:, or was at the most, VmHWM:; zero
// where there is no /proc.
func (p *program) memoryMB(which string) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == which {
			kB, _ := strconv.ParseFloat(fields[1], 64)
			return kB / 1024
		}
	}
	return 0
}

// machine describes where the figures come from.
func machine(ctx context.Context, b *lab) string {
	version := "?"
	_ = queryRow(ctx, b.server.URL(), "SHOW server_version", &version)
	return fmt.Sprintf("%d processors, %s/%s, %s, PostgreSQL %s with fsync on; load, programs and database on the same machine",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), version)
}
