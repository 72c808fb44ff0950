package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// provider takes emails in the form of Resend's API and answers at once.
type provider struct {
	url    string
	server *http.Server

	mu       sync.Mutex
	received map[int64]time.Time // by number
	first    time.Time
	last     time.Time
	wanted   int
	complete chan struct{}
}

func startProvider() (*provider, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &provider{url: "http://" + l.Addr().String()}
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
	p.received, p.wanted, p.complete = map[int64]time.Time{}, n, make(chan struct{})
	return p.complete
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
	p.note(number)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"id":"49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"}`)
}

func (p *provider) note(number int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if len(p.received) == 0 {
		p.first = now
	}
	if _, known := p.received[number]; known {
		return
	}
	p.received[number], p.last = now, now
	if len(p.received) == p.wanted {
		close(p.complete)
	}
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
func (p *provider) at(number int64) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.received[number]
}
