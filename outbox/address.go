package outbox

import (
	"errors"
	"mime"
	"net/mail"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"github.com/outboxd/outboxd/providers"
)

// Lengths from RFC 5321, 4.5.3.1: a local part has at most 64 octets, a path
// 256 with its angle brackets. With the name it has to fit into a line (RFC
// 5322, 2.1.1), and reading a longer one is work that a client can multiply.
const (
	maxMailbox   = 998
	maxLocalPart = 64
	maxAddress   = 254
)

// parseAddress reads addr or Name <addr>. It is more lenient than RFC 5322 in
// one place: people write display names with commas and without quotes
// ("Müller, Jürgen <j@example.com>"), and the last angle bracket leaves no doubt
// what is meant. The domain becomes its ASCII form.
func parseAddress(s string) (providers.Address, error) {
	if len(s) > maxMailbox {
		return providers.Address{}, errors.New("is too long for an email address")
	}
	if hasControl(s) {
		return providers.Address{}, errors.New(noControl)
	}
	s = strings.TrimSpace(s)
	name, addr := "", s
	if strings.HasSuffix(s, ">") {
		open := strings.LastIndexByte(s, '<')
		if open < 0 {
			return providers.Address{}, errors.New("has a > without a <")
		}
		name, addr = displayName(s[:open]), s[open+1:len(s)-1]
	}
	addr, err := normalizeAddress(addr)
	if err != nil {
		return providers.Address{}, err
	}
	return providers.Address{Name: name, Email: addr}, nil
}

// displayName undoes quotes and encoded words, which the renderer would
// otherwise encode a second time.
func displayName(s string) string {
	s = strings.TrimSpace(s)
	// An encoded word can hide a line feed: then it stays as it is.
	if quoted, err := mail.ParseAddress(s + " <a@example.com>"); err == nil && !hasControl(quoted.Name) {
		return quoted.Name
	}
	if decoded, err := new(mime.WordDecoder).DecodeHeader(s); err == nil && !hasControl(decoded) {
		return decoded
	}
	return s
}

func normalizeAddress(addr string) (string, error) {
	// The last @ ends the local part: a quoted one may hold others.
	at := strings.LastIndexByte(addr, '@')
	if at <= 0 {
		return "", errors.New("is not an email address")
	}
	local, domain := addr[:at], strings.TrimSuffix(addr[at+1:], ".")
	ascii, err := idna.Lookup.ToASCII(domain)
	if err != nil || !strings.Contains(ascii, ".") && ascii != "localhost" {
		return "", errors.New("has no valid domain")
	}
	parsed, err := mail.ParseAddress("<" + local + "@" + ascii + ">")
	if err != nil || strings.ContainsAny(local, "<> \t") {
		return "", errors.New("is not an email address")
	}
	if len(local) > maxLocalPart || len(parsed.Address) > maxAddress {
		return "", errors.New("is too long for an email address")
	}
	return local + "@" + ascii, nil
}

const noControl = "must be UTF-8 without control characters"

// hasControl reports whether s holds a character that must not reach a
// header: CR and LF would begin another one (RFC 5322, 2.2). Bytes that are no
// character at all count: encoding/json would repair them in silence.
func hasControl(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) || strings.ContainsAny(s, "\u2028\u2029")
}

// normalized is an address as it is compared and searched by: bare and in lower
// case. Its domain is in ASCII already.
func normalized(address providers.Address) string { return strings.ToLower(address.Email) }

// searchable returns the bare recipients in lower case, each once.
func (m *Message) searchable() []string {
	var found []string
	for _, list := range [][]string{m.To, m.Cc, m.Bcc} {
		for _, s := range list {
			address, err := parseAddress(s)
			if err != nil {
				continue
			}
			if bare := normalized(address); !slices.Contains(found, bare) {
				found = append(found, bare)
			}
		}
	}
	return found
}

// AddressDomain returns the domain of addr or Name <addr>, in ASCII and lower
// case.
func AddressDomain(address string) (string, error) {
	parsed, err := parseAddress(address)
	if err != nil {
		return "", err
	}
	return strings.ToLower(parsed.Email[strings.LastIndexByte(parsed.Email, '@')+1:]), nil
}
