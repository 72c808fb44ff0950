package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// mutant is a bug that somebody could put in. It is built from the source with
// a few lines replaced, which touches no file of the tree.
type mutant struct {
	name  string
	file  string
	edits []edit
	// cells are where it should show; one red is enough.
	cells string
}

type edit struct{ old, new string }

// mutants are the bugs that the matrix must find.
var mutants = []mutant{
	{
		name: "a new key for each take-over", file: "outbox/doubt.go",
		edits: []edit{
			{"d.render(e, p, message, e.open.Key, e.open.BeganAt)", "d.render(e, p, message, newID(), e.open.BeganAt)"},
			{"!bytes.Equal(a.payloadHash[:], e.open.PayloadHash)", "bytes.Equal(a.payloadHash[:], nil)"},
		},
		cells: "B7/sigkill/key/*,B8/sigkill/key/*",
	},
	{
		name: "Finish changes an attempt that is closed or somebody else's", file: "outbox/attempt.go",
		edits: []edit{{
			"AND a.provider_key = i.provider_key AND a.stage = 'sending'\n        AND (a.worker = i.worker OR i.stage = 'accepted')",
			"AND a.provider_key = i.provider_key",
		}},
		cells: "B4/sigstop/plain/retry,B4/sigstop/plain/drop",
	},
	{
		name: "Begin after the send", file: "outbox/deliver.go",
		edits: []edit{
			{"begun, err := d.begin(ctx, a.beginning)", "receipt, failure := send(ctx)\n\tbegun, err := d.begin(ctx, a.beginning)"},
			{
				"return d.send(ctx, a, send)\n}\n\n// send hands",
				"return d.send(ctx, a, func(context.Context) (providers.Receipt, error) { return receipt, failure })\n}\n\n// send hands",
			},
		},
		cells: "B7/sigkill/plain/retry,B7/sigkill/key/*",
	},
	{
		name: "a 503 of SendGrid counts as refused", file: "providers/sendgrid/provider.go",
		edits: []edit{{
			"http.StatusTooManyRequests:       providers.Deferred,",
			"http.StatusTooManyRequests:       providers.Deferred,\n\thttp.StatusServiceUnavailable: providers.Deferred,",
		}},
		cells: "B7/503/plain,B7/503/lag,B7/503/search",
	},
	{
		name: "another attempt while in doubt (failover in doubt)", file: "outbox/outcome.go",
		edits: []edit{{
			"e.stage, e.status, e.evidence = StageSending, StatusUnknown, \"\"\n\t\te.reason = reasonInDoubt",
			"e.stage, e.status, e.nextAttempt = StageDeferred, StatusQueued, time.Second",
		}},
		cells: "B7/reset/plain/*,B7/reset/key/*",
	},
	{
		name: "a resend after a doubt is not flagged", file: "outbox/attempt.go",
		edits: []edit{{"WHERE u.email_id = e.id AND u.stage = 'unknown'", "WHERE u.email_id = e.id AND u.stage = 'never'"}},
		cells: "B7/sigkill/plain/retry,B4/sigkill/plain/retry",
	},
	{
		name: "no look at the deadline before the last byte", file: "outbox/deliver.go",
		edits: []edit{{"return a.deadline.check()", "return nil"}},
		cells: "B4/sigstop/plain/*",
	},
}

// kill is what became of a mutant.
type kill struct {
	mutant string
	// by is the first cell that turned red, and what was wrong; empty: it lives.
	by, wrong string
	cells     int
}

// mutantBound is how long the recovery of a mutant may take: none of its cells
// waits for more than the end of a doubt.
const mutantBound = time.Minute

// hunt runs the mutants, one after the other.
func (l *lab) hunt(ctx context.Context, dir string, parallel int, out io.Writer) ([]kill, error) {
	var kills []kill
	for i, m := range mutants {
		program, err := m.build(ctx, dir, i)
		if err != nil {
			return nil, fmt.Errorf("mutant %q: %w", m.name, err)
		}
		sick := *l
		sick.program, sick.bound = program, mutantBound
		cells := Select(Matrix(), m.cells)
		k := kill{mutant: m.name, cells: len(cells)}
		sick.runAll(ctx, cells, parallel, func(r Result) {
			if r.Verdict == Red && k.by == "" {
				k.by, k.wrong = r.Cell.String(), r.Wrong[0]
			}
		})
		kills = append(kills, k)
		fmt.Fprintf(out, "mutant: %s: %s\n", m.name, k.verdict())
	}
	return kills, nil
}

func (k kill) verdict() string {
	if k.by == "" {
		return fmt.Sprintf("LIVES through %d cells", k.cells)
	}
	return "killed by " + k.by
}

// build builds the worker with the mutant's file in place of the real one.
func (m mutant) build(ctx context.Context, dir string, number int) (program string, err error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", err
	}
	source := filepath.Join(root, filepath.FromSlash(m.file))
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	changed, err := m.apply(string(text))
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("mutant-%d", number)
	replacement, overlay := filepath.Join(dir, name+".go"), filepath.Join(dir, name+".json")
	if err := os.WriteFile(replacement, []byte(changed), 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {source: replacement}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		return "", err
	}
	program = workerPath(dir, name)
	return program, buildWorker(ctx, program, "-tags", "faults", "-overlay", overlay)
}

// apply makes the edits. Each must fit exactly once: a mutant that no longer
// fits the source would kill nothing.
func (m mutant) apply(text string) (string, error) {
	for _, e := range m.edits {
		if n := strings.Count(text, e.old); n != 1 {
			return "", fmt.Errorf("%q is %d times in %s", e.old, n, m.file)
		}
		text = strings.Replace(text, e.old, e.new, 1)
	}
	return text, nil
}
