package app

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

// off is how limits are written that do not limit.
const off = "off"

// Limit is a rate that off switches off.
type Limit api.Rate

// maxRate is where a rate is no limit any more: one in a microsecond.
const maxRate = 1_000_000

// UnmarshalText implements [encoding.TextUnmarshaler].
func (l *Limit) UnmarshalText(text []byte) error {
	if string(text) == off {
		*l = Limit{}
		return nil
	}
	n, per, err := parseRate(string(text))
	if err != nil || n > maxRate {
		return fmt.Errorf("%q is not a rate such as 100/s, 600/m or 5000/h, up to %d, nor off", text, maxRate)
	}
	*l = Limit{Count: n, Per: per}
	return nil
}

// Quota is a number of emails; zero: off.
type Quota int

// UnmarshalText implements [encoding.TextUnmarshaler].
func (q *Quota) UnmarshalText(text []byte) error {
	if string(text) == off {
		*q = 0
		return nil
	}
	n, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is not a number of emails from 1, nor off", text)
	}
	*q = Quota(n)
	return nil
}

// Retention is how long content is kept after an email's end. Off: for ever.
type Retention time.Duration

// minRetention is enough for webhooks to be told with addresses, and keeps a slip
// such as 30m for a month from removing what cannot be had back.
const minRetention = time.Hour

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *Retention) UnmarshalText(text []byte) error {
	if string(text) == off {
		*r = Retention(outbox.KeepContent)
		return nil
	}
	var d Duration
	if err := d.UnmarshalText(text); err != nil || d.D() < minRetention {
		return fmt.Errorf("%q is not a duration such as 30d or 12h, of at least 1h, nor off", text)
	}
	*r = Retention(d)
	return nil
}

// D returns the retention as the package outbox takes it.
func (r Retention) D() time.Duration { return time.Duration(r) }

// String returns the retention as it is set.
func (r Retention) String() string {
	const day = 24 * time.Hour
	switch {
	case r < 0:
		return off
	case r.D()%day == 0:
		return strconv.Itoa(int(r.D()/day)) + "d"
	}
	text := r.D().String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// Size is a number of bytes: 512KB, 10MB. A kB has 1024.
type Size int64

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Size) UnmarshalText(text []byte) error {
	number, shift := strings.ToUpper(string(text)), 0
	for suffix, by := range map[string]int{"KB": 10, "MB": 20} {
		if rest, ok := strings.CutSuffix(number, suffix); ok {
			number, shift = rest, by
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return fmt.Errorf("%q is not a size such as 512KB or 10MB", text)
	}
	*s = Size(n << shift)
	return nil
}

// String implements [fmt.Stringer].
func (s Size) String() string { return strconv.FormatInt(int64(s)>>10, 10) + "KB" }

func (c *Config) checkLimits() (errs []error) {
	if c.MaxBody < api.MinMaxBody || c.MaxBody > api.MaxMaxBody {
		errs = append(errs, fmt.Errorf("OUTBOXD_MAX_BODY is %v; use %v to %v", c.MaxBody, Size(api.MinMaxBody), Size(api.MaxMaxBody)))
	}
	if c.MaxConnections < 1 {
		errs = append(errs, fmt.Errorf("OUTBOXD_MAX_CONNECTIONS is %d; use 1 or more", c.MaxConnections))
	}
	return errs
}
