package providers_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tests := map[string]time.Duration{
		"":                              0,
		"0":                             0,
		"-5":                            0,
		"120":                           2 * time.Minute,
		" 7 ":                           7 * time.Second,
		"99999999999":                   24 * time.Hour,
		"99999999999999999999999":       0, // no number and no date
		"soon":                          0,
		"Sun, 01 Mar 2026 12:01:30 GMT": 90 * time.Second,
		"Sun, 01 Mar 2026 11:00:00 GMT": 0,
		"Fri, 01 Jan 2100 00:00:00 GMT": 24 * time.Hour,
	}
	for value, want := range tests {
		if got := providers.RetryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("Retry-After %q: %v, want %v", value, got, want)
		}
	}
}

func TestStatusTable(t *testing.T) {
	t.Parallel()
	table := providers.StatusTable{400: providers.Rejected, 429: providers.Deferred, 204: providers.Rejected}
	now := time.Now()
	for status := 100; status <= 999; status++ {
		e := table.Judge(providers.Reply{Status: status, Header: http.Header{"Retry-After": {"3"}}}, now)
		if status >= 200 && status <= 299 {
			// F3: a 2xx is accepted, whatever a table says.
			if e != nil {
				t.Errorf("status %d is not accepted: %v", status, e)
			}
			continue
		}
		if e == nil {
			t.Errorf("status %d is accepted (F2)", status)
			continue
		}
		if e.Outcome != table[status] || e.Status != status || e.RetryAfter != 3*time.Second {
			t.Errorf("status %d is %+v", status, e)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	got := providers.Redact("key SG.x refused, pass p refused", "SG.x", "", "pass")
	if want := "key [redacted] refused, [redacted] p refused"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
