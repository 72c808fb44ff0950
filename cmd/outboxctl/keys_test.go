package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/api"
)

// must runs a command that succeeds.
func (ctl command) must(t *testing.T, args ...string) string {
	t.Helper()
	out, errOut, code := ctl(args...)
	if code != 0 {
		t.Fatalf("%v: code %d\n%s%s", args, code, out, errOut)
	}
	return out
}

func (ctl command) mustJSON(t *testing.T, into any, args ...string) {
	t.Helper()
	out := ctl.must(t, append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("%v: %v in %s", args, err, out)
	}
}

// lastLine is where scripts find a new key.
func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

// keyStates are the states of the keys of an org, by id; empty: of all orgs.
func (ctl command) keyStates(t *testing.T, org string) map[string]string {
	t.Helper()
	args := []string{"key", "list"}
	if org != "" {
		args = append(args, "--org", org)
	}
	var keys []api.KeyDetail
	ctl.mustJSON(t, &keys, args...)
	states := map[string]string{}
	for _, k := range keys {
		states[k.ID] = string(k.State)
	}
	return states
}

func idOf(token string) string { return strings.Split(token, "_")[1] }

// A key is created, listed, rotated and revoked, for people and for programs.
func TestKeyCommands(t *testing.T) {
	t.Parallel()
	ctl := onDatabase(t, "acme", "other")
	if out := ctl.must(t, "key", "list"); !strings.Contains(out, "outboxctl key create") {
		t.Errorf("without a key: %s", out)
	}
	old := lastLine(ctl.must(t, "key", "create", "--org", "acme", "--name", "shop", "--from-domain", "Example.com"))
	foreign := lastLine(ctl.must(t, "key", "create", "--org", "other"))
	if states := ctl.keyStates(t, "acme"); len(states) != 1 || states[idOf(old)] != "active" {
		t.Errorf("keys of acme: %v", states)
	}
	if states := ctl.keyStates(t, ""); len(states) != 2 || states[idOf(foreign)] != "active" {
		t.Errorf("all keys: %v", states)
	}
	table := ctl.must(t, "key", "list")
	for _, want := range []string{idOf(old), "acme", "shop", "active", "send,read", "example.com", "never"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}

	next := lastLine(ctl.must(t, "key", "rotate", idOf(old), "--overlap", "7d"))
	states := ctl.keyStates(t, "acme")
	if states[idOf(old)] != "rotating" || states[idOf(next)] != "active" {
		t.Errorf("after the rotation of %s: %v", old, states)
	}
	table = ctl.must(t, "key", "list", "--org", "acme")
	if !strings.Contains(table, "rotating until 2") || !strings.Contains(table, "replaced by "+idOf(next)) {
		t.Errorf("the table does not say until when:\n%s", table)
	}

	var rotated api.Rotated
	ctl.mustJSON(t, &rotated, "key", "rotate", idOf(next), "--overlap", "0s")
	if rotated.Replaces != idOf(next) || idOf(rotated.Key) != rotated.ID || ctl.keyStates(t, "acme")[idOf(next)] != "revoked" {
		t.Errorf("rotated at once: %+v, %v", rotated, ctl.keyStates(t, "acme"))
	}
	var revoked, again api.Revoked
	ctl.mustJSON(t, &revoked, "key", "revoke", rotated.ID)
	ctl.mustJSON(t, &again, "key", "revoke", rotated.Key) // the whole key does, too
	if revoked.ID != rotated.ID || !again.RevokedAt.Equal(revoked.RevokedAt) || ctl.keyStates(t, "acme")[rotated.ID] != "revoked" {
		t.Errorf("revoked: %+v, again %+v", revoked, again)
	}
	if out := ctl.must(t, "key", "revoke", rotated.ID); strings.Contains(out, rotated.Key) || !strings.Contains(out, "is void since") {
		t.Errorf("revoke says %s", out)
	}
}

func TestKeyCommandErrors(t *testing.T) {
	t.Parallel()
	ctl := onDatabase(t, "acme")
	revoked := idOf(lastLine(ctl.must(t, "key", "create", "--org", "acme")))
	ctl.must(t, "key", "revoke", revoked)
	for want, args := range map[string][]string{
		`no org "nobody": create it with`:         {"list", "--org", "nobody"},
		`no org "someone": create it`:             {"create", "--org", "someone"},
		`"*.example.com" is not a domain`:         {"create", "--org", "acme", "--from-domain", "*.example.com"},
		"which is past":                           {"create", "--org", "acme", "--expires", "2020-01-01T00:00:00Z"},
		`no scope "write"`:                        {"create", "--org", "acme", "--scopes", "write"},
		"no such API key: nobody; `outboxctl key": {"rotate", "nobody"},
		"no such API key: noone":                  {"revoke", "noone"},
		"is revoked: make a new one":              {"rotate", revoked},
		"must not be negative":                    {"rotate", revoked, "--overlap=-1h"},
		"is not a duration":                       {"rotate", revoked, "--overlap", "soon"},
	} {
		if _, errOut, code := ctl(append([]string{"key"}, args...)...); code == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%v: code %d, %s", args, code, errOut)
		}
	}
	if states := ctl.keyStates(t, ""); len(states) != 1 {
		t.Errorf("keys: %v", states)
	}
}
