package providers

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// BaseURL parses the base URL of an HTTP API: fallback where none is
// configured. It is http or https with a host, perhaps a path, and nothing
// else: credentials and parameters have a place of their own. Errors do not
// quote the URL, because people put secrets into it.
func BaseURL(configured, fallback string) (*url.URL, error) {
	if configured == "" {
		configured = fallback
	}
	base, err := url.Parse(configured)
	if err != nil || base.Host == "" || (base.Scheme != "https" && base.Scheme != "http") {
		return nil, errors.New("the base URL is not an http or https URL")
	}
	if base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, errors.New("the base URL has more than a host and a path")
	}
	return base, nil
}

// CheckSecret refuses a secret that is missing or that no header can carry,
// such as one with the line end of the file that it was read from. The error
// says what it is, for example "API key", and does not quote it.
func CheckSecret(what, secret string) error {
	if secret == "" || strings.ContainsFunc(secret, notVisible) {
		return fmt.Errorf("the %s is missing or has a character that no header can carry", what)
	}
	return nil
}

// notVisible reports whether r is no visible ASCII character.
func notVisible(r rune) bool { return r <= ' ' || r > '~' }
