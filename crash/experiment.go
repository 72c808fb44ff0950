package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/internal/pgproxy"
	"github.com/outboxd/outboxd/outbox"
)

const (
	// patience bounds waits that end at once when all is well.
	patience = 30 * time.Second
	// settleBound is how long recovery may take: for a paused worker that has
	// a job and no attempt, longer than any delivery.
	settleBound = 2 * time.Minute
	// grace is how long a process gets after SIGTERM.
	grace = 3 * time.Second

	// sendTimeout is that of the workers: a doubt lasts at least so long, and
	// the program's margin of 10 s.
	sendTimeout = 3 * time.Second
)

// experiment is a cell that is being run.
type experiment struct {
	cell     Cell
	program  string
	bound    time.Duration
	db       *database
	proxy    *pgproxy.Proxy
	provider *provider
	barrier  *barrier
	held     chan struct{} // ends what the proxy holds
	rule     *pgproxy.Rule
	first    *worker
	all      []*worker
	released bool
}

// reach brings a delivery to the cell's boundary and reports whether it is
// there.
func (x *experiment) reach(ctx context.Context) error {
	x.armProxy()
	env := []string{"DATABASE_URL=" + x.proxy.URL()}
	if x.cell.point() {
		env = append(env, "OUTBOXD_FAULT="+string(x.cell.At), "OUTBOXD_FAULT_ADDR="+x.barrier.addr())
	}
	var err error
	if x.first, err = x.start(ctx, env); err != nil {
		return err
	}
	if x.cell.At == NotFetched {
		if err := x.first.pause(ctx); err != nil {
			return err
		}
	}
	id, err := x.enqueue(ctx)
	if err != nil {
		return err
	}
	select {
	case <-x.boundary():
	case <-ctx.Done():
		return fmt.Errorf("%s was not reached: %w\n%s", x.cell.At, ctx.Err(), x.first.tail())
	}
	if x.cell.point() && x.barrier.email != hexID(id) {
		return fmt.Errorf("the fault point was hit for email %s, not %s", x.barrier.email, id)
	}
	return nil
}

// armProxy makes the proxy hold the reply to the statement of B3 or B9.
func (x *experiment) armProxy() {
	switch x.cell.At {
	case BeginLost:
		x.rule = x.proxy.On(pgproxy.Autocommit, pgproxy.HoldAfter(x.held), pgproxy.Saw("INSERT INTO outbox.attempts"))
	case FinishLost:
		x.rule = x.proxy.On(pgproxy.Autocommit, pgproxy.HoldAfter(x.held), pgproxy.Saw("SET stage = i.stage"))
	}
}

// boundary is closed when the delivery is there.
func (x *experiment) boundary() <-chan struct{} {
	switch {
	case x.rule != nil:
		return x.rule.Fired()
	case x.cell.point():
		return x.barrier.reached
	case x.cell.At == NotFetched:
		at := make(chan struct{})
		close(at)
		return at
	}
	return x.provider.reached
}

// release lets the delivery go on from the boundary.
func (x *experiment) release(word string) error {
	if x.released {
		return nil
	}
	x.released = true
	x.barrier.say(word)
	close(x.held)
	x.provider.proceed()
	if x.cell.At == NotFetched {
		return x.first.signal(syscall.SIGCONT)
	}
	return nil
}

// start starts a worker with what all have in common.
func (x *experiment) start(ctx context.Context, env []string) (*worker, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	env = append(env,
		"OUTBOXD_LOG_FORMAT=json", "OUTBOXD_OPS_ADDR=127.0.0.1:0", "OUTBOXD_CONCURRENCY=2",
		clockShiftVar+"="+clockShifts[x.cell.Fault], "OUTBOXD_UNKNOWN_WAIT=300ms", "OUTBOXD_SEND_TIMEOUT="+sendTimeout.String())
	w, err := startWorker(ctx, x.program, append(env, x.provider.env()...))
	if err == nil {
		x.all = append(x.all, w)
	}
	return w, err
}

// another starts a worker that reaches the database directly.
func (x *experiment) another(ctx context.Context) error {
	_, err := x.start(ctx, []string{"DATABASE_URL=" + x.db.url})
	return err
}

func (x *experiment) enqueue(ctx context.Context) (id string, err error) {
	org, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	text := "The " + canary + " of the crash matrix."
	if x.cell.At == HalfWritten {
		text = strings.Repeat("0123456789abcdef0123456789abcdef0123456789abcdef\n", 4*half/50)
	}
	client, err := outbox.NewClient(x.db.pool, outbox.Config{})
	if err != nil {
		return "", err
	}
	receipt, err := client.Enqueue(ctx, outbox.Submission{Org: org, Messages: []outbox.Message{{
		From: canary + "-from@example.com", To: []string{canaryTo}, Subject: canary + " " + x.cell.String(), Text: text,
		OnUnknown: outbox.Policy(x.cell.Policy),
	}}})
	if err != nil {
		return "", err
	}
	return receipt.IDs[0].String(), nil
}

// drain asks all processes to end and reports whether they did.
func (x *experiment) drain() bool {
	ended := true
	for _, w := range x.all {
		_ = w.signal(syscall.SIGTERM)
	}
	for _, w := range x.all {
		ended = w.wait(patience) && ended
	}
	return ended
}

// close ends all that is left.
func (x *experiment) close() {
	_ = x.release("go")
	for _, w := range x.all {
		w.kill()
	}
	x.barrier.close()
	x.provider.close()
	x.proxy.Close()
}

// log is the end of what the workers printed.
func (x *experiment) log() string {
	var text strings.Builder
	for i, w := range x.all {
		fmt.Fprintf(&text, "--- worker %d\n%s\n", i+1, w.tail())
	}
	return text.String()
}

func newExperiment(c Cell, program string, db *database, log *acceptLog, accepts bool) (*experiment, error) {
	x := &experiment{cell: c, program: program, db: db, held: make(chan struct{})}
	var err error
	if x.proxy, err = pgproxy.Start(db.url); err != nil {
		return nil, err
	}
	if x.barrier, err = newBarrier(); err != nil {
		x.proxy.Close()
		return nil, err
	}
	if x.provider, err = startProvider(c, log, accepts, isRecorded(db)); err != nil {
		x.proxy.Close()
		return nil, errors.Join(err, x.barrier.listener.Close())
	}
	return x, nil
}
