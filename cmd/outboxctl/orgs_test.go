package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// An org is listed, paused, resumed and deleted, for people and for programs.
func TestOrgCommands(t *testing.T) {
	t.Parallel()
	ctl := onDatabase(t, "acme", "other")
	must := func(args ...string) string {
		t.Helper()
		out, errOut, code := ctl(args...)
		if code != 0 {
			t.Fatalf("%v: code %d\n%s%s", args, code, out, errOut)
		}
		return out
	}
	states := func() string {
		t.Helper()
		var orgs []orgView
		if err := json.Unmarshal([]byte(must("org", "list", "--json")), &orgs); err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, o := range orgs {
			list = append(list, strings.TrimSpace(o.Name+" "+o.State+" "+o.PausedReason))
		}
		return strings.Join(list, ", ")
	}

	must("org", "pause", "acme", "--reason", "wrong prices")
	if got := states(); got != "acme paused wrong prices, other active" {
		t.Errorf("paused: %s", got)
	}
	if out := must("org", "list"); !strings.Contains(out, "paused: wrong prices") {
		t.Errorf("the table does not say why:\n%s", out)
	}
	if out := must("org", "list"); !strings.Contains(out, "RETENTION") || !strings.Contains(out, "default") {
		t.Errorf("the table does not say how long content is kept:\n%s", out)
	}
	must("org", "resume", "acme")
	if got := states(); got != "acme active, other active" {
		t.Errorf("resumed: %s", got)
	}
	if out, errOut, code := ctl("org", "delete", "acme"); code == 0 || !strings.Contains(errOut, "--yes") {
		t.Errorf("delete without being sure: code %d\n%s%s", code, out, errOut)
	}
	must("org", "delete", "acme", "--yes")
	if got := states(); got != "other active" {
		t.Errorf("deleted: %s", got)
	}
	must("org", "create", "acme")
	for _, args := range [][]string{{"org", "pause", "acne"}, {"org", "resume", "acne"}, {"org", "delete", "acne", "--yes"}} {
		if _, errOut, code := ctl(args...); code == 0 || !strings.Contains(errOut, `no such org: "acne"`) {
			t.Errorf("%v: code %d, %s", args, code, errOut)
		}
	}
}
