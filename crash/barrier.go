package main

import (
	"bufio"
	"net"
	"strings"
	"sync"
)

// barrier is the harness's side of the fault points of one worker: it learns
// that the worker stands at one, and tells it to go on.
type barrier struct {
	listener net.Listener
	reached  chan struct{}
	email    string // hex, set before reached is closed

	once sync.Once
	word chan string
}

func newBarrier() (*barrier, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &barrier{listener: l, reached: make(chan struct{}), word: make(chan string, 1)}
	go b.serve()
	return b, nil
}

func (b *barrier) addr() string { return b.listener.Addr().String() }

// serve takes the one connection that there is.
func (b *barrier) serve() {
	conn, err := b.listener.Accept()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return
	}
	_, b.email, _ = strings.Cut(strings.TrimSpace(line), " ")
	close(b.reached)
	_, _ = conn.Write([]byte(<-b.word + "\n"))
}

// say ends the wait of the worker. The first word counts.
func (b *barrier) say(word string) {
	b.once.Do(func() { b.word <- word })
}

func (b *barrier) close() {
	b.say("go")
	_ = b.listener.Close()
}
