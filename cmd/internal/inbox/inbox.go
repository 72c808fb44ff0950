// Package inbox is a mail server for development: it accepts every message
// over SMTP, delivers none, and shows what it got on web pages and through a
// small JSON API.
package inbox

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/emersion/go-smtp"
)

const defaultMaxMessages = 1000

// Options configures an inbox. The zero value keeps the last 1000 messages in
// memory.
type Options struct {
	// Dir is a folder that keeps the messages, as .eml files, over a restart;
	// it is created when missing. Empty keeps them in memory only.
	Dir string
	// MaxMessages bounds the inbox: beyond it the oldest messages go. Zero
	// means 1000.
	MaxMessages int
}

// Inbox is a mail server and its pages. Make one with New.
type Inbox struct {
	store *store
	smtp  *smtp.Server

	mu        sync.Mutex
	closed    bool
	listeners []net.Listener
}

// New opens an inbox, with the messages that are in its folder already.
func New(opts Options) (*Inbox, error) {
	if opts.MaxMessages == 0 {
		opts.MaxMessages = defaultMaxMessages
	}
	store, err := openStore(opts.Dir, opts.MaxMessages)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return &Inbox{store: store, smtp: newServer(store)}, nil
}

// ServeSMTP accepts mail on the listener until Close, and then returns nil. A
// message is in the inbox, and on disk if there is a folder, before its sender
// is told that it was accepted.
func (in *Inbox) ServeSMTP(l net.Listener) error {
	in.mu.Lock()
	closed := in.closed
	if !closed {
		in.listeners = append(in.listeners, l)
	}
	in.mu.Unlock()
	if closed {
		return l.Close()
	}
	return in.smtp.Serve(l)
}

// Handler returns the pages and the JSON API, to be served from the root of
// an address. It asks for no password, so that address is to be a loopback one.
func (in *Inbox) Handler() http.Handler {
	return newHandler(in)
}

// Close stops the mail server. A message that is on its way in is cut off and
// not acknowledged, so its sender knows. What is stored stays readable.
func (in *Inbox) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return nil
	}
	in.closed = true
	errs := []error{in.smtp.Close()}
	for _, l := range in.listeners {
		errs = append(errs, l.Close()) // also one that Serve has not seen yet
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return nil
}

// smtpAddr is where mail is accepted; empty before ServeSMTP.
func (in *Inbox) smtpAddr() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.listeners) == 0 {
		return ""
	}
	return in.listeners[0].Addr().String()
}
