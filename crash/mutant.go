package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// mutant is a bug that somebody could put in. It is built from the source with
// a few lines replaced, which touches no file of the tree.
type mutant struct {
	name string
	patch
	// cells are where it should show; one red is enough. Empty: it needs what
	// no cell has, and test finds it.
	cells string
	test  suiteTest
}

// suiteTest is a test of the project's suite.
type suiteTest struct{ pkg, name string }

// mutants are the bugs that the matrix must find.
var mutants = []mutant{
	{
		name: "a new key for each take-over",
		patch: patch{"outbox/doubt.go", []edit{
			{"d.render(e, p, message, e.open.Key, e.open.BeganAt)", "d.render(e, p, message, newID(), e.open.BeganAt)"},
			{"!bytes.Equal(a.payloadHash[:], e.open.PayloadHash)", "bytes.Equal(a.payloadHash[:], nil)"},
		}},
		cells: "B7/sigkill/key/*,B8/sigkill/key/*",
	},
	{
		name: "Finish changes an attempt that is closed or somebody else's",
		patch: patch{"outbox/attempt.go", []edit{{
			"AND a.provider_key = i.provider_key AND a.stage = 'sending'\n        AND (a.worker = i.worker OR i.stage = 'accepted')",
			"AND a.provider_key = i.provider_key",
		}}},
		cells: "B4/sigstop/plain/retry,B4/sigstop/plain/drop",
	},
	{
		name: "Begin after the send",
		patch: patch{"outbox/deliver.go", []edit{
			{"begun, err := d.begin(ctx, a.beginning)", "receipt, failure := send(ctx)\n\tbegun, err := d.begin(ctx, a.beginning)"},
			{
				"return d.send(ctx, a, send)\n}\n\n// send hands",
				"return d.send(ctx, a, func(context.Context) (providers.Receipt, error) { return receipt, failure })\n}\n\n// send hands",
			},
		}},
		cells: "B7/sigkill/plain/retry,B7/sigkill/key/*",
	},
	{
		name: "a 503 of SendGrid counts as refused",
		patch: patch{"providers/sendgrid/provider.go", []edit{{
			"http.StatusTooManyRequests:       providers.Deferred,",
			"http.StatusTooManyRequests:       providers.Deferred,\n\thttp.StatusServiceUnavailable: providers.Deferred,",
		}}},
		cells: "B7/503/plain,B7/503/lag,B7/503/search",
	},
	{
		name: "another attempt while in doubt (failover in doubt)",
		patch: patch{"outbox/outcome.go", []edit{{
			"e.stage, e.status, e.evidence = StageSending, StatusUnknown, \"\"\n\t\te.reason = reasonInDoubt",
			"e.stage, e.status, e.nextAttempt = StageDeferred, StatusQueued, time.Second",
		}}},
		cells: "B7/reset/plain/*,B7/reset/key/*",
	},
	{
		name:  "a resend after a doubt is not flagged",
		patch: patch{"outbox/attempt.go", []edit{{"WHERE u.email_id = e.id AND u.stage = 'unknown'", "WHERE u.email_id = e.id AND u.stage = 'never'"}}},
		cells: "B7/sigkill/plain/retry,B4/sigkill/plain/retry",
	},
	{
		name:  "no look at the deadline before the last byte",
		patch: patch{"outbox/deliver.go", []edit{{"return a.deadline.check()", "return nil"}}},
		cells: "B4/sigstop/plain/*",
	},
	{
		name: "the message is rendered as of now, not as of the attempt",
		patch: patch{"providers/resend/render.go", []edit{
			{"\t\"regexp\"\n", "\t\"regexp\"\n\t\"time\"\n"},
			{"Headers: headers(m.Headers),", "Headers: headers(append(m.Headers, providers.Header{Name: \"X-At\", Value: time.Now().String()})),"},
		}},
		cells: "B7/sigkill/key/*,B8/sigkill/key/*",
	},
	{
		name:  "an event about an attempt under way is no evidence",
		patch: patch{"outbox/doubt.go", []edit{{"if e.open.Reported {", "if false {"}}},
		cells: "B11/early/plain/*",
	},
	{
		name:  "events are told apart by their id alone",
		patch: patch{"outbox/record.go", []edit{{"ON CONFLICT DO NOTHING\nRETURNING id`", "ON CONFLICT (id) DO NOTHING\nRETURNING id`"}}},
		test:  suiteTest{"./outbox", "TestF22ShuffledCopiesOfEvents"},
	},
	{
		name:  "River goes by the clock of its process",
		patch: patch{"outbox/membership.go", []edit{{"config.Test.Time = &session.clock", "_ = &session.clock"}}},
		cells: "B4/ahead/plain/*",
	},
	{
		name: "net/http may repeat a request (GetBody left set)",
		patch: patch{"providers/http.go", []edit{
			{"\t\"sync\"\n", "\t\"strings\"\n\t\"sync\"\n"},
			{"req.GetBody = nil", "req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(strings.Repeat(\" \", size))), nil }"},
		}},
		test: suiteTest{"./providers", "TestPostIsMadeOnceWithAnIdempotencyKey"},
	},
	{
		name:  "the purge looks at a key's date and not at its email",
		patch: patch{"outbox/retention.go", []edit{{"e.ended_at IS NULL OR e.ended_at >", "e.ended_at >"}}},
		test:  suiteTest{"./outbox", "TestIdempotencyTable"},
	},
}

