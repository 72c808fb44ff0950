package e2e_test

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
	"github.com/outboxd/outboxd/providers/providertest"
)

const (
	// floodEnv is how many emails one org has waiting in the tests of fairness,
	// and dayEnv how many emails there are on a provider's bad day, which then
	// lasts minutes. plotEnv is a folder for pictures of it.
	floodEnv = "OUTBOXD_TEST_FLOOD"
	dayEnv   = "OUTBOXD_TEST_DAY"
	plotEnv  = "OUTBOXD_TEST_PLOTS"
)

func fromEnv(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// flood gives the org so many emails that wait, and returns it.
func (in *installation) flood(emails int) uuid.UUID {
	in.t.Helper()
	ctx := context.Background()
	org, err := api.CreateOrg(ctx, in.pool, api.Org{Name: "flood"})
	if err != nil {
		in.t.Fatal(err)
	}
	client, err := outbox.NewClient(nil, outbox.Config{})
	if err != nil {
		in.t.Fatal(err)
	}
	for stored := 0; stored < emails; stored += 1000 {
		batch := make([]outbox.Submission, min(1000, emails-stored))
		for i := range batch {
			batch[i] = outbox.Submission{Org: org, Messages: []outbox.Message{{
				From: "flood@example.com", To: []string{"jane@example.org"}, Subject: fmt.Sprint("Flood ", stored+i), Text: "Hello.",
			}}}
		}
		if err := pgx.BeginFunc(ctx, in.pool, func(tx pgx.Tx) error {
			_, err := client.EnqueueManyTx(ctx, tx, batch)
			return err
		}); err != nil {
			in.t.Fatal(err)
		}
	}
	return org
}

// One org has a hundred thousand emails waiting (fewer unless asked for). The
// single email of another is sent within what the provider takes in two seconds,
// whether the provider is slow or its rate is bounded; so is the flooding org's
// own email of a high priority.
func TestFloodOfOneOrg(t *testing.T) {
	t.Parallel()
	const perSecond = 50
	for name, limit := range map[string]struct {
		env   []string
		delay time.Duration
	}{
		"slow provider": {[]string{"OUTBOXD_CONCURRENCY=10"}, 10 * time.Second / perSecond},
		"rate":          {[]string{"OUTBOXD_SENDGRID_RATE=" + strconv.Itoa(perSecond) + "/s"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := install(t)
			org := in.flood(fromEnv(floodEnv, 1000))
			provider := providertest.NewHTTP(t, providertest.SendGrid)
			provider.Respond(func(providertest.Seen) providertest.Reaction { return providertest.Accept().Late(limit.delay) })
			env := append(sendGridEnv(provider), limit.env...)
			base := in.start("api", env...).url("api")
			in.start("worker", env...)
			awaitAccepted(t, provider, 20)

			start, before := time.Now(), len(provider.Accepted())
			in.submit(base, 0, 1)
			at, overtaken := acceptedAfter(t, provider, before, "Mail 0")
			t.Logf("another org's email: accepted after %v, %d of the flood before it", at.Sub(start).Round(time.Millisecond), overtaken)
			if overtaken > 2*perSecond {
				t.Errorf("%d emails of the flood went before the other org's", overtaken)
			}

			before = len(provider.Accepted())
			in.enqueue(org, outbox.Message{
				From: "flood@example.com", To: []string{"jane@example.org"}, Subject: "Reset", Text: "x", Priority: outbox.PriorityHigh,
			})
			if _, overtaken := acceptedAfter(t, provider, before, "Reset"); overtaken > 2*perSecond {
				t.Errorf("%d emails of the flood went before its own urgent one", overtaken)
			}
		})
	}
}

// enqueue submits a message as an application does that has the database.
func (in *installation) enqueue(org uuid.UUID, m outbox.Message) {
	in.t.Helper()
	client, err := outbox.NewClient(nil, outbox.Config{})
	if err != nil {
		in.t.Fatal(err)
	}
	ctx := context.Background()
	if err := pgx.BeginFunc(ctx, in.pool, func(tx pgx.Tx) error {
		_, err := client.EnqueueTx(ctx, tx, outbox.Submission{Org: org, Messages: []outbox.Message{m}})
		return err
	}); err != nil {
		in.t.Fatal(err)
	}
}

// acceptedAfter waits for the email with that subject, and returns when it was
// accepted and how many others were since the first so many.
func acceptedAfter(t *testing.T, p *providertest.HTTP, before int, subject string) (at time.Time, others int) {
	t.Helper()
	eventually(t, subject+" is accepted", func() bool {
		accepted := p.Accepted()
		i := slices.IndexFunc(accepted, func(a providertest.Accepted) bool {
			return strings.Contains(string(a.Body), `"subject":"`+subject+`"`)
		})
		if i < 0 {
			return false
		}
		at, others = accepted[i].At, i-before
		return true
	})
	return at, others
}

// day is a provider's bad day: it answers 429, then 500, then not at all, then
// 401, and then it is well again.
type day struct {
	span time.Duration // of each of these, at least

	mu    sync.Mutex
	begun bool
	phase int
	since time.Time
	seen  [][]providertest.Seen // by phase
}

// The phases of a day.
var phases = []struct {
	name string
	does func(providertest.Seen) providertest.Reaction
}{
	{"well", nil},
	{"429", func(providertest.Seen) providertest.Reaction {
		return providertest.Reply(http.StatusTooManyRequests, "").With("Retry-After", "2")
	}},
	{"500", func(r providertest.Seen) providertest.Reaction {
		if r.Number%2 == 0 { // and every other one is accepted all the same
			return providertest.Accept().Then(providertest.Reply(http.StatusInternalServerError, ""))
		}
		return providertest.Reply(http.StatusInternalServerError, "")
	}},
	{"silent", func(providertest.Seen) providertest.Reaction { return providertest.Hang() }},
	{"401", func(providertest.Seen) providertest.Reaction { return providertest.Reply(http.StatusUnauthorized, "") }},
	{"well again", nil},
}

// begin ends the time in which all is well.
func (d *day) begin() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun = true
	return time.Now()
}

