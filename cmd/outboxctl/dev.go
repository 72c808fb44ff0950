package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/cmd/internal/app"
	"github.com/outboxd/outboxd/cmd/internal/inbox"
	"github.com/outboxd/outboxd/internal/localpg"
	"github.com/outboxd/outboxd/migrations"
)

type devCmd struct {
	Fresh bool   `help:"Start anew: remove all data of earlier runs."`
	Data  string `help:"Where the data is kept between runs." placeholder:"DIR"`

	Addr          string `env:"OUTBOXD_ADDR" default:"127.0.0.1:8080" help:"Address of the API."`
	OpsAddr       string `env:"OUTBOXD_OPS_ADDR" default:"127.0.0.1:9090" help:"Address of the console, of River UI and of the API's health checks."`
	WorkerOpsAddr string `env:"OUTBOXD_WORKER_OPS_ADDR" default:"127.0.0.1:9091" help:"Address of the worker's health checks."`
	InboxAddr     string `env:"OUTBOXD_INBOX_ADDR" default:"127.0.0.1:8025" help:"Address of the inbox."`
	InboxSMTPAddr string `env:"OUTBOXD_INBOX_SMTP_ADDR" default:"127.0.0.1:1025" help:"Address of the inbox's SMTP server."`
}

// dev is everything that runs.
type dev struct {
	devCmd
	database string
	apiKey   string
	password string
	children *children
}

// Run starts one part after the other, each when what it needs is there, and
// stops them in the opposite order.
func (c devCmd) Run(e environment) (err error) {
	runtime.LockOSThread() // see childAttributes
	d := &dev{devCmd: c, children: newChildren()}
	if d.Data, err = c.dataDir(); err != nil {
		return err
	}
	if c.Fresh {
		if err := removeData(d.Data, e.databaseURL); err != nil {
			return err
		}
	}
	stopDatabase, err := d.startDatabase(e.ctx, e.databaseURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopDatabase()) }()
	if err := d.prepare(e.ctx); err != nil {
		return err
	}
	stopInbox, err := d.startInbox()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopInbox()) }()
	defer func() { err = errors.Join(err, d.children.stop()) }()
	if err := d.startPrograms(e.ctx); err != nil {
		return err
	}
	if err := welcome.Execute(e.out, d.view()); err != nil {
		return err
	}
	select {
	case <-e.ctx.Done():
		return nil
	case err := <-d.children.ended:
		return err
	}
}

// dataDir is not inside the checkout: as root, Postgres runs as another user,
// who may not be able to reach it there.
func (c devCmd) dataDir() (string, error) {
	switch {
	case c.Data != "":
		return filepath.Abs(c.Data)
	case os.Getuid() == 0:
		return "/var/lib/outboxd-dev", nil
	}
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "outboxd-dev"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place for the data, use --data: %w", err)
	}
	return filepath.Join(home, ".local", "share", "outboxd-dev"), nil
}

// devFolders are what the data folder holds.
var devFolders = []string{"postgres", "inbox", "secrets"}

func removeData(dir, databaseURL string) error {
	if databaseURL != "" {
		return errors.New("--fresh removes the data of outboxd's own Postgres, but DATABASE_URL is set: unset it, or empty that database yourself")
	}
	for _, folder := range devFolders {
		if err := os.RemoveAll(filepath.Join(dir, folder)); err != nil {
			return fmt.Errorf("remove old data: %w", err)
		}
	}
	return nil
}

func (d *dev) startDatabase(ctx context.Context, url string) (stop func() error, err error) {
	if url != "" {
		d.database = url
		return func() error { return nil }, nil
	}
	if err := os.MkdirAll(d.Data, 0o755); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	server, err := localpg.Start(ctx, localpg.Options{DataDir: filepath.Join(d.Data, "postgres")})
	if err != nil {
		return nil, err
	}
	d.database = server.URL()
	return server.Stop, nil
}

// prepare migrates the database and makes the org, the key and the password.
func (d *dev) prepare(ctx context.Context) (err error) {
	if err := migrations.Up(ctx, d.database, app.WarnLogger()); err != nil {
		return err
	}
	if d.password, err = d.secret("admin-password", os.Getenv("OUTBOXD_ADMIN_PASSWORD"), rand.Text()[:16]); err != nil {
		return err
	}
	if d.apiKey, err = d.secret("api-key", os.Getenv(devKeyVariable), "ob_dev_"+rand.Text()+rand.Text()); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, d.database)
	if err != nil {
		return err
	}
	defer pool.Close()
	return bootstrap(ctx, pool, "dev", d.apiKey)
}

