// The programs in examples, exactly as they are, against a real worker and a
// provider that records what it accepts.

package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/internal/pgproxy"
	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/providers/providertest"
)

// insertsOrder is a text by which the proxy knows the transaction of an order.
const insertsOrder = "INSERT INTO orders"

// shop is an application with a database that it shares with outboxd, a worker
// and a provider. Its programs reach the database through a proxy.
type shop struct {
	*installation
	org      string
	proxy    *pgproxy.Proxy
	provider *providertest.HTTP
}

func openShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{installation: install(t), provider: providertest.NewHTTP(t, providertest.Resend)}
	s.proxy = pgproxy.New(t, s.databaseURL)
	tables, err := os.ReadFile(filepath.Join("..", "examples", "orders.sql"))
	if err != nil {
		t.Fatal(err)
	}
	s.exec(string(tables))
	s.org = s.texts("SELECT id::text FROM outbox.orgs")[0]
	s.start("worker", resendEnv(s.provider)...).ready()
	return s
}

// example places an order with its receipt in one transaction. Each is a
// program of a few lines, and takes DATABASE_URL from its environment.
type example func(org, order, total string) *exec.Cmd

func goExample(*testing.T) example {
	return func(org, order, total string) *exec.Cmd {
		return exec.Command(filepath.Join(binDir, "go-order"), org, order, total)
	}
}

func nodeExample(t *testing.T) example {
	t.Helper()
	script := filepath.Join(npmInstall(t, filepath.Join("..", "examples", "node-order")), "order.mjs")
	return func(org, order, total string) *exec.Cmd {
		return exec.Command("node", script, org, order, total)
	}
}

func psqlExample(t *testing.T) example {
	t.Helper()
	need(t, "psql")
	return func(org, order, total string) *exec.Cmd {
		return psql("order.sql", "org="+org, "order="+order, "total="+total)
	}
}

// psql runs a file of the example for it. The shell takes the URL from the
// environment, as it does where somebody types it.
func psql(file string, variables ...string) *exec.Cmd {
	args := []string{"-c", `exec psql "$DATABASE_URL" "$@"`, "psql", "--no-psqlrc"}
	for _, v := range variables {
		args = append(args, "-v", v)
	}
	return exec.Command("sh", append(args, "-f", filepath.Join("..", "examples", "psql", file))...)
}

// running is a program whose output is read when it has ended.
type running struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

// run starts a program.
func run(t *testing.T, cmd *exec.Cmd, env ...string) *running {
	t.Helper()
	r := &running{t: t, cmd: cmd, done: make(chan error, 1)}
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &r.out, &r.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.done <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // where the test did not await it
	return r
}

var uuidPattern = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// id waits until the program has succeeded and returns the id that it printed.
func (r *running) id() string {
	r.t.Helper()
	err := await(r.t, "the end of the example", r.done)
	id := uuidPattern.FindString(r.out.String())
	if err != nil || id == "" {
		r.t.Fatalf("%v: %v, it printed:\n%s", r.cmd.Args, err, &r.out)
	}
	return id
}

// refused waits until the program has failed for that reason.
func (r *running) refused(reason string) {
	r.t.Helper()
	if err := await(r.t, "the end of the example", r.done); err == nil || !strings.Contains(r.out.String(), reason) {
		r.t.Errorf("%v: %v, want a failure that says %q, it printed:\n%s", r.cmd.Args, err, reason, &r.out)
	}
}

// place starts a program that places an order.
func (s *shop) place(e example, order, total string) *running {
	s.t.Helper()
	return run(s.t, e(s.org, order, total), "DATABASE_URL="+s.proxy.URL(), "PGAPPNAME=shop")
}

// wantOrders checks what is stored in all.
func (s *shop) wantOrders(n int) {
	s.t.Helper()
	if orders := s.count("SELECT count(*) FROM orders"); orders != n {
		s.t.Errorf("%d orders, want %d", orders, n)
	}
	s.wantRows(n, n)
}

// wantMails waits until every email has ended and checks that the provider has
// accepted one for each of the orders, and nothing else.
func (s *shop) wantMails(orders ...string) {
	s.t.Helper()
	s.awaitEnded()
	want := make([]string, len(orders))
	for i, order := range orders {
		want[i] = "Your order " + order
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, s.accepted()); diff != "" {
		s.t.Errorf("mails at the provider (-want +got):\n%s", diff)
	}
}

// accepted returns the subjects of what the provider accepted, in order.
func (s *shop) accepted() []string {
	s.t.Helper()
	subjects := []string{}
	for _, a := range s.provider.Accepted() {
		var mail struct{ Subject string }
		if err := json.Unmarshal(a.Body, &mail); err != nil {
			s.t.Fatal(err)
		}
		subjects = append(subjects, mail.Subject)
	}
	slices.Sort(subjects)
	return subjects
}

