package api_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

// newRing has one key.
func newRing(t *testing.T, id string) *outbox.KeyRing {
	t.Helper()
	keys, err := outbox.ParseKeyRing(id + ":" + base64.StdEncoding.EncodeToString(make([]byte, outbox.KeySize)))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// Where content is sealed, an email is the same through all three doors: to replay,
// to read and to find. The one of SQL is sealed a little later.
func TestSealedDoors(t *testing.T) {
	t.Parallel()
	keys := newRing(t, "k1")
	d := newSealedDoors(t, api.Org{}, keys)
	const body = `{"from":"Shop <shop@example.com>","to":["jane@example.org"],"subject":"Code ☃","text":"1","html":"<b>&</b>",
		"headers":{"X-A":"b"},"metadata":{"order":"7"},"tags":[{"name":"kind","value":"code"}],
		"attachments":[{"filename":"a.txt","content":"AAE="}]}`
	var first map[string]any
	read := func(id uuid.UUID) map[string]any {
		email := d.do(http.MethodGet, "/emails/"+id.String(), "").json(t)
		for _, own := range []string{"id", "created_at", "message_id"} {
			delete(email, own)
		}
		return email
	}
	ids := map[string]uuid.UUID{}
	for name, submit := range d.all() {
		got, err := submit(body, name)
		if err != nil || got.refusal.Name != "" {
			t.Fatalf("%s: %+v, error %v", name, got, err)
		}
		ids[name] = got.id
	}
	for _, sealed := range []int{1, 0} {
		for name, id := range ids {
			email := read(id)
			if first == nil {
				first = email
			}
			if diff := cmp.Diff(first, email); diff != "" {
				t.Errorf("%s:\n%s", name, diff)
			}
			for _, filter := range []string{"to=Jane@example.org", "tag=kind:code"} {
				if list := d.do(http.MethodGet, "/emails?"+filter, "").json(t)["data"].([]any); len(list) != 3 {
					t.Errorf("%s finds %d emails, want 3", filter, len(list))
				}
			}
			for other, submit := range d.all() {
				if got, err := submit(body, name); err != nil || got.id != id {
					t.Errorf("%s again through %s: %+v, error %v", name, other, got, err)
				}
			}
		}
		if n, err := outbox.SealStored(context.Background(), d.pool, keys); n != sealed || err != nil {
			t.Errorf("sealed %d, error %v; want %d", n, err, sealed)
		}
	}
}

// Without the key, content cannot be read now: 503, and the answer does not say why.
func TestContentWithoutKey(t *testing.T) {
	t.Parallel()
	s := newSealedService(t, api.Org{}, api.Key{}, newRing(t, "k1"))
	id := s.do(http.MethodPost, "/emails", `{"from":"a@example.com","to":"b@example.org","subject":"s","text":"t"}`).json(t)["id"]
	if a := s.do(http.MethodGet, fmt.Sprint("/emails/", id), ""); a.status != http.StatusOK {
		t.Fatalf("with the key: %d %s", a.status, a.body)
	}
	if _, err := s.pool.Exec(context.Background(), "UPDATE outbox.email_contents SET key_id = 'lost'"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fmt.Sprint("/emails/", id), "/emails"} {
		a := s.do(http.MethodGet, path, "")
		if a.status != http.StatusServiceUnavailable || a.json(t)["name"] != "service_unavailable" || strings.Contains(a.body, "lost") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}
