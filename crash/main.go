// Command crash runs the crash matrix: it brings real worker processes to each
// boundary of a delivery, lets a fault hit exactly there, and judges what the
// provider accepted and what the database says against the contract.
//
//	go run ./crash                                     all cells
//	go run ./crash -short                              all pairs, as in the test suite
//	go run ./crash -cells 'B4/sigkill/plain/retry'     one cell; * fits any part
//	go run ./crash -mutants                            that the matrix finds known bugs
//	go run ./crash -report docs/crash-matrix.md        and write the report
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the command line.
type options struct {
	short, mutants, list, verbose  bool
	cells, report, results, resume string
	parallel, servers              int
	seed                           uint64
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("crash", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.short, "short", false, "only the part that the test suite runs")
	flags.BoolVar(&o.mutants, "mutants", false, "also run the mutants, each of which must turn a cell red")
	flags.BoolVar(&o.list, "list", false, "print the names of the cells and stop")
	flags.BoolVar(&o.verbose, "v", false, "print what the workers print, for green cells too")
	flags.StringVar(&o.cells, "cells", "", "only cells that fit: boundary/fault/kind/policy, * for any, several with commas")
	flags.StringVar(&o.report, "report", "", "write a report in Markdown to this `file`")
	flags.StringVar(&o.results, "results", "", "write the raw results to this `file`, one JSON object a line")
	flags.StringVar(&o.resume, "resume", "", "take the green cells from this `file` of raw results and run the others")
	flags.IntVar(&o.parallel, "parallel", 12, "cells at a time; most of them only wait")
	flags.IntVar(&o.servers, "servers", 3, "Postgres servers to crash, one cell at a time each")
	flags.Uint64Var(&o.seed, "seed", 1, "decides what the provider does at B6")
	return o, flags.Parse(args)
}

func (o options) selected() []Cell {
	cells := Matrix()
	if o.short {
		cells = Short()
	}
	return Select(cells, o.cells)
}

func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if err != nil {
		return 2
	}
	cells := o.selected()
	if o.list {
		for _, c := range cells {
			fmt.Fprintln(stdout, c)
		}
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := o.matrix(ctx, cells, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "crash:", err)
		return 1
	}
	if o.report != "" {
		if err := os.WriteFile(o.report, []byte(r.markdown()), 0o600); err != nil {
			fmt.Fprintln(stderr, "crash:", err)
			return 1
		}
	}
	if !r.good() {
		return 1
	}
	return 0
}

// matrix runs cells, and mutants if they are wanted.
func (o options) matrix(ctx context.Context, cells []Cell, out io.Writer) (*report, error) {
	dir, remove, err := workspace()
	if err != nil {
		return nil, err
	}
	defer func() { _ = remove() }()
	l, stop, err := o.open(ctx, dir, cells)
	if err != nil {
		return nil, err
	}
	defer stop()
	fmt.Fprintf(out, "seed %d, %d cells, %d at a time\n", o.seed, len(cells), o.parallel)
	began := time.Now()
	r := &report{options: o}
	if r.results, cells, err = o.resumed(cells); err != nil {
		return nil, err
	}
	r.resumed = len(r.results)
	raw := json.NewEncoder(io.Discard)
	if o.results != "" {
		f, err := os.Create(o.results)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		raw = json.NewEncoder(f)
	}
	l.runAll(ctx, cells, o.parallel, func(result Result) {
		if ctx.Err() != nil && result.Verdict != Green {
			return // interrupted: the report is about those that ended
		}
		r.results = append(r.results, result)
		_ = raw.Encode(result)
		fmt.Fprintf(out, "%4d  %s\n", len(r.results), result.line())
		if result.Log != "" {
			fmt.Fprintln(out, result.Log)
		}
	})
	r.took = time.Since(began)
	fmt.Fprintln(out, r.summary())
	if o.mutants {
		if r.kills, err = l.hunt(ctx, dir, o.parallel, out); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// resumed returns the green results of an earlier run, and the cells that are
// left.
func (o options) resumed(cells []Cell) (results []Result, left []Cell, err error) {
	if o.resume == "" {
		return nil, cells, nil
	}
	f, err := os.Open(o.resume)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	green := map[Cell]bool{}
	for d := json.NewDecoder(f); d.More(); {
		var r Result
		if err := d.Decode(&r); err != nil {
			return nil, nil, err
		}
		if r.Verdict == Green && slices.Contains(cells, r.Cell) && !green[r.Cell] {
			green[r.Cell] = true
			results = append(results, r)
		}
	}
	for _, c := range cells {
		if !green[c] {
			left = append(left, c)
		}
	}
	return results, left, nil
}

// cellsPerServer keeps the connections of all workers below what a server takes.
const cellsPerServer = 12

// open builds the worker and starts what the cells need.
func (o options) open(ctx context.Context, dir string, cells []Cell) (l *lab, stop func(), err error) {
	l = &lab{program: workerPath(dir, "faults"), seed: o.seed, verbose: o.verbose, bound: settleBound}
	if err := buildWorker(ctx, l.program, "-tags", "faults"); err != nil {
		return nil, nil, err
	}
	if l.log, err = openAcceptLog(filepath.Join(dir, "accepted.jsonl")); err != nil {
		return nil, nil, err
	}
	crashing := 0
	for _, c := range cells {
		if c.Fault == Crash {
			crashing++
		}
	}
	if shiftsClocks(cells) {
		l.shifted = workerPath(dir, "shifted")
		if err := buildShifted(ctx, l.shifted); err != nil {
			return nil, nil, err
		}
	}
	shared, own := (o.parallel+cellsPerServer-1)/cellsPerServer, min(o.servers, crashing)
	l.shared, l.own = make(chan *server, shared*cellsPerServer), make(chan *server, own)
	var servers []*server
	stop = func() {
		for _, s := range servers {
			_ = s.stop()
		}
		_ = l.log.close()
	}
	for i := range shared + own {
		s, err := startServer(ctx, dir, fmt.Sprintf("postgres-%d", i))
		if err != nil {
			stop()
			return nil, nil, err
		}
		servers = append(servers, s)
		if i >= shared {
			l.own <- s
		}
	}
	for range cellsPerServer {
		for _, s := range servers[:shared] {
			l.shared <- s
		}
	}
	return l, stop, nil
}