// kill is what became of a mutant.
type kill struct {
	mutant string
	// by is the first cell that turned red, or the test that failed, and what was
	// wrong; empty: it lives.
	by, wrong string
	// tried is what should have found it.
	tried string
}

// mutantBound is how long the recovery of a mutant may take: none of its cells
// waits for more than the end of a doubt.
const mutantBound = time.Minute

// hunt runs the mutants, one after the other.
func (l *lab) hunt(ctx context.Context, dir string, parallel int, out io.Writer) ([]kill, error) {
	var kills []kill
	for i, m := range mutants {
		k, err := l.huntOne(ctx, m, filepath.Join(dir, fmt.Sprintf("mutant-%d", i)), parallel)
		if err != nil {
			return nil, fmt.Errorf("mutant %q: %w", m.name, err)
		}
		kills = append(kills, k)
		fmt.Fprintf(out, "mutant: %s: %s\n", m.name, k.verdict())
	}
	return kills, nil
}

func (l *lab) huntOne(ctx context.Context, m mutant, path string, parallel int) (kill, error) {
	if m.cells == "" {
		return l.huntInSuite(ctx, m, path)
	}
	return l.huntInMatrix(ctx, m, path, parallel)
}

func (l *lab) huntInMatrix(ctx context.Context, m mutant, path string, parallel int) (kill, error) {
	cells := Select(Matrix(), m.cells)
	sick := *l
	sick.program, sick.shifted, sick.bound = path, path, mutantBound
	build := buildPatched
	if shiftsClocks(cells) {
		build = buildShifted
	}
	if err := build(ctx, path, m.patch); err != nil {
		return kill{}, err
	}
	k := kill{mutant: m.name, tried: fmt.Sprintf("%d cells", len(cells))}
	sick.runAll(ctx, cells, parallel, func(r Result) {
		if r.Verdict == Red && k.by == "" {
			k.by, k.wrong = r.Cell.String(), r.Wrong[0]
		}
	})
	return k, nil
}

func (l *lab) huntInSuite(ctx context.Context, m mutant, path string) (kill, error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return kill{}, err
	}
	list, err := overlay(ctx, path, m.patch)
	if err != nil {
		return kill{}, err
	}
	// Built first, so that a mutant that does not compile is not taken for a
	// failed test.
	build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", list, "-o", path, m.test.pkg)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return kill{}, fmt.Errorf("build the test: %w\n%s", err, out)
	}
	s := <-l.shared
	defer func() { l.shared <- s }()
	test := exec.CommandContext(ctx, path, "-test.run", "^"+m.test.name+"$")
	test.Dir = filepath.Dir(path) // for what a test that fails leaves behind
	test.Env = append(os.Environ(), "DATABASE_URL="+s.url.String())
	k := kill{mutant: m.name, tried: m.test.name}
	out, err := test.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); !failed {
		return k, err
	}
	// The lines of a failed test: its name, then what it said.
	_, said, found := strings.Cut(string(out), "--- FAIL: "+m.test.name)
	if !found {
		return kill{}, fmt.Errorf("%s did not run: %w\n%s", m.test.name, err, out)
	}
	k.by, k.wrong = m.test.name, firstComplaint(said)
	return k, nil
}

// firstComplaint is the first line of a test's output that is not about a
// subtest.
func firstComplaint(said string) string {
	for line := range strings.Lines(said) {
		if _, text, found := strings.Cut(line, "_test.go:"); found {
			return strings.TrimSpace(strings.TrimLeft(text, "0123456789:"))
		}
	}
	return ""
}

func (k kill) verdict() string {
	if k.by == "" {
		return "LIVES through " + k.tried
	}
	return "killed by " + k.by
}
