package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/api"
)

// first is the name of the first member of a body.
func first(body string) (name string) {
	_, rest, _ := strings.Cut(body, `"`)
	name, _, _ = strings.Cut(rest, `"`)
	return name
}

// hostileBodies spoil a body that is accepted, each in a way that some decoder
// repairs in silence or breaks at.
var hostileBodies = map[string]func(body string) string{
	"duplicate name": func(body string) string {
		return strings.Replace(body, `"`+first(body)+`"`, `"`+first(body)+`":null,"`+first(body)+`"`, 1)
	},
	"duplicate name, escaped": func(body string) string {
		return strings.Replace(body, `"`+first(body)+`"`, `"\u00`+hex(first(body)[0])+first(body)[1:]+`":null,"`+first(body)+`"`, 1)
	},
	"name in another case": func(body string) string {
		return strings.Replace(body, `"`+first(body)+`"`, `"`+strings.ToUpper(first(body))+`"`, 1)
	},
	"unknown name":      func(body string) string { return strings.Replace(body, "{", `{"__proto__":{},`, 1) },
	"10,000 arrays":     func(body string) string { return strings.Replace(body, "{", `{"x":`+strings.Repeat("[", 10_000), 1) },
	"10,000 arrays all": func(string) string { return strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) },
	"10,000 objects": func(string) string {
		return strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000)
	},
	"trailing data":    func(body string) string { return body + body },
	"NUL after it":     func(body string) string { return body + "\x00" },
	"byte order mark":  func(body string) string { return "\ufeff" + body },
	"not UTF-8":        func(body string) string { return strings.Replace(body, "{", "{\"\xff\":1,", 1) },
	"lone surrogate":   func(body string) string { return strings.Replace(body, "{", `{"\ud800":1,`, 1) },
	"cut off":          func(body string) string { return body[:len(body)-1] },
	"number too large": func(body string) string { return strings.Replace(body, "{", `{"x":1e999999,`, 1) },
	"a scalar":         func(string) string { return "1" },
	"nothing":          func(string) string { return " " },
}

func hex(c byte) string { return string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15]) }

// Every route that takes JSON refuses every spoilt body as the client's fault.
func TestHostileJSONOnEveryRoute(t *testing.T) {
	t.Parallel()
	lab := newErrorLab(t)
	routes := 0
	for _, op := range openAPIContract(t).operations() {
		r := lab.request(op)
		if r.body == "" || strings.HasPrefix(op.path, "/hooks/") || strings.HasPrefix(op.path, "/unsubscribe") {
			continue
		}
		routes++
		for name, spoil := range hostileBodies {
			spoilt := r
			spoilt.body = spoil(r.body)
			got := spoilt.send(lab.service)
			if got.status != http.StatusBadRequest && got.status != http.StatusUnprocessableEntity {
				t.Errorf("%s, %s: answer %d %.200s", op, name, got.status, got.body)
			}
		}
	}
	if routes < 7 {
		t.Errorf("%d routes were tried", routes)
	}
}

// What is nested one level deeper than the limit is refused for that, and what is
// not, is not. Brackets in strings do not count.
func TestDepthLimit(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for _, test := range []struct {
		body, name string
		status     int
	}{
		{added("metadata", `{"a":`+nested(api.MaxDepth-2)+`}`), "validation_error", 422},
		{added("metadata", `{"a":`+nested(api.MaxDepth-1)+`}`), "invalid_json", 400},
		{changedTo("text", `"`+strings.Repeat(`[{\"`, 100)+`"`), "", 202},
		{changedTo("text", `"`+strings.Repeat(`\\`, 100)+`"`), "", 202},
	} {
		got := s.do("POST", "/emails", test.body)
		name, _ := got.json(t)["name"].(string)
		if got.status != test.status || name != test.name {
			t.Errorf("answer %d %s to %.80s, want %d %s", got.status, got.body, test.body, test.status, test.name)
		}
	}
}
