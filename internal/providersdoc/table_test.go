package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const results = `{"Action":"start","Package":"m/providers/smtp"}
{"Action":"attr","Package":"m/providers/smtp","Test":"TestConformance","Key":"provider","Value":"smtp"}
{"Action":"attr","Package":"m/providers/smtp","Test":"TestConformance","Key":"preparer","Value":"true"}
{"Action":"attr","Package":"m/providers/smtp","Test":"TestConformance","Key":"max_recipients","Value":"0"}
{"Action":"skip","Package":"m/providers/smtp","Test":"TestConformance/HTTP"}
{"Action":"pass","Package":"m/providers/smtp","Test":"TestConformance/no_secret"}
{"Action":"pass","Package":"m/providers/smtp","Test":"TestConformance"}
{"Action":"attr","Package":"m/examples/a","Test":"TestConformance","Key":"key_window","Value":"24h0m0s"}
{"Action":"attr","Package":"m/examples/a","Test":"TestConformance","Key":"max_bytes","Value":"31457280"}
{"Action":"attr","Package":"m/examples/a","Test":"TestConformance","Key":"definite","Value":"rejected 400"}
{"Action":"fail","Package":"m/examples/a","Test":"TestConformance/HTTP/a_reset"}
{"Action":"fail","Package":"m/examples/a","Test":"TestConformance/HTTP"}
{"Action":"skip","Package":"m/examples/a","Test":"TestConformance/no_secret/at_all"}
{"Action":"pass","Package":"m/examples/a","Test":"TestConformance/no_secret"}
{"Action":"pass","Package":"m/examples/a","Test":"TestOther"}
`

func TestTables(t *testing.T) {
	t.Parallel()
	adapters, err := read(strings.NewReader(results))
	if err != nil {
		t.Fatal(err)
	}
	want := `| check | smtp | a |
|---|---|---|
| no secret | ✓ | (✓) |
| HTTP: a reset | – | **✗** |
| new | ? | ? |
`
	if diff := cmp.Diff(want, conformance(adapters, []string{"no secret", "HTTP/a reset", "new"})); diff != "" {
		t.Error(diff)
	}
	want = "| `smtp` | none | no | yes | no known bound | no known bound | no |  |\n" +
		"| `a` | 24 h | no | no | 30 MiB |  | no | rejected 400 |\n"
	if got := capabilities(adapters); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%swant at its end\n%s", got, want)
	}
	if err := failures(adapters); err == nil || !strings.Contains(err.Error(), "a: HTTP/a_reset failed") {
		t.Errorf("failures: %v", err)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "providers.md")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a\n<!-- adapters: written by `make providers` -->\nold\n<!-- /adapters -->\nb\n" +
		"<!-- conformance: written by `make providers` -->\n<!-- /conformance -->\nc\n")
	if err := run(strings.NewReader(results), path); err == nil || !strings.Contains(err.Error(), "failed") {
		t.Errorf("error %v, want the failed check", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a\n<!--", "-->\nb\n<!--", "-->\nc\n", "| `smtp` |", "| check |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the file lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "old") {
		t.Error("the old table is still there")
	}
	write("no markers")
	if err := run(strings.NewReader(results), path); err == nil || !strings.Contains(err.Error(), "markers") {
		t.Errorf("error %v, want missing markers", err)
	}
	if err := run(strings.NewReader("x"), path); err == nil || !strings.Contains(err.Error(), "go test -json") {
		t.Errorf("error %v, want one about the input", err)
	}
	if err := run(strings.NewReader(""), path); err == nil {
		t.Error("nothing ran, want an error")
	}
}
