package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxd/outboxd/internal/localpg"
)

const (
	// soakKills and soakRestarts are how often a worker is killed and Postgres is
	// restarted.
	soakKills    = 30 * time.Second
	soakRestarts = 5 * time.Minute
	soakSamples  = 5 * time.Second
	// soakDrain is how long what was accepted may take to arrive after the load.
	soakDrain = 5 * time.Minute
)

// soak is load for a long time, at half of the rate that the machine can do, on an
// installation that breaks all the time. Nothing may be lost or, at a provider that
// knows its keys, accepted twice.
type soak struct {
	*installation
	length    time.Duration
	server    localpg.Options
	submitted atomic.Int64
	progress  io.Writer
	csv       *csv.Writer
}

// runSoak runs it, with samples of what grows in a file.
func runSoak(ctx context.Context, o options, progress io.Writer) (err error) {
	data, err := os.MkdirTemp("", "outboxd-soak-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	if err := os.Chmod(data, 0o755); err != nil { // for the server's user
		return err
	}
	server := localpg.Options{DataDir: filepath.Join(data, "postgres")}
	b, err := newLab(ctx, o.scale(), server, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	server.Port = b.server.Port() // it comes back there
	file, err := os.Create(o.samples)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	db, err := b.newDatabase(ctx) // it goes with the server
	if err != nil {
		return err
	}
	in, err := db.startInstallation(ctx)
	if err != nil {
		return err
	}
	s := &soak{installation: in, length: o.soak, server: server, progress: progress, csv: csv.NewWriter(file)}
	defer func() { err = errors.Join(err, s.stop()) }()
	return s.run(ctx)
}

func (s *soak) run(ctx context.Context) error {
	rate, err := s.saturation(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.progress, "==> %v at %.0f emails a second, half of what goes\n", s.length, rate/2)
	if err := s.load(ctx, rate/2); err != nil {
		return err
	}
	return s.judge(ctx)
}

// saturation is how many emails a second are submitted and delivered when each client
// submits the next one once the last has arrived.
func (s *soak) saturation(ctx context.Context) (perSecond float64, err error) {
	p := s.db.lab.provider
	p.expect(0)
	ctx, cancel := context.WithTimeout(ctx, s.db.lab.warm+s.db.lab.measure)
	defer cancel()
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				number := s.submit(ctx)
				for p.at(number).IsZero() && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	time.Sleep(s.db.lab.warm)
	before := p.count()
	all.Wait()
	return float64(p.count()-before) / s.db.lab.measure.Seconds(), nil
}

// submit submits the next email until it is accepted, or ctx ends, and returns its number.
func (s *soak) submit(ctx context.Context) (number int64) {
	number = s.client.next.Add(1)
	for ctx.Err() == nil {
		// Who was cut off may have been accepted.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		err := s.client.submit(bounded, number)
		cancel()
		if err == nil {
			s.submitted.Add(1)
			return number
		}
		time.Sleep(500 * time.Millisecond)
	}
	return number
}

// load submits at the rate while workers are killed and Postgres is restarted.
func (s *soak) load(ctx context.Context, rate float64) error {
	over, stop := context.WithCancel(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var broken error
	var all sync.WaitGroup
	all.Go(func() {
		if broken = s.breakThings(over); broken != nil {
			cancel()
		}
	})
	began := time.Now()
	for i := 0; time.Since(began) < s.length && ctx.Err() == nil; i++ {
		time.Sleep(time.Until(began.Add(time.Duration(float64(i) / rate * float64(time.Second)))))
		all.Go(func() { s.submit(ctx) })
	}
	stop()
	all.Wait()
	return cmp.Or(broken, ctx.Err())
}

// breakThings kills and restarts in turns, and samples, until ctx ends.
func (s *soak) breakThings(ctx context.Context) error {
	began := time.Now()
	kills, restarts, samples := time.NewTicker(soakKills), time.NewTicker(soakRestarts), time.NewTicker(soakSamples)
	if err := s.csv.Write([]string{
		"seconds", "submitted", "received", "api_mb", "worker_mb", "dead_emails", "dead_attempts", "dead_jobs", "database_mb",
	}); err != nil {
		return err
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-kills.C:
			err = s.killOne(ctx)
		case <-restarts.C:
			err = s.restart(context.WithoutCancel(ctx))
		case <-samples.C:
			err = s.sample(ctx, time.Since(began))
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func (s *soak) killOne(ctx context.Context) error {
	for name := range s.workers {
		if err := s.killWorker(name); err != nil {
			return err
		}
		break
	}
	return s.startWorker(context.WithoutCancel(ctx))
}

func (s *soak) restart(ctx context.Context) (err error) {
	b := s.db.lab
	if err := b.server.Stop(); err != nil {
		return err
	}
	b.server, err = localpg.Start(ctx, s.server)
	return err
}

const sqlSample = `
SELECT coalesce(sum(n_dead_tup) FILTER (WHERE relname = 'emails'), 0)::bigint,
    coalesce(sum(n_dead_tup) FILTER (WHERE relname = 'attempts'), 0)::bigint,
    coalesce(sum(n_dead_tup) FILTER (WHERE relname = 'river_job'), 0)::bigint, pg_database_size(current_database())
FROM pg_stat_user_tables WHERE schemaname = 'outbox'`

func (s *soak) sample(ctx context.Context, at time.Duration) error {
	var emails, attempts, jobs, bytes int64
	if err := queryRow(ctx, s.db.url, sqlSample, &emails, &attempts, &jobs, &bytes); err != nil {
		return err
	}
	workerMB := 0.0
	for _, w := range s.workers {
		workerMB = max(workerMB, w.memoryMB("VmRSS:"))
	}
	received := s.db.lab.provider.count()
	var row []string
	for _, n := range []int64{
		int64(at.Seconds()), s.submitted.Load(), int64(received), int64(s.api.memoryMB("VmRSS:")), int64(workerMB),
		emails, attempts, jobs, bytes >> 20,
	} {
		row = append(row, strconv.FormatInt(n, 10))
	}
	fmt.Fprintf(s.progress, "\r    %v, %d of %d arrived", at.Round(time.Second), received, s.submitted.Load())
	if err := s.csv.Write(row); err != nil {
		return err
	}
	s.csv.Flush()
	return s.csv.Error()
}

const sqlOpenEmails = `SELECT count(*) FROM outbox.emails WHERE status <> 'sent'`

// judge waits until all has arrived, and says what has not, or twice.
func (s *soak) judge(ctx context.Context) error {
	p := s.db.lab.provider
	for began := time.Now(); int64(p.count()) < s.submitted.Load() && time.Since(began) < soakDrain; {
		time.Sleep(time.Second)
	}
	open := -1
	for began := time.Now(); open != 0 && time.Since(began) < soakDrain; time.Sleep(time.Second) {
		if err := queryRow(ctx, s.db.url, sqlOpenEmails, &open); err != nil {
			return err
		}
	}
	lost := s.submitted.Load() - int64(p.count())
	fmt.Fprintf(s.progress, "\n    %d accepted by the API, %d by the provider, %d lost, %d doubled, %d not sent, %d workers killed\n",
		s.submitted.Load(), p.count(), max(lost, 0), p.doubles(), open, s.started-2)
	if lost > 0 || p.doubles() > 0 || open > 0 {
		return errors.New("emails were lost or doubled")
	}
	return nil
}