// meet notes a request, and returns its phase. Each phase has one at least.
func (d *day) meet(r providertest.Seen) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen == nil {
		d.seen = make([][]providertest.Seen, len(phases))
	}
	over := d.phase == 0 && d.begun || d.phase > 0 && len(d.seen[d.phase]) > 0 && r.At.Sub(d.since) > d.span
	if over && d.phase < len(phases)-1 {
		d.phase++
		d.since = r.At
	}
	d.seen[d.phase] = append(d.seen[d.phase], providertest.Seen{Number: r.Number, At: r.At})
	return d.phase
}

func (d *day) isOver() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.phase == len(phases)-1
}

func (d *day) respond(r providertest.Seen) providertest.Reaction {
	if does := phases[d.meet(r)].does; does != nil {
		return does(r)
	}
	return providertest.Accept().Late(50 * time.Millisecond)
}

// A provider's bad day, with another one behind it that takes less: every email
// is accepted once or is marked, the provider is left alone while it is out, and
// is not overrun when it is back.
func TestBadDayOfAProvider(t *testing.T) {
	t.Parallel()
	emails, rate, d := 600, 40, &day{span: 2 * time.Second}
	long := os.Getenv(dayEnv) != ""
	if long {
		emails, rate, d.span = fromEnv(dayEnv, 20_000), 100, 30*time.Second
	}
	in := install(t)
	in.flood(emails)
	first, second := providertest.NewHTTP(t, providertest.SendGrid), providertest.NewHTTP(t, providertest.Resend)
	first.Respond(d.respond)
	env := append(append(resendEnv(second), sendGridEnv(first)...),
		"OUTBOXD_PROVIDERS=sendgrid,resend", fmt.Sprintf("OUTBOXD_RESEND_RATE=%d/s", rate),
		"OUTBOXD_SEND_TIMEOUT=2s", "OUTBOXD_UNKNOWN_WAIT=1s", "OUTBOXD_CONCURRENCY=10")
	in.start("worker", env...).ready()
	in.start("worker", env...).ready()
	awaitAccepted(t, first, emails/20)
	start := d.begin()
	added := make(chan int, 1)
	if long {
		added <- 0
	} else {
		go func() { added <- in.hurry(d) }()
	}
	eventually(t, "the provider is back", func() bool {
		return d.isOver() && strings.Contains(outboxctl(t, in.databaseURL, "providers"), "sendgrid   in order")
	})
	in.awaitEndedWithin(10 * time.Minute)
	in.checkDay(d, first, second, emails+<-added)
	if folder := os.Getenv(plotEnv); folder != "" {
		plot(t, filepath.Join(folder, "bad-day.png"), start, first.Seen(), second.Seen())
	}
}

// hurry makes providers that are out be tried often, for a test that has no
// minutes.
func (in *installation) hurry(d *day) (added int) {
	for !d.isOver() && !in.t.Failed() {
		_, _ = in.pool.Exec(context.Background(), `UPDATE outbox.providers SET probe_at = now() + interval '200 milliseconds'
			WHERE probe_at > now() + interval '200 milliseconds'`)
		if tag, err := in.pool.Exec(context.Background(), sqlMoreFlood); err == nil {
			added += int(tag.RowsAffected())
		}
		<-time.After(200 * time.Millisecond)
	}
	return added
}

