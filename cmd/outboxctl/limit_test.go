package main

import "testing"

// The number is set, and what is none is refused by the command line.
func TestOrgLimitCommand(t *testing.T) {
	t.Parallel()
	ctl := onDatabase(t, "acme")
	for _, good := range []string{"1", "2147483647", "off", "default"} {
		if out, errOut, code := ctl("org", "limit", "acme", "--max-queued", good); code != 0 {
			t.Errorf("%s: code %d: %s%s", good, code, out, errOut)
		}
	}
	for _, bad := range []string{"0", "-1", "2147483648", "many", ""} {
		if _, _, code := ctl("org", "limit", "acme", "--max-queued="+bad); code != 2 {
			t.Errorf("%q: code %d, want 2", bad, code)
		}
	}
	if _, errOut, code := ctl("org", "limit", "nobody", "--max-queued", "5"); code != 1 {
		t.Errorf("code %d for an org that is not there: %s", code, errOut)
	}
	if _, _, code := ctl("org", "limit", "acme"); code != 2 {
		t.Errorf("code %d without a number, want 2", code)
	}
}
