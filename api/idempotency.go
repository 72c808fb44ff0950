package api

import (
	"bytes"
	"net/http"
	"strings"
)

// idempotencyKey reads the header: 1 to 255 printable ASCII characters. The
// standard's form is a quoted string (draft-ietf-httpapi-idempotency-key-header);
// quoted and bare are the same key.
func idempotencyKey(r *http.Request) (string, error) {
	malformed := problem(http.StatusBadRequest, "invalid_idempotency_key",
		"Idempotency-Key must be 1 to 255 printable ASCII characters.")
	values := r.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", malformed
	}
	key := strings.Trim(values[0], " \t")
	if strings.HasPrefix(key, `"`) {
		var ok bool
		if key, ok = unquote(key); !ok {
			return "", malformed
		}
	}
	if key == "" || len(key) > 255 || bytes.ContainsFunc([]byte(key), func(c rune) bool { return c < ' ' || c > '~' }) {
		return "", malformed
	}
	return key, nil
}

// unquote reads a structured-field string (RFC 8941, 3.3.3).
func unquote(quoted string) (string, bool) {
	var out strings.Builder
	for i := 1; i < len(quoted); i++ {
		switch c := quoted[i]; c {
		case '"':
			return out.String(), i == len(quoted)-1
		case '\\':
			i++
			if i == len(quoted) || quoted[i] != '"' && quoted[i] != '\\' {
				return "", false
			}
			out.WriteByte(quoted[i])
		default:
			out.WriteByte(c)
		}
	}
	return "", false
}
