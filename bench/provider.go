package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// provider takes emails in the form of Resend's API and answers at once, unless it is
// told to hold its answers. What stands before the path tells who sends.
type provider struct {
	url    string
	server *http.Server

	mu       sync.Mutex
	received map[int64]*receipts // by number
	first    time.Time
	last     time.Time
	doubled  int
	complete countdown // of those that are expected to come
	repeated countdown // of those that are expected to come again
	answers  chan struct{}
}

// receipts are when an email came.
type receipts struct {
	from  string
	key   string // that of Idempotency-Key
	first time.Time
	again time.Time // zero: it came once
}

// countdown tells when there is nothing left to count.
type countdown struct {
	left int
	done chan struct{}
}

func newCountdown(n int) countdown { return countdown{n, make(chan struct{})} }

func (c *countdown) count() {
	if c.left--; c.left == 0 {
		close(c.done)
	}
}

func startProvider() (*provider, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &provider{url: "http://" + l.Addr().String(), answers: make(chan struct{})}
	close(p.answers)
	p.server = &http.Server{Handler: http.HandlerFunc(p.accept), ReadHeaderTimeout: time.Minute}
	go func() { _ = p.server.Serve(l) }()
	p.expect(0)
	return p, nil
}

func (p *provider) close() error { return p.server.Close() }

// expect starts counting anew and returns a channel that is closed at so many.
func (p *provider) expect(n int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.received, p.doubled = map[int64]*receipts{}, 0
	p.complete, p.repeated = newCountdown(n), newCountdown(0)
	return p.complete.done
}

// hold keeps all answers back until answer is called.
func (p *provider) hold() (answer func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = make(chan struct{})
	return sync.OnceFunc(func() { close(p.answers) })
}

// busiest is who sent most of what came, and what that is.
func (p *provider) busiest() (from string, numbers []int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	by := map[string][]int64{}
	for number, r := range p.received {
		by[r.from] = append(by[r.from], number)
	}
	for name := range by {
		if len(by[name]) > len(numbers) {
			from, numbers = name, by[name]
		}
	}
	return from, numbers
}

// expectAgain returns a channel that is closed when each of these came again.
func (p *provider) expectAgain(numbers []int64) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repeated = newCountdown(0)
	for _, number := range numbers {
		if p.received[number].again.IsZero() {
			p.repeated.left++
		}
	}
	if p.repeated.left == 0 {
		close(p.repeated.done)
	}
	return p.repeated.done
}

var subject = regexp.MustCompile(`Mail ([0-9]+)\.`)

func (p *provider) accept(w http.ResponseWriter, r *http.Request) {
	mail, err := io.ReadAll(r.Body)
	match := subject.FindSubmatch(mail)
	if err != nil || match == nil {
		http.Error(w, "no number", http.StatusBadRequest)
		return
	}
	number, _ := strconv.ParseInt(string(match[1]), 10, 64)
	select {
	case <-p.note(number, path.Base(path.Dir(r.URL.Path)), r.Header.Get("Idempotency-Key")):
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"id":"49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"}`)
}

// note records a receipt, and returns a channel that is closed when it is to be
// answered. What comes again under its key is the same email, as with Resend.
func (p *provider) note(number int64, from, key string) (answer <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if len(p.received) == 0 {
		p.first = now
	}
	r := p.received[number]
	switch {
	case r == nil:
		p.received[number], p.last = &receipts{from: from, key: key, first: now}, now
		p.complete.count()
		return p.answers
	case r.again.IsZero():
		r.again = now
		p.repeated.count()
	}
	if r.key != key {
		p.doubled++
	}
	return p.answers
}

// count is how many emails were received.
func (p *provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.received)
}

// doubles is how often an email came under another key than before.
func (p *provider) doubles() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.doubled
}

// perSecond is the rate from the first that was received to the last.
func (p *provider) perSecond() (float64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.received) < 2 {
		return 0, errors.New("the provider received nothing")
	}
	return float64(len(p.received)-1) / p.last.Sub(p.first).Seconds(), nil
}

// at returns when an email was received; the zero time: not yet.
func (p *provider) at(number int64) time.Time { return p.receipts(number).first }

// again returns when an email was received for the second time.
func (p *provider) again(number int64) time.Time { return p.receipts(number).again }

func (p *provider) receipts(number int64) receipts {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.received[number]; r != nil {
		return *r
	}
	return receipts{}
}
