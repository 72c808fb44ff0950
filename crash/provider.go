package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

// indexLag is how long the search of [LagSearch] does not know of a message.
const indexLag = 3 * time.Second

// provider is the recording provider of one cell. It lives in the harness, so
// it survives every kill, and what it accepts is in the log on disk before it
// answers.
type provider struct {
	cell   Cell
	log    *acceptLog
	server providertest.Server
	http   *providertest.HTTP // nil for SMTP
	// recorded asks the database whether an attempt is committed.
	recorded func(key string) *bool

	struck  atomic.Bool   // the first hand-over has come
	reached chan struct{} // closed when it has come as far as the cell says
	once    sync.Once
	release chan struct{} // closed when it may go on
	// accepts is what the provider does at B6 once it may go on.
	accepts bool

	mu       sync.Mutex
	requests []Request
}

func startProvider(cell Cell, log *acceptLog, accepts bool, recorded func(string) *bool) (*provider, error) {
	p := &provider{
		cell: cell, log: log, accepts: accepts, recorded: recorded,
		reached: make(chan struct{}), release: make(chan struct{}),
	}
	if cell.Kind == SMTP {
		return p, p.startSMTP()
	}
	return p, p.startHTTP()
}

func (p *provider) startSMTP() error {
	relay, err := providertest.StartSMTP("127.0.0.1:0", providertest.SMTPOptions{})
	if err != nil {
		return err
	}
	p.server = relay
	relay.OnAccept(p.accepted)
	relay.Respond(func(e providertest.SMTPEvent) providertest.Reaction {
		switch e.Stage {
		case providertest.AtBody:
			if p.cell.At != HalfWritten || p.struck.Swap(true) {
				return providertest.Reaction{}
			}
			// The relay has said 354, which the program waits for before it
			// begins. The content is under way when the attempt is recorded.
			p.awaitBegun()
			<-p.release
			return providertest.Reset()
		case providertest.AtDot:
			p.note(Request{Key: e.Reference})
			return p.decide()
		}
		return providertest.Reaction{}
	})
	return nil
}

// half is how much the provider reads at B5, of a body that is far longer than
// what the sockets in between hold.
const half = 512 << 10

func (p *provider) startHTTP() error {
	dialect := providertest.SendGrid
	if p.cell.Kind == Key {
		dialect = providertest.Resend
	}
	server, err := providertest.StartHTTP("127.0.0.1:0", dialect)
	if err != nil {
		return err
	}
	p.server, p.http = server, server
	server.OnAccept(p.accepted)
	server.Receive(func(r providertest.Seen) providertest.Intake {
		if p.cell.At != HalfWritten || r.Method == http.MethodGet || p.struck.Swap(true) {
			return providertest.ReadAll()
		}
		go p.awaitHalf(r.Number)
		return providertest.ReadThen(half, providertest.Reset().When(p.release))
	})
	server.Respond(func(r providertest.Seen) providertest.Reaction {
		if key, ok := strings.CutPrefix(r.Path, "/search/"); ok {
			return p.search(key)
		}
		p.note(Request{Key: r.Reference, SHA256: hexSum(r.Body)})
		return p.decide()
	})
	return nil
}

// awaitBegun waits until an attempt is recorded.
func (p *provider) awaitBegun() {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if begun := p.recorded(anyKey); begun != nil && *begun {
			close(p.reached)
			return
		}
		select {
		case <-tick.C:
		case <-p.release:
			return
		}
	}
}

// awaitHalf waits until half of the body is read.
func (p *provider) awaitHalf(number int) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if seen := p.http.Seen(); len(seen) >= number && len(seen[number-1].Body) >= half {
			close(p.reached)
			return
		}
		select {
		case <-tick.C:
		case <-p.release:
			return
		}
	}
}

