package fakeesp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// Rule makes a fault happen for a while. Of all rules, the first that fits
// counts.
type Rule struct {
	// Fault is its name, see [Faults].
	Fault string `json:"fault"`
	// Provider narrows the rule to one.
	Provider string `json:"provider,omitempty"`
	// From and Until are times since the script was set. Without Until there
	// is no end.
	From  Duration `json:"from,omitzero"`
	Until Duration `json:"until,omitzero"`
	// First and Last count the provider's requests since the script was set,
	// from 1 and both included. Without Last there is no end.
	First int `json:"first,omitempty"`
	Last  int `json:"last,omitempty"`
	// Delay is how late a slow answer is, 5s by default.
	Delay Duration `json:"delay,omitzero"`
	// RetryAfter is what an answer asks for, 1s by default with a 429.
	RetryAfter Duration `json:"retry_after,omitzero"`
}

// Duration is a Go duration in JSON: "30s".
type Duration time.Duration

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed < 0 {
		return fmt.Errorf("%q is not a duration such as 30s", text)
	}
	*d = Duration(parsed)
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// ParseScript reads rules from a JSON array.
func ParseScript(text []byte) ([]Rule, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	rules := []Rule{}
	if err := decoder.Decode(&rules); err != nil {
		return nil, fmt.Errorf("the script is a JSON array of rules: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the script is one JSON array, and there is more behind it")
	}
	for i, r := range rules {
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return rules, nil
}

func (r Rule) check() error {
	if _, err := parseFault(r.Fault); err != nil {
		return err
	}
	switch {
	case r.Provider != "" && !slices.Contains(Providers(), r.Provider):
		return fmt.Errorf("there is no provider %q; it is one of %s", r.Provider, strings.Join(Providers(), ", "))
	case r.Until != 0 && r.Until <= r.From:
		return errors.New("until is not after from")
	case r.First < 0 || r.Last < 0 || r.Last != 0 && r.Last < r.First:
		return errors.New("first and last are counts from 1, and last is not before first")
	}
	return nil
}

// fits reports whether the rule holds for the n-th request of a provider, so
// long after the script was set.
func (r Rule) fits(provider string, n int, after time.Duration) bool {
	return (r.Provider == "" || r.Provider == provider) &&
		after >= time.Duration(r.From) && (r.Until == 0 || after < time.Duration(r.Until)) &&
		n >= r.First && (r.Last == 0 || n <= r.Last)
}

// fault returns what the rule makes happen.
func (r Rule) fault() fault {
	f, _ := parseFault(r.Fault) // checked when the script was read
	if r.Delay > 0 {
		f.delay = time.Duration(r.Delay)
	}
	if r.RetryAfter > 0 {
		f.retryAfter = time.Duration(r.RetryAfter)
	}
	return f
}

// script is the rules in force.
type script struct {
	now func() time.Time

	mu    sync.Mutex
	rules []Rule
	since time.Time
	count map[string]int
}

// set puts rules in force; their clock and counts begin.
func (s *script) set(rules []Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules, s.since, s.count = rules, s.now(), map[string]int{}
}

// current returns the rules in force.
func (s *script) current() []Rule {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.rules)
}

// fault counts a request and returns the fault that the script has for it.
func (s *script) fault(provider string) (fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[provider]++
	for _, r := range s.rules {
		if r.fits(provider, s.count[provider], s.now().Sub(s.since)) {
			return r.fault(), true
		}
	}
	return fault{}, false
}
