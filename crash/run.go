package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"
)

// Result is a judged cell.
type Result struct {
	Cell    Cell
	Verdict Verdict
	Outcome string
	Wrong   []string
	Took    time.Duration
	// Log is what the workers printed, for a cell that is not green.
	Log string
}

// lab is what all cells share.
type lab struct {
	program string
	shifted string // the program for faults of the clock; empty: none of the cells has one
	seed    uint64
	verbose bool
	bound   time.Duration // of the recovery
	log     *acceptLog
	// shared are servers for many cells at a time, which take turns.
	shared chan *server
	// own are servers that a cell may crash, one cell at a time.
	own chan *server
}

// tries is how often a cell may miss its fault, as it does on a machine that has
// too much to do. What is red is never tried again.
const tries = 3

// run does one cell until its fault has hit.
func (l *lab) run(ctx context.Context, c Cell) Result {
	r := l.try(ctx, c)
	for n := 1; n < tries && r.Verdict == Invalid && ctx.Err() == nil; n++ {
		r = l.try(ctx, c)
	}
	return r
}

func (l *lab) try(ctx context.Context, c Cell) Result {
	began := time.Now()
	l.log.forget(c) // what was accepted in an earlier try, or for a mutant, is not of this one
	h, log, err := l.experiment(ctx, c)
	r := Result{Cell: c, Outcome: h.Outcome()}
	if r.Verdict, r.Wrong = Judge(h); err != nil {
		// Without a complete history there is nothing to judge.
		r.Verdict, r.Wrong = Invalid, []string{err.Error()}
	}
	if r.Verdict != Green || l.verbose {
		r.Log = log
	}
	r.Took = time.Since(began)
	return r
}

func (l *lab) experiment(ctx context.Context, c Cell) (h *History, log string, err error) {
	h = &History{Cell: c}
	ctx, cancel := context.WithTimeout(ctx, settleBound+3*patience)
	defer cancel()
	servers := l.shared
	if c.Fault == Crash {
		servers = l.own
	}
	server := <-servers
	defer func() { servers <- server }()
	db, err := server.newDatabase(ctx)
	if err != nil {
		return h, "", err
	}
	defer db.drop(context.WithoutCancel(ctx))
	program := l.program
	if clockShifts[c.Fault] != "" {
		program = l.shifted
	}
	x, err := newExperiment(c, program, db, l.log, l.coin(c))
	if err != nil {
		return h, "", err
	}
	x.bound = l.bound
	defer x.close()
	err = x.conduct(ctx, h)
	if err == nil {
		err = x.observe(ctx, h)
	}
	return h, x.log(), err
}

// coin decides what the provider does at B6.
func (l *lab) coin(c Cell) bool {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(c.String()))
	return rand.New(rand.NewPCG(l.seed, sum.Sum64())).IntN(2) == 0
}

// conduct is the course of a cell: to the boundary, the fault, the recovery,
// the end of the fault, the end of all processes.
func (x *experiment) conduct(ctx context.Context, h *History) error {
	reachCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := x.reach(reachCtx); err != nil {
		return err
	}
	if err := x.strike(ctx); err != nil {
		return err
	}
	h.Reached = true
	settleCtx, cancel := context.WithTimeout(ctx, x.bound)
	defer cancel()
	err := until(settleCtx, func() bool { return x.db.settled(settleCtx) })
	if err == nil && x.cell.Fault == Late {
		err = x.report(ctx)
	}
	if err := x.heal(); err != nil {
		return err
	}
	if err == nil {
		err = until(settleCtx, func() bool { return x.db.settled(settleCtx) && x.db.idle(settleCtx) })
	}
	h.Settled = err == nil
	h.Drained = x.drain()
	return nil
}

// observe completes the history.
func (x *experiment) observe(ctx context.Context, h *History) error {
	h.Requests = x.provider.seen()
	accepted, err := x.provider.log.of(x.cell)
	h.Accepted = accepted
	leaks, leaksErr := x.leaks(ctx)
	h.Leaks = leaks
	return errors.Join(err, leaksErr, x.db.collect(ctx, h))
}

// runAll runs cells side by side and hands each result over as it comes.
func (l *lab) runAll(ctx context.Context, cells []Cell, parallel int, each func(Result)) {
	slots := make(chan struct{}, parallel)
	results := make(chan Result)
	go func() {
		for _, c := range slowestFirst(cells) {
			slots <- struct{}{}
			go func() {
				results <- l.run(ctx, c)
				<-slots
			}()
		}
	}()
	for range cells {
		each(<-results)
	}
}

// slowestFirst starts what waits longest at once, so that it does not lengthen
// the end.
func slowestFirst(cells []Cell) []Cell {
	var slow, quick []Cell
	for _, c := range cells {
		if c.cheap() {
			quick = append(quick, c)
		} else {
			slow = append(slow, c)
		}
	}
	return append(slow, quick...)
}

// line is a result in one line, and what is wrong below it.
func (r Result) line() string {
	lines := append([]string{fmt.Sprintf("%s  %s  %s  %v",
		r.Verdict, r.Cell, r.Outcome, r.Took.Round(10*time.Millisecond))}, r.Wrong...)
	return strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\n    ")
}
