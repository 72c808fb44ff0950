package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

// listener is an HTTP server on its address.
type listener struct {
	name   string
	server *http.Server
	socket net.Listener
}

// listen binds the address at once, so that a port that is taken is an error
// at start.
func listen(name, addr string, handler http.Handler, log *slog.Logger) (*listener, error) {
	socket, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s listener: %w", name, err)
	}
	return &listener{name: name, socket: socket, server: &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}, nil
}

// atMost bounds the connections at a time: each takes memory and a file. Further
// ones wait unaccepted until one of them ends, which the time-outs see to.
func (l *listener) atMost(connections int) {
	l.socket = netutil.LimitListener(l.socket, connections)
}

// serve runs until the server is shut down.
func (l *listener) serve() error {
	if err := l.server.Serve(l.socket); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s listener: %w", l.name, err)
	}
	return nil
}

// shutdown lets running requests end, as long as ctx allows.
func (l *listener) shutdown(ctx context.Context) error {
	if err := l.server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("%s listener: %w", l.name, err), l.server.Close())
	}
	return nil
}