// An order and its receipt commit together or not at all, and the mail is on
// its way with the commit: from Go, from Node, from psql.
// OUTBOXD_TEST_ORDERS says how many deliveries are timed.
func TestExamplesOfOrders(t *testing.T) {
	t.Parallel()
	for name, find := range map[string]func(*testing.T) example{
		"go-order": goExample, "node-order": nodeExample, "psql": psqlExample,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := find(t)
			s := openShop(t)
			s.checkCommits(e, repeats(t, "OUTBOXD_TEST_ORDERS", 1))
			s.checkRollback(e)
			s.checkAgain(e)
		})
	}
}

// checkCommits places orders. Until its COMMIT nothing of an order is there for
// anybody else; from then on all of it is, without anybody's doing.
func (s *shop) checkCommits(e example, n int) {
	s.t.Helper()
	var took []time.Duration
	var orders []string
	for i := range n {
		orders = append(orders, fmt.Sprint("10", i))
		release := make(chan struct{})
		rule := s.proxy.On(pgproxy.Commit, pgproxy.HoldBefore(release), pgproxy.Saw(insertsOrder))
		placed := s.place(e, orders[i], "19.90")
		await(s.t, "the COMMIT", rule.Fired())
		s.wantOrders(i)
		released := time.Now()
		close(release)
		placed.id()
		s.wantMails(orders...)
		s.wantOrders(i + 1)
		took = append(took, s.provider.Accepted()[i].At.Sub(released))
	}
	slices.Sort(took)
	s.t.Logf("%d orders: from the COMMIT to the provider's acceptance p50 %v, max %v", n, took[n/2], took[n-1])
}

// checkRollback has the table refuse an order whose receipt is enqueued already.
func (s *shop) checkRollback(e example) {
	s.t.Helper()
	before := s.count("SELECT count(*) FROM orders")
	s.place(e, "200", "0").refused("orders_total_check")
	s.wantOrders(before)
	s.place(e, "200", "5.00").id() // the key is free
	s.wantOrders(before + 1)
}

// checkAgain places an order twice, as an application does that got no answer,
// and then another one under the same number.
func (s *shop) checkAgain(e example) {
	s.t.Helper()
	before := s.count("SELECT count(*) FROM orders")
	first := s.place(e, "300", "7.00").id()
	if again := s.place(e, "300", "7.00").id(); again != first {
		s.t.Errorf("placed again the order has email %s, want %s", again, first)
	}
	s.place(e, "300", "8.00").refused("used for another request")
	s.wantOrders(before + 1)
	s.awaitEnded()
	if n := len(s.provider.Accepted()); n != before+1 {
		s.t.Errorf("the provider accepted %d mails, want %d", n, before+1)
	}
}

// The role of the example may place orders and submit emails. Of what outboxd
// stores it sees nothing.
func TestExampleOfARole(t *testing.T) {
	t.Parallel()
	e := psqlExample(t)
	s := openShop(t)
	// Roles belong to the whole server, which tests share.
	role := "shop_" + strings.ReplaceAll(s.org, "-", "")
	as, err := url.Parse(s.databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	above, err := url.Parse(testdb.Superuser(t).Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	above.Path = as.Path
	admin := shop{installation: connect(t, above.String())}
	created := run(t, psql("role.sql", "role="+role, "password=secret"), "DATABASE_URL="+admin.databaseURL)
	if err := await(t, "role.sql", created.done); err != nil {
		t.Fatalf("%v\n%s", err, &created.out)
	}
	t.Cleanup(func() { admin.exec("DROP OWNED BY " + role); admin.exec("DROP ROLE " + role) })
	as.User = url.UserPassword(role, "secret")
	run(t, e(s.org, "1", "19.90"), "DATABASE_URL="+as.String()).id()
	s.wantMails("1")
	for _, sql := range []string{
		"SELECT FROM outbox.emails", "SELECT FROM outbox.api_keys", "DELETE FROM outbox.idempotency_keys",
		"SELECT outbox.enqueue_store_job(gen_random_uuid(), 1::smallint, NULL, now())",
	} {
		run(t, exec.Command("sh", "-c", `psql "$DATABASE_URL" --no-psqlrc -c "$0"`, sql), "DATABASE_URL="+as.String()).refused("permission denied")
	}
}

// The official Resend SDK with nothing but its environment changed.
func TestExampleOfTheResendSDK(t *testing.T) {
	t.Parallel()
	script := filepath.Join(npmInstall(t, filepath.Join("..", "examples", "resend-sdk")), "send.mjs")
	s := openShop(t)
	env := []string{"RESEND_BASE_URL=" + s.start("api", resendEnv(s.provider)...).url("api"), "RESEND_API_KEY="}
	send := func(key string) *running {
		env[1] = "RESEND_API_KEY=" + key
		return run(t, exec.Command("node", script, "Jane"), env...)
	}
	first := send(s.token).id()
	if again := send(s.token).id(); again != first {
		t.Errorf("sent again it is email %s, want %s", again, first)
	}
	send(s.key("read")).refused("restricted_api_key")
	s.awaitEnded()
	s.wantRows(1, 1)
	if diff := cmp.Diff([]string{"Welcome, Jane"}, s.accepted()); diff != "" {
		t.Errorf("mails at the provider (-want +got):\n%s", diff)
	}
}