// secret returns what the environment sets, or what an earlier run made, or
// makes it.
func (d *dev) secret(name, set, fresh string) (string, error) {
	if set != "" {
		return set, nil
	}
	path := filepath.Join(d.Data, "secrets", name)
	stored, err := os.ReadFile(path)
	if err == nil {
		return string(stored), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return fresh, os.WriteFile(path, []byte(fresh), 0o600)
}

func (d *dev) startInbox() (stop func() error, err error) {
	box, err := inbox.New(inbox.Options{Dir: filepath.Join(d.Data, "inbox")})
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	mail, err := net.Listen("tcp", d.InboxSMTPAddr)
	if err != nil {
		return nil, fmt.Errorf("inbox, set OUTBOXD_INBOX_SMTP_ADDR to another address: %w", err)
	}
	pages, err := net.Listen("tcp", d.InboxAddr)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("inbox, set OUTBOXD_INBOX_ADDR to another address: %w", err), mail.Close())
	}
	d.InboxSMTPAddr, d.InboxAddr = mail.Addr().String(), pages.Addr().String()
	server := &http.Server{Handler: box.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { d.children.report("inbox", box.ServeSMTP(mail)) }()
	go func() { d.children.report("inbox", server.Serve(pages)) }()
	return func() error { return errors.Join(server.Close(), box.Close()) }, nil
}

// privateWebhooksVariable lets webhooks lead to this machine.
const privateWebhooksVariable = "OUTBOXD_WEBHOOK_ALLOW_PRIVATE"

// startPrograms starts api and worker as processes of their own, as in
// production, and waits until both are ready.
func (d *dev) startPrograms(ctx context.Context) error {
	common := []string{
		"DATABASE_URL=" + d.database,
		"OUTBOXD_ADMIN_PASSWORD=" + d.password,
		"OUTBOXD_ADDR=" + d.Addr,
	}
	if os.Getenv("OUTBOXD_PUBLIC_URL") == "" {
		common = append(common, "OUTBOXD_PUBLIC_URL=http://"+reachable(d.Addr))
	}
	if os.Getenv("OUTBOXD_PROVIDERS") == "" {
		common = append(common, "OUTBOXD_PROVIDERS=smtp", "SMTP_URL=smtp://"+d.InboxSMTPAddr+"?tls=none")
	}
	if os.Getenv(privateWebhooksVariable) == "" {
		common = append(common, privateWebhooksVariable+"=true") // the application is on this machine
	}
	for _, program := range []struct{ name, ops string }{{"api", d.OpsAddr}, {"worker", d.WorkerOpsAddr}} {
		if err := d.children.start(program.name, append(common, "OUTBOXD_OPS_ADDR="+program.ops)); err != nil {
			return err
		}
	}
	for _, addr := range []string{d.OpsAddr, d.WorkerOpsAddr} {
		if err := d.awaitReady(ctx, "http://"+reachable(addr)+"/readyz"); err != nil {
			return err
		}
	}
	return nil
}

func (d *dev) awaitReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := checkHealth(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-d.children.ended:
			return err
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", url, err)
		}
	}
}

// reachable turns :8080 into an address that a client can use.
func reachable(addr string) string {
	if strings.HasPrefix(addr, ":") {
		return "127.0.0.1" + addr
	}
	return addr
}

type devView struct{ API, APIKey, Inbox, Ops, User, Password, Database, Data, Example string }

func (d *dev) view() devView {
	user := os.Getenv("OUTBOXD_ADMIN_USER")
	if user == "" {
		user = "admin"
	}
	return devView{
		API: "http://" + reachable(d.Addr), APIKey: d.apiKey, Inbox: "http://" + reachable(d.InboxAddr),
		Ops: "http://" + reachable(d.OpsAddr), User: user, Password: d.password,
		Database: d.database, Data: d.Data, Example: strings.ToLower(rand.Text()[:6]),
	}
}

var welcome = template.Must(template.New("welcome").Parse(`
outboxd is ready. Ctrl-C stops it; the data stays in {{.Data}}.

  API       {{.API}}
  API key   {{.APIKey}}
  Inbox     {{.Inbox}}/
  Console   {{.Ops}}/console/   user {{.User}}, password {{.Password}}
  River UI  {{.Ops}}/riverui/   the same
  Postgres  {{.Database}}

Send a mail (twice: the key makes it one mail all the same), then look at the inbox:

  curl {{.API}}/emails \
    -H 'Authorization: Bearer {{.APIKey}}' \
    -H 'Idempotency-Key: hello-{{.Example}}' \
    -H 'Content-Type: application/json' \
    -d '{"from":"Shop <shop@example.com>","to":"jane@example.org","subject":"Hello","text":"It works."}'

`))
