package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxd/outboxd/outbox"
)

// clients are the connections of every load.
const clients = 64

// pgbenchScript stores what a submission stores, in one transaction per email, as an
// application would do it by hand. Ids grow as ours do.
var pgbenchScript = `\set n :n + 1
BEGIN;
INSERT INTO outbox.idempotency_keys (org_id, endpoint, key, submission_id, fingerprint_version, fingerprint, email_ids, status_code, response, expires_at)
VALUES ('00000000-0000-7000-8000-000000000001', 'POST /emails', 'key-' || :client_id::bigint || '-' || :n::bigint, ` + pgbenchID + `, 1, decode(md5(:n::bigint::text), 'hex'), ARRAY[` + pgbenchID + `], 202, '{"id":"00000000-0000-7000-8000-000000000001","object":"email","status":"queued"}', now() + interval '7 days') ON CONFLICT DO NOTHING;
INSERT INTO outbox.emails (id, org_id, status, created_at) VALUES (` + pgbenchID + `, '00000000-0000-7000-8000-000000000001', 'queued', now());
INSERT INTO outbox.email_contents (email_id, org_id, from_address, to_addresses, subject, text, recipients)
VALUES (` + pgbenchID + `, '00000000-0000-7000-8000-000000000001', 'Shop <shop@example.com>', '["jane@example.org"]', 'Mail ' || :n::bigint, '` + body + `', '{jane@example.org}');
INSERT INTO outbox.email_terms (email_id, term) VALUES (` + pgbenchID + `, md5('jane@example.org')::uuid);
INSERT INTO outbox.river_job (kind, queue, args, max_attempts, priority) VALUES ('deliver_email', '` + outbox.Queue + `', jsonb_build_object('email_id', ` + pgbenchID + `), 25, 2);
COMMIT;
`

const pgbenchID = `(lpad(to_hex(:n::bigint), 8, '0') || '-0000-7000-8000-' || lpad(to_hex(:client_id::bigint), 12, '0'))::uuid`

// body is the text of each email, 1 kB.
var body = strings.Repeat("All of it is paid, and nothing is left to do. ", 22)[:1000]

// pgbenchRate runs the script as fast as it goes and returns transactions per second.
func (d *database) pgbenchRate(ctx context.Context) (perSecond float64, err error) {
	out, err := d.pgbench(ctx, d.lab.warm+d.lab.measure)
	if err != nil {
		return 0, err
	}
	match := regexp.MustCompile(`tps = ([0-9.]+)`).FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("pgbench: no figure in\n%s", out)
	}
	return strconv.ParseFloat(string(match[1]), 64)
}

// pgbenchTook runs the script at a rate and returns how long each transaction took.
func (d *database) pgbenchTook(ctx context.Context, rate float64) ([]time.Duration, error) {
	logs := filepath.Join(d.lab.dir, "pgbench_log")
	if _, err := d.pgbench(ctx, d.lab.paced, "-R", fmt.Sprintf("%.0f", rate), "-l", "--log-prefix", logs); err != nil {
		return nil, err
	}
	return readLogs(logs)
}

// pgbench runs the script for so long and returns what it printed.
func (d *database) pgbench(ctx context.Context, length time.Duration, more ...string) ([]byte, error) {
	script := filepath.Join(d.lab.dir, "script.sql")
	if err := os.WriteFile(script, []byte(pgbenchScript), 0o600); err != nil {
		return nil, err
	}
	args := slices.Concat([]string{
		"-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", "2", "-D", "n=0", "-f", script,
		"-T", strconv.Itoa(int(length.Seconds())),
	}, more, []string{d.url})
	out, err := exec.CommandContext(ctx, "pgbench", args...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("pgbench: %w\n%s", err, out)
	}
	return out, nil
}

// transaction is a line of pgbench's log.
type transaction struct {
	ended int64 // in microseconds
	took  time.Duration
}

// readLogs reads and removes the logs of pgbench. Of the first tenth nothing is kept, as
// of our own: it is when the connections are opened.
func readLogs(prefix string) ([]time.Duration, error) {
	files, err := filepath.Glob(prefix + ".*")
	if err != nil {
		return nil, err
	}
	var all []transaction
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if t, ok := parseTransaction(line); ok {
				all = append(all, t)
			}
		}
		if err := os.Remove(file); err != nil {
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, errors.New("pgbench: an empty log")
	}
	slices.SortFunc(all, func(a, b transaction) int { return cmp.Compare(a.ended, b.ended) })
	var took []time.Duration
	for _, t := range all[len(all)/10:] {
		took = append(took, t.took)
	}
	return took, nil
}

// parseTransaction reads a line: client, number, how long it took from when it was due in
// microseconds or "skipped", script, and when it ended in seconds and microseconds.
func parseTransaction(line string) (t transaction, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 {
		return t, false
	}
	var n [3]int64
	for i, field := range []string{fields[2], fields[4], fields[5]} {
		var err error
		if n[i], err = strconv.ParseInt(field, 10, 64); err != nil {
			return t, false
		}
	}
	return transaction{ended: n[1]*1_000_000 + n[2], took: time.Duration(n[0]) * time.Microsecond}, true
}

// percentile returns the value below which so many of a hundred are, in milliseconds.
func percentile(took []time.Duration, of float64) float64 {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	i := min(int(float64(len(took))*of/100), len(took)-1)
	return float64(took[i]) / float64(time.Millisecond)
}
