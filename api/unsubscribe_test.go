package api_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/api"
)

// unsubscribeToken makes the token of a link in the email to jane@example.org,
// from the description of the format and not by the code under test.
func (s *service) unsubscribeToken(id string) string {
	s.t.Helper()
	const sql = `SELECT e.org_id, s.secret, int2send(s.id) FROM outbox.emails e, outbox.unsubscribe_secrets s WHERE e.id = $1`
	var org uuid.UUID
	var secret, secretID []byte
	if err := s.pool.QueryRow(context.Background(), sql, id).Scan(&org, &secret, &secretID); err != nil {
		s.t.Fatal(err)
	}
	keys, err := hkdf.Key(sha256.New, secret, nil, "outboxd unsubscribe 1", 64)
	if err != nil {
		s.t.Fatal(err)
	}
	block, err := aes.NewCipher(keys[32:])
	if err != nil {
		s.t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		s.t.Fatal(err)
	}
	nonce, email := make([]byte, 12), uuid.MustParse(id)
	sealed := aead.Seal(nil, nonce, slices.Concat(org[:], email[:], []byte("jane@example.org")), secretID)
	return base64.RawURLEncoding.EncodeToString(slices.Concat(secretID, nonce, sealed))
}

func (s *service) suppressed() []string {
	s.t.Helper()
	var list []string
	for _, item := range s.do("GET", "/suppressions", "").json(s.t)["data"].([]any) {
		suppression := item.(map[string]any)
		list = append(list, suppression["address"].(string)+" "+suppression["reason"].(string))
	}
	return list
}

// eventsOf are the types of an email's events.
func (s *service) eventsOf(id string) []string {
	s.t.Helper()
	var types []string
	for _, event := range s.do("GET", "/emails/"+id, "").json(s.t)["events"].([]any) {
		types = append(types, event.(map[string]any)["type"].(string))
	}
	return types
}

const form = "application/x-www-form-urlencoded"

// A mail program sends what RFC 8058, 3.2 says, in either form, without an API
// key or a cookie, as often as it likes.
func TestOneClickUnsubscribes(t *testing.T) {
	t.Parallel()
	const multipart = "--b\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--b--\r\n"
	for name, request := range map[string]struct{ contentType, body string }{
		"urlencoded": {form, "List-Unsubscribe=One-Click"},
		"multipart":  {"multipart/form-data; boundary=b", multipart},
		"nothing":    {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, api.Org{}, api.Key{Scopes: []string{"admin", "send"}})
			id := s.send(simple)
			path := "/unsubscribe/" + s.unsubscribeToken(id)
			for range 3 {
				got := s.do("POST", path, request.body, "Authorization", "", "Content-Type", "", "Content-Type", request.contentType)
				if got.status != http.StatusOK || !strings.Contains(got.body, "You are unsubscribed") {
					t.Fatalf("answer %d %s", got.status, got.body)
				}
				if got.header.Get("Set-Cookie") != "" || got.header.Get("Location") != "" {
					t.Errorf("header %v, want neither cookies nor a redirect", got.header)
				}
			}
			if diff := cmp.Diff([]string{"jane@example.org unsubscribe"}, s.suppressed()); diff != "" {
				t.Errorf("suppressed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"unsubscribed"}, s.eventsOf(id)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// Scanners follow links: only the button unsubscribes.
func TestOpeningThePageDoesNotUnsubscribe(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Scopes: []string{"admin", "send"}})
	id := s.send(strings.Replace(simple, "Shop <", `A & B <`, 1))
	path := "/unsubscribe/" + s.unsubscribeToken(id)
	for range 3 {
		got := s.do("GET", path, "", "Authorization", "")
		if got.status != http.StatusOK || !strings.Contains(got.body, `<form method="post">`) || !strings.Contains(got.body, "A &amp; B &lt;shop@example.com&gt;") {
			t.Fatalf("answer %d %s", got.status, got.body)
		}
		if strings.Contains(got.body, "jane") {
			t.Errorf("the page shows the address to whoever has the link: %s", got.body)
		}
	}
	if list, events := s.suppressed(), s.eventsOf(id); list != nil || events != nil {
		t.Errorf("suppressed %v, events %v", list, events)
	}
}

// A link outlives the email: its content is purged, and the email itself may be.
func TestLinkWorksWithoutTheEmail(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{"DELETE FROM outbox.email_contents", "DELETE FROM outbox.emails"} {
		s := newService(t, api.Org{}, api.Key{Scopes: []string{"admin", "send"}})
		path := "/unsubscribe/" + s.unsubscribeToken(s.send(simple))
		if _, err := s.pool.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
		if got := s.do("GET", path, ""); got.status != http.StatusOK || !strings.Contains(got.body, "this sender") {
			t.Errorf("after %s: answer %d %s", sql, got.status, got.body)
		}
		if got := s.do("POST", path, ""); got.status != http.StatusOK || len(s.suppressed()) != 1 {
			t.Errorf("after %s: answer %d %s", sql, got.status, got.body)
		}
	}
}

// A token that was changed in one place, cut or made up unsubscribes nobody.
func TestForgedLink(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Scopes: []string{"admin", "send"}})
	token := s.unsubscribeToken(s.send(simple))
	forged := []string{
		"x", "AAE", token[:len(token)-4], token + "AAAA", token + "=", strings.Repeat("A", len(token)), strings.Repeat("A", 5000), "%00", "..", token + "%2Fx",
	}
	for i := range token {
		other := byte('A')
		if token[i] == other {
			other = 'B'
		}
		forged = append(forged, token[:i]+string(other)+token[i+1:])
	}
	for _, token := range forged {
		for _, method := range []string{"GET", "POST"} {
			if got := s.do(method, "/unsubscribe/"+token, ""); got.status != http.StatusNotFound {
				t.Errorf("%s with %s: answer %d", method, token, got.status)
			}
		}
	}
	if list := s.suppressed(); list != nil {
		t.Errorf("suppressed %v", list)
	}
}

// When the database is away, a person reads so.
func TestUnsubscribeWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	lab := newErrorLab(t)
	token := lab.unsubscribeToken(lab.send(simple))
	got := lab.server(api.Config{Pool: lab.cutOff.pool, Outbox: newOutbox(t, nowhere(t))}).do("POST", "/unsubscribe/"+token, "")
	if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "try again") {
		t.Errorf("answer %d %v %s", got.status, got.header, got.body)
	}
}

// The page works without the network, and a browser holds it to that.
func TestUnsubscribePageNeedsNoNetwork(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	page := s.do("GET", "/unsubscribe/"+s.unsubscribeToken(s.send(simple)), "")
	for _, element := range []string{"<script", "<link", "<img", " src=", "url(", "@import", " style=", " action="} {
		if strings.Contains(page.body, element) {
			t.Errorf("the page has %s", element)
		}
	}
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(page.body)[1]
	sum := sha256.Sum256([]byte(style))
	want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	if got := page.header.Get("Content-Security-Policy"); got != want {
		t.Errorf("policy %q, want %q", got, want)
	}
	if page.header.Get("Referrer-Policy") != "no-referrer" || page.header.Get("X-Robots-Tag") != "noindex" || page.header.Get("Cache-Control") != "no-store" {
		t.Errorf("header %v", page.header)
	}
}
