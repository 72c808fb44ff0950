package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// The retention is set and listed, and what is none is refused by the command line.
func TestOrgRetentionCommand(t *testing.T) {
	t.Parallel()
	ctl := onDatabase(t, "acme")
	for _, good := range []string{"7d", "36h", "1h30m", "off", "default"} {
		if out, errOut, code := ctl("org", "retention", "acme", good); code != 0 || !strings.HasPrefix(out, "acme: content is ") {
			t.Errorf("%s: code %d: %s%s", good, code, out, errOut)
		}
		var set struct {
			Retention string `json:"content_retention"`
		}
		out, errOut, _ := ctl("org", "retention", "acme", good, "--json")
		if err := json.Unmarshal([]byte(out), &set); err != nil || set.Retention != good {
			t.Errorf("%s: %v, %s%s", good, err, out, errOut)
		}
		var orgs []orgView
		out, errOut, _ = ctl("org", "list", "--json")
		if err := json.Unmarshal([]byte(out), &orgs); err != nil || orgs[0].ContentRetention != good {
			t.Errorf("%s is listed as %+v: %v, %s", good, orgs, err, errOut)
		}
	}
	for _, bad := range []string{"0", "59m", "-1d", "7", "forever", ""} {
		if _, _, code := ctl("org", "retention", "acme", "--", bad); code != 2 {
			t.Errorf("%q: code %d, want 2", bad, code)
		}
	}
	if _, errOut, code := ctl("org", "retention", "nobody", "7d"); code != 1 || !strings.Contains(errOut, `no such org: "nobody"`) {
		t.Errorf("code %d for an org that is not there: %s", code, errOut)
	}
	if _, _, code := ctl("org", "retention", "acme"); code != 2 {
		t.Errorf("code %d without a retention, want 2", code)
	}
}
