// Package hook is what the hooks of the adapters have in common: how a request
// is refused, how old it may be, and how much of an event is kept.
package hook

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// Unverified returns a [providers.ErrUnverified] that says why, in words of
// ours: nothing of the request or of a secret belongs there.
func Unverified(why string) error { return fmt.Errorf("%w: %s", providers.ErrUnverified, why) }

// Unreadable returns the error for a request that is the provider's and not in
// the form that it documents.
func Unreadable(what string) error {
	return errors.New("the request is from the provider, but " + what)
}

// CheckTime refuses a time of signing that is more than [providers.HookWindow]
// from now, in the past or in the future.
func CheckTime(signed, now time.Time) error {
	if age := now.Sub(signed).Abs(); age > providers.HookWindow {
		return Unverified("it is signed for a time that is more than 5 minutes from now")
	}
	return nil
}

// CheckSeconds is [CheckTime] for a time in seconds since 1970, in digits.
func CheckSeconds(seconds string, now time.Time) error {
	n, err := strconv.ParseUint(seconds, 10, 40)
	if err != nil {
		return Unverified("its timestamp is missing or not a number")
	}
	return CheckTime(time.Unix(int64(n), 0), now)
}

// Equal compares in a time that does not depend on where two texts differ, nor
// on their lengths being the same.
func Equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// Secrets returns the secrets of a list without the blanks around them. There
// are several while one replaces another. It refuses a list without any, and a
// secret that is empty or has a character that is not visible; the error says
// what they are and quotes none.
func Secrets(what string, list []string) ([]string, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("the %s is missing", what)
	}
	out := make([]string, len(list))
	for i, secret := range list {
		out[i] = strings.TrimSpace(secret)
		if err := providers.CheckSecret(what, out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}
