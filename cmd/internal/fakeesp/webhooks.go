package fakeesp

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

const (
	// postTries is how often a webhook is posted until it is answered 2xx,
	// with a wait that doubles from postWait.
	postTries = 5
	postWait  = time.Second

	// maxBatch is how many events a service that batches puts in a request.
	maxBatch = 100
)

// poster posts the webhooks of what was accepted.
type poster struct {
	base       string
	copies     int
	shuffle    bool
	hooks      map[string]providertest.Webhooks
	recipients *recipients
	journal    *journal
	client     *http.Client
	confirmURL string
	wait       time.Duration // before the second try

	mu       sync.Mutex
	pending  []providertest.Event
	wake     chan struct{}
	stop     context.CancelFunc
	done     chan struct{}
	prepared bool // the subscription to SES' topic was announced
}

// checkBase refuses what webhooks cannot be posted to.
func checkBase(base string) error {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q is not an http or https URL to post webhooks to", base)
	}
	return nil
}

func (p *poster) start() {
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.done, p.wake = stop, make(chan struct{}), make(chan struct{}, 1)
	p.client = &http.Client{Timeout: 10 * time.Second}
	go func() {
		defer close(p.done)
		p.run(ctx)
	}()
}

// close ends what is being posted; the rest is not posted.
func (p *poster) close() {
	p.stop()
	<-p.done
	p.client.CloseIdleConnections()
}

// accepted queues the events of a message. It does not block.
func (p *poster) accepted(a providertest.Accepted) {
	hooks, ok := p.hooks[a.Provider]
	if !ok {
		return // a relay reports nothing
	}
	var events []providertest.Event
	for _, to := range a.To {
		for i, kind := range p.recipients.fate(to) {
			e := providertest.Event{
				Kind: kind, ID: rand.Text(), At: a.At.Add(time.Duration(i) * time.Millisecond), Recipient: to, Message: a,
			}
			events = append(events, e)
			for range p.copies - 1 {
				events = append(events, hooks.Again(e))
			}
		}
	}
	p.mu.Lock()
	p.pending = append(p.pending, events...)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default: // it is awake
	}
}

func (p *poster) take() []providertest.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.pending
	p.pending = nil
	return events
}

func (p *poster) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		events := p.take()
		if p.shuffle {
			mathrand.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		}
		for len(events) > 0 && ctx.Err() == nil {
			n := batch(events)
			p.report(ctx, events[:n])
			events = events[n:]
		}
	}
}

// batch returns how many of the first events are one provider's.
func batch(events []providertest.Event) int {
	n := 1
	for n < len(events) && n < maxBatch && events[n].Message.Provider == events[0].Message.Provider {
		n++
	}
	return n
}

// report posts events of one provider.
func (p *poster) report(ctx context.Context, events []providertest.Event) {
	provider := events[0].Message.Provider
	hooks := p.hooks[provider]
	requests, err := hooks.Post(events, time.Now())
	if ses, ok := hooks.(providertest.SESWebhooks); ok && !p.prepared {
		p.prepared = true
		var confirm providertest.Webhook
		confirm, err = ses.Confirm(p.confirmURL+"?"+url.Values{
			"Action": {"ConfirmSubscription"}, "TopicArn": {ses.TopicARN},
		}.Encode(), time.Now())
		requests = append([]providertest.Webhook{confirm}, requests...)
	}
	if err != nil {
		p.journal.posted(posted{Time: time.Now().UTC(), Webhook: provider, Error: err.Error()})
		return
	}
	for _, request := range requests {
		p.post(ctx, provider, request)
	}
}

// post posts one request until it is answered 2xx, as services do.
func (p *poster) post(ctx context.Context, provider string, w providertest.Webhook) {
	wait := p.wait
	for try := 1; ; try++ {
		status, err := p.once(ctx, provider, w)
		line := posted{Time: time.Now().UTC(), Webhook: provider, Status: status}
		if err != nil {
			line.Error = err.Error()
		}
		p.journal.posted(line)
		if err == nil && status < 300 || try == postTries {
			return
		}
		select {
		case <-time.After(wait):
			wait *= 2
		case <-ctx.Done():
			return
		}
	}
}

func (p *poster) once(ctx context.Context, provider string, w providertest.Webhook) (status int, err error) {
	target, err := url.JoinPath(p.base, "hooks", provider)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(w.Body))
	if err != nil {
		return 0, err
	}
	req.Header = w.Header.Clone()
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, errors.Join(resp.Body.Close())
}