// sqlMoreFlood submits more where little is left: the day goes on with each call,
// and on a slow machine the other provider takes all before it is over.
const sqlMoreFlood = `
SELECT outbox.enqueue_email(o.id, '{"from": "flood@example.com", "to": "jane@example.org", "subject": "More", "text": "Hello."}')
FROM outbox.orgs o, generate_series(1, 100)
WHERE o.name = 'flood' AND (SELECT count(*) FROM outbox.emails WHERE ended_at IS NULL) < 100`

func (in *installation) awaitEndedWithin(limit time.Duration) {
	in.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); <-time.After(200 * time.Millisecond) {
		if in.count("SELECT count(*) FROM outbox.emails WHERE ended_at IS NULL") == 0 {
			return
		}
	}
	in.t.Fatal("not every email has ended")
}

func (in *installation) checkDay(d *day, first, second *providertest.HTTP, emails int) {
	t := in.t
	t.Helper()
	if sent := in.count("SELECT count(*) FROM outbox.emails WHERE status = 'sent'"); sent != emails {
		t.Errorf("%d of %d emails are sent", sent, emails)
	}
	keys := map[string]int{}
	for _, p := range []*providertest.HTTP{first, second} {
		for _, a := range p.Accepted() {
			keys[a.Reference]++
		}
	}
	var accepted []string
	for key, times := range keys {
		accepted = append(accepted, key)
		if times > 1 {
			t.Errorf("one attempt was accepted %d times", times)
		}
	}
	const perEmail = `FROM outbox.emails e LEFT JOIN LATERAL (
		SELECT count(*) FROM outbox.attempts a WHERE a.email_id = e.id AND a.provider_key = ANY ($1::uuid[])) AS x (times) ON true`
	if lost := in.count("SELECT count(*) "+perEmail+" WHERE x.times = 0", accepted); lost > 0 {
		t.Errorf("%d emails were accepted by nobody", lost)
	}
	if silent := in.count("SELECT count(*) "+perEmail+" WHERE x.times > 1 AND NOT e.possible_duplicate", accepted); silent > 0 {
		t.Errorf("%d emails were accepted twice and not marked", silent)
	}
	marked := in.count("SELECT count(*) FROM outbox.emails WHERE possible_duplicate")
	twice := in.count("SELECT count(*) "+perEmail+" WHERE x.times > 1", accepted)

	d.mu.Lock()
	defer d.mu.Unlock()
	back := d.seen[len(phases)-1]
	inFirstSecond := len(slices.DeleteFunc(slices.Clone(back), func(r providertest.Seen) bool {
		return r.At.Sub(back[0].At) > time.Second
	}))
	for i, p := range phases {
		t.Logf("%-10s %5d requests", p.name, len(d.seen[i]))
	}
	t.Logf("%d emails, %d by the second provider; %d marked as possible duplicates, %d of them accepted twice; %d requests in the first second of the recovery",
		emails, len(second.Accepted()), marked, twice, inFirstSecond)
	// Two workers may have five calls each under way that tell them so, or ten.
	for i, most := range map[int]int{1: 60, 2: 90, 3: 90, 4: 60} {
		if n := len(d.seen[i]); n > most {
			t.Errorf("%d requests in phase %q, want a few", n, phases[i].name)
		}
	}
	if inFirstSecond > 100 {
		t.Errorf("%d requests in the first second of the recovery: a herd", inFirstSecond)
	}
}

// plot draws requests per second over time: the first provider in red, the
// second in blue.
func plot(t *testing.T, path string, start time.Time, series ...[]providertest.Seen) {
	t.Helper()
	const pixels, height = 4, 400
	seconds := map[int][2]int{}
	last, most := 0, 1
	for s, requests := range series {
		for _, r := range requests {
			second := int(r.At.Sub(start)/time.Second) + 10
			n := seconds[second]
			n[s]++
			seconds[second] = n
			last, most = max(last, second), max(most, n[s])
		}
	}
	picture := image.NewRGBA(image.Rect(0, 0, (last+2)*pixels, height+1))
	for x := range picture.Rect.Dx() {
		for y := range picture.Rect.Dy() {
			picture.Set(x, y, color.White)
		}
		n := seconds[x/pixels]
		for y := range n[0] * height / most {
			picture.Set(x, height-y, color.RGBA{200, 40, 40, 255})
		}
		top := height - n[1]*height/most
		for y := top; y < min(top+3, height); y++ {
			picture.Set(x, y, color.RGBA{40, 40, 200, 255})
		}
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := png.Encode(file, picture); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d s, at most %d requests a second", path, last, most)
}
