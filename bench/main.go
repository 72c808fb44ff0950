// Command bench measures outboxd against baselines on the same machine in the same
// run: pgbench with the same inserts, and a naive worker on the same queue.
//
//	go run ./bench                            all figures, into docs/benchmarks.md
//	go run ./bench -quick -report - -json ""  a look in two minutes, to the screen
//	go run ./bench -soak 30m                  load for long, with kills and restarts
//
// A figure is a ratio to a baseline that is taken just before it and just after it. If
// the two differ by more than a fifth, the machine was busy with something else, and
// the figure is INVALID; it is then taken again, up to three times in all, except by
// -quick. It exits 1 if a figure that is valid misses what it must reach.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/outboxd/outboxd/internal/localpg"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the command line.
type options struct {
	quick        bool
	report, json string
	only         string
	soak         time.Duration
	samples      string
}

// scale is how long and how much is measured.
type scale struct {
	warm, measure  time.Duration
	deliveries     int // emails of a full queue
	paced          time.Duration
	kills          int
	stored, queued int // emails in a large database
	tries          int // of a figure while the machine is busy with something else
}

func (o options) scale() scale {
	if o.quick {
		return scale{
			warm: time.Second, measure: 3 * time.Second, deliveries: 2000, paced: 3 * time.Second, kills: 2,
			stored: 10_000, queued: 3000, tries: 1,
		}
	}
	return scale{
		warm: 3 * time.Second, measure: 20 * time.Second, deliveries: 30_000, paced: 30 * time.Second, kills: 50,
		stored: 1_000_000, queued: 100_000, tries: 3,
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.quick, "quick", false, "measure for seconds instead of minutes: a look, not a figure to publish")
	flags.StringVar(&o.report, "report", "docs/benchmarks.md", "write the report in Markdown to this `file`; - is the screen")
	flags.StringVar(&o.json, "json", "docs/benchmarks.json", "write the raw numbers to this `file`; empty: to none")
	flags.StringVar(&o.only, "only", "", "take only those figures whose `name` has this in it: submissions, deliveries, receipt, recovery, large or size")
	flags.DurationVar(&o.soak, "soak", 0, "instead of figures: load for so `long`, with a worker killed every 30 s and Postgres restarted every 5 min")
	flags.StringVar(&o.samples, "samples", "soak.csv", "write what grows under -soak to this `file`")
	return o, flags.Parse(args)
}

// naiveCommand makes this program the naive worker.
const naiveCommand = "naive-worker"

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == naiveCommand {
		if err := runNaive(context.Background()); err != nil {
			fmt.Fprintln(stderr, "bench:", err)
			return 1
		}
		return 0
	}
	o, err := parse(args, stderr)
	if err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if o.soak > 0 {
		if err := runSoak(ctx, o, stderr); err != nil {
			fmt.Fprintln(stderr, "bench:", err)
			return 1
		}
		return 0
	}
	report, err := measure(ctx, o, stderr)
	if err == nil {
		err = report.write(o, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	if report.missed() {
		return 1
	}
	return 0
}

// measure takes all figures, one after the other.
func measure(ctx context.Context, o options, progress io.Writer) (r *report, err error) {
	b, err := newLab(ctx, o.scale(), localpg.Options{}, progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	r = &report{Quick: o.quick, Machine: machine(ctx, b)}
	for _, f := range figures {
		if !strings.Contains(f.name, o.only) {
			continue
		}
		fmt.Fprintln(progress, "==>", f.name)
		began := time.Now()
		results, err := f.measure(ctx, b, func(r Result) {
			fmt.Fprintf(progress, "    %s (%v)\n", r, time.Since(began).Round(time.Second))
		})
		if err != nil {
			return nil, err
		}
		r.Results = append(r.Results, results...)
	}
	return r, nil
}
