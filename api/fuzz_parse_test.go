package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/api"
)

// FuzzAPIKey: an API key has one id and one secret, and is nothing but them.
func FuzzAPIKey(f *testing.F) {
	secret := strings.Repeat("s", 32)
	for _, token := range []string{
		"ob_id_" + secret, "ob_id_" + secret + "\n", "ob__" + secret, "ob_a_b_" + secret, "OB_id_" + secret, " ob_id_" + secret, "ob_é_" + secret,
		"ob_id_" + strings.Repeat("s", 129), "ob_" + strings.Repeat("i", 33) + "_" + secret, "ob_id_\x00" + secret, "", "ob_", "re_123",
	} {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		id, secret, ok := api.SplitKey(token)
		if !ok {
			return
		}
		if token != "ob_"+id+"_"+secret || len(secret) < 32 || len(id) == 0 || len(token) > 200 {
			t.Fatalf("%q is %q and %q", token, id, secret)
		}
		if strings.ContainsFunc(id+secret, func(c rune) bool { return !strings.ContainsRune(api.KeyAlphabet, c) }) {
			t.Fatalf("%q is taken", token)
		}
	})
}

// FuzzDecodeBatch: a batch is refused as the client's fault or has as many
// emails as another decoder counts; each is the same as by itself.
func FuzzDecodeBatch(f *testing.F) {
	for _, body := range bodies {
		f.Add([]byte("[" + body + "]"))
		f.Add([]byte("[" + body + "," + simple + "]"))
	}
	f.Add([]byte(many(101, "{}")))
	f.Add([]byte(many(100, "{}")))
	f.Add([]byte("[]"))
	f.Fuzz(func(t *testing.T, body []byte) {
		messages, refused, err := api.DecodeBatch(body)
		if err != nil {
			checkRefusal(t, err)
			return
		}
		var items []json.RawMessage
		if err := json.Unmarshal(body, &items); err != nil || len(items) != messages {
			t.Fatalf("%d emails, %d by encoding/json (%v)", messages, len(items), err)
		}
		for i, item := range items {
			_, err := api.DecodeEmail(item)
			if (err != nil) != refused[i] {
				t.Fatalf("email %d is refused: %v; by itself: %v", i, refused[i], err)
			}
		}
	})
}

// FuzzDepth: what is refused for its depth is so deep, by another decoder.
func FuzzDepth(f *testing.F) {
	for _, body := range bodies {
		f.Add([]byte(body))
	}
	f.Add([]byte(strings.Repeat("[", api.MaxDepth) + strings.Repeat("]", api.MaxDepth)))
	f.Add([]byte(strings.Repeat(`{"a\\\"[":`, api.MaxDepth+1) + "1" + strings.Repeat("}", api.MaxDepth+1)))
	f.Fuzz(func(t *testing.T, body []byte) {
		if !json.Valid(body) {
			_ = api.IsDeep(body)
			return
		}
		depth, deepest := 0, 0
		for dec := json.NewDecoder(strings.NewReader(string(body))); ; {
			token, err := dec.Token()
			if err != nil {
				break
			}
			switch token {
			case json.Delim('['), json.Delim('{'):
				depth++
			case json.Delim(']'), json.Delim('}'):
				depth--
			}
			deepest = max(deepest, depth)
		}
		if api.IsDeep(body) != (deepest > api.MaxDepth) {
			t.Fatalf("depth %d: deep is %v", deepest, api.IsDeep(body))
		}
	})
}

// FuzzPath: no path makes the router panic, and one without a key that needs
// one is never answered with success.
func FuzzPath(f *testing.F) {
	handler := hooksOnly(1 << 20)
	for _, path := range []string{"/emails", "//emails", "/v1/emails/", "/emails/%2e%2e", "/emails/x", "/webhooks/%00", "/suppressions/a%2fb", "/../emails", "/%", "/emails;a=b"} {
		f.Add("GET", path)
		f.Add("POST", path)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://a", http.NoBody)
		if err != nil {
			t.Skip("no method")
		}
		if req.URL, err = req.URL.Parse(path); err != nil || !strings.Contains(req.URL.Path, "emails") && !strings.Contains(req.URL.Path, "webhooks") {
			t.Skip("another path")
		}
		rec := &recorder{ResponseWriter: discard{}, status: http.StatusOK}
		handler.ServeHTTP(rec, req)
		if rec.status < 400 && !isOpen(req.URL.Path) || rec.status >= 500 && !isOpen(req.URL.Path) {
			t.Fatalf("%s %q: answer %d", method, path, rec.status)
		}
	})
}

// isOpen reports whether a path may lead to a route that asks for no key.
func isOpen(path string) bool {
	for _, root := range []string{"healthz", "readyz", "openapi.json", "docs", "unsubscribe", "hooks"} {
		if strings.Contains(path, root) {
			return true
		}
	}
	return false
}

// discard is a writer for an answer that nobody reads.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}
