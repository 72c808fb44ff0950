package ses_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

func tags(n int) []providers.Tag {
	var out []providers.Tag
	for i := range n {
		out = append(out, providers.Tag{Name: "t" + strconv.Itoa(i), Value: "v"})
	}
	return out
}

// What SES refuses beyond the suite's messages.
func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	labels := func(tags ...providers.Tag) func(*providers.Request) {
		return func(r *providers.Request) { r.Message.Tags = tags }
	}
	headers := func(names ...string) func(*providers.Request) {
		return func(r *providers.Request) {
			r.Message.Headers = nil
			for _, name := range names {
				r.Message.Headers = append(r.Message.Headers, providers.Header{Name: name, Value: "1"})
			}
		}
	}
	tests := []struct {
		name string
		code string
		edit func(*providers.Request)
	}{
		{"row 5: UTF-8 local part", "utf8_address", func(r *providers.Request) { r.Message.To[0].Email = "jürgen@example.org" }},
		{"row 22: another configuration set", "bad_header", headers("x-ses-configuration-set")},
		{"row 22: other tags", "bad_header", headers("X-SES-MESSAGE-TAGS")},
		{"a header twice", "bad_header", headers("List-Unsubscribe", "list-unsubscribe")},
		{"51 recipients", "too_many_recipients", func(r *providers.Request) {
			for i := range 50 {
				r.Message.Bcc = append(r.Message.Bcc, providers.Address{Email: strings.Repeat("x", i+1) + "@example.org"})
			}
		}},
		{"a tag twice", "repeated_tag", labels(providers.Tag{Name: "a", Value: "1"}, providers.Tag{Name: "a", Value: "2"})},
		{"our own tag", "repeated_tag", labels(providers.Tag{Name: "outboxd_attempt", Value: "1"})},
		{"tag beyond ASCII", "bad_tag", labels(providers.Tag{Name: "a", Value: "ü"})},
		{"tag without a value", "bad_tag", labels(providers.Tag{Name: "a"})},
		{"long tag", "bad_tag", labels(providers.Tag{Name: strings.Repeat("a", 257), Value: "1"})},
		{"no key", "bad_key", func(r *providers.Request) { r.Key = "" }},
		{"long key", "bad_key", func(r *providers.Request) { r.Key = strings.Repeat("k", 257) }},
	}
	p := newProvider(t, "")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := providertest.Request(1)
			tt.edit(&r)
			_, err := p.Render(r)
			if e := providers.AsError(err); err == nil || e.Outcome != providers.Rejected || e.Code != tt.code {
				t.Errorf("got %v, want rejected %s", err, tt.code)
			}
		})
	}
}

// At the limits nothing is refused, by the adapter or by the service.
func TestRenderAtTheLimits(t *testing.T) {
	t.Parallel()
	r := providertest.Request(1)
	r.Message.Tags = append(tags(100), providers.Tag{Name: strings.Repeat("a", 256), Value: strings.Repeat("b", 256)})
	for i := range 49 {
		r.Message.To = append(r.Message.To, providers.Address{Email: strings.Repeat("x", i+1) + "@example.org"})
	}
	p, server := start(t, nil)
	payload, err := p.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(t.Context(), providers.Sending{Request: r, Payload: payload}); err != nil {
		t.Errorf("refused: %v, %s", err, providers.AsError(err).Detail)
	}
	if n := len(server.Accepted()); n != 1 {
		t.Errorf("%d accepted, want 1", n)
	}
}
