package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// command runs outboxctl on a database.
type command func(args ...string) (out, errOut string, code int)

func onDatabase(t *testing.T, orgs ...string) command {
	t.Helper()
	url := testdb.URL(t)
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, org := range orgs {
		if _, err := api.CreateOrg(context.Background(), pool, api.Org{Name: org}); err != nil {
			t.Fatal(err)
		}
	}
	return func(args ...string) (string, string, int) {
		var out, errOut strings.Builder
		code := run(append([]string{"--database-url", url}, args...), &out, &errOut)
		return out.String(), errOut.String(), code
	}
}

// Addresses are added, listed and removed, one org beside the other, for people
// and for programs.
func TestSuppressionsCommand(t *testing.T) {
	t.Parallel()
	ctl := onDatabase(t, "acme", "other")
	addresses := func(org string) (list []string) {
		t.Helper()
		out, errOut, code := ctl("suppressions", "list", "--org", org, "--json")
		var rows []struct{ Address, Reason, Detail string }
		if err := json.Unmarshal([]byte(out), &rows); code != 0 || err != nil {
			t.Fatalf("code %d, %v: %s%s", code, err, out, errOut)
		}
		for _, row := range rows {
			if !strings.HasPrefix(row.Detail, "by outboxctl") {
				t.Errorf("detail %q does not say who", row.Detail)
			}
			list = append(list, row.Address+" "+row.Reason)
		}
		return list
	}
	if out, errOut, code := ctl("suppressions", "add", "--org", "acme", "Joe@Example.org", "ann@müller.example"); code != 0 || !strings.Contains(out, "manual       joe@example.org") {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
	out, errOut, code := ctl("suppressions", "add", "--org", "acme", "--reason", "hard_bounce", "--json", "zoe@example.org")
	if code != 0 || !strings.Contains(out, `"reason": "hard_bounce"`) {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
	want := "ann@xn--mller-kva.example manual,joe@example.org manual,zoe@example.org hard_bounce"
	if got := strings.Join(addresses("acme"), ","); got != want {
		t.Errorf("acme has %s, want %s", got, want)
	}
	if got := addresses("other"); got != nil {
		t.Errorf("the other org has %v", got)
	}
	if _, errOut, code := ctl("suppressions", "remove", "--org", "acme", "JOE@example.org", "ann@müller.example"); code != 0 {
		t.Errorf("code %d: %s", code, errOut)
	}
	if got := strings.Join(addresses("acme"), ","); got != "zoe@example.org hard_bounce" {
		t.Errorf("acme has %s", got)
	}
}

func TestSuppressionsCommandErrors(t *testing.T) {
	t.Parallel()
	ctl := onDatabase(t, "acme")
	for want, args := range map[string][]string{
		`no org "nobody"`:           {"list", "--org", "nobody"},
		"--org":                     {"list"},
		"not an email address":      {"add", "--org", "acme", "nobody"},
		"--reason must be one of":   {"add", "--org", "acme", "--reason", "spite", "a@example.org"},
		"address is not suppressed": {"remove", "--org", "acme", "a@example.org"},
	} {
		if _, errOut, code := ctl(append([]string{"suppressions"}, args...)...); code == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%v: code %d, %s", args, code, errOut)
		}
	}
}

func TestRotateSecretCommand(t *testing.T) {
	t.Parallel()
	ctl := onDatabase(t)
	first, _, code := ctl("suppressions", "rotate-secret")
	second, _, again := ctl("suppressions", "rotate-secret", "--json")
	if code != 0 || again != 0 || !strings.Contains(first, "from a minute on") || !strings.Contains(second, `"id":`) {
		t.Errorf("codes %d and %d: %s%s", code, again, first, second)
	}
}