// decide is what becomes of a complete hand-over. Only the first is hit.
func (p *provider) decide() providertest.Reaction {
	if p.cell.At != Written && p.cell.At != Accepted && p.cell.At != Reported || p.struck.Swap(true) {
		return providertest.Accept()
	}
	switch {
	case p.cell.byProvider() && p.cell.At == Written:
		close(p.reached)
		return p.misbehave()
	case p.cell.byProvider():
		return providertest.Accept().Then(p.misbehave())
	case p.cell.Fault == Late:
		return providertest.Accept().Then(providertest.Reset())
	case p.cell.At == Accepted, p.cell.At == Reported:
		return providertest.Accept().When(p.release)
	}
	close(p.reached)
	<-p.release
	if p.accepts {
		return providertest.Accept()
	}
	return providertest.Reset()
}

// misbehave is the provider's fault of the cell.
func (p *provider) misbehave() providertest.Reaction {
	switch p.cell.Fault {
	case Timeout:
		return providertest.Hang()
	case Reset:
		return providertest.Reset()
	}
	status, err := strconv.Atoi(string(p.cell.Fault))
	if err != nil {
		panic("no fault of a provider: " + p.cell.String())
	}
	return providertest.Reply(status, `{"name":"crash_matrix","message":"as the cell says"}`)
}

// accepted is called for each message before the provider answers.
func (p *provider) accepted(a providertest.Accepted) {
	err := p.log.add(Acceptance{Cell: p.cell.String(), Key: a.Reference, SHA256: hexSum(a.Body)})
	if err != nil {
		panic(fmt.Sprintf("the log of what is accepted: %v", err))
	}
	if (p.cell.At == Accepted || p.cell.At == Reported) && a.Number == 1 {
		close(p.reached)
	}
}

// search answers for the kinds that can be asked.
func (p *provider) search(key string) providertest.Reaction {
	found := "absent"
	if p.cell.Kind == LagSearch {
		found = "nothing"
	}
	for _, a := range p.server.Accepted() {
		if a.Reference == key && (p.cell.Kind == Search || time.Since(a.At) > indexLag) {
			found = "accepted"
		}
	}
	return providertest.Reply(http.StatusOK, `{"found":"`+found+`"}`)
}

func (p *provider) note(r Request) {
	r.Recorded = p.recorded(r.Key)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, r)
}

func (p *provider) seen() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Request(nil), p.requests...)
}

// proceed lets the first hand-over go on.
func (p *provider) proceed() { p.once.Do(func() { close(p.release) }) }

func (p *provider) close() {
	p.proceed()
	p.server.Close()
}

// env configures a worker for the provider.
func (p *provider) env() []string {
	url := p.server.URL()
	switch p.cell.Kind {
	case Key:
		return []string{"OUTBOXD_PROVIDERS=resend", "RESEND_API_KEY=re_crash", "RESEND_BASE_URL=" + url}
	case SMTP:
		return []string{"OUTBOXD_PROVIDERS=smtp", "SMTP_URL=" + url, "OUTBOXD_SMTP_FINAL_TIMEOUT=" + sendTimeout.String()}
	case Plain:
		return []string{"OUTBOXD_PROVIDERS=sendgrid", "SENDGRID_API_KEY=SG.crash", "SENDGRID_BASE_URL=" + url}
	}
	return []string{"OUTBOXD_PROVIDERS=search", "SENDGRID_API_KEY=SG.crash", "SENDGRID_BASE_URL=" + url}
}

func hexSum(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// anyKey stands for the key of whichever attempt there is.
const anyKey = ""

// isRecorded returns the question that a provider asks of each request.
func isRecorded(db *database) func(string) *bool {
	return func(key string) *bool {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		var recorded bool
		err := db.pool.QueryRow(ctx,
			`SELECT EXISTS (SELECT FROM outbox.attempts WHERE $1 IN (provider_key::text, ''))`, key).Scan(&recorded)
		if err != nil {
			return nil
		}
		return &recorded
	}
}
