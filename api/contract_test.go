package api_test

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

//go:embed openapi.json
var openAPI []byte

// node is an object of openapi.json.
type node map[string]any

func (n node) at(path ...string) node {
	for _, name := range path {
		child, _ := n[name].(map[string]any)
		n = child
	}
	return n
}

func (n node) list(name string) []any { l, _ := n[name].([]any); return l }

func (n node) text(name string) string { s, _ := n[name].(string); return s }

// strings is a list of strings, such as an enum.
func (n node) strings(name string) []string {
	var out []string
	for _, v := range n.list(name) {
		out = append(out, fmt.Sprint(v))
	}
	return out
}

// contract is openapi.json, ready to hold answers to it.
type contract struct {
	document node
	schemas  map[string]*jsonschema.Schema // by location
}

// theContract reads openapi.json once. Clients are told to expect members that
// they do not know; the tests are not, so its objects are closed here.
var theContract = sync.OnceValues(func() (*contract, error) {
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(openAPI))
	if err != nil {
		return nil, err
	}
	c := &contract{document: parsed.(map[string]any), schemas: map[string]*jsonschema.Schema{}}
	for name := range c.document.at("components", "schemas") {
		// EmailSummary is also a part of Email, and so with the others.
		if s := c.document.at("components", "schemas", name); s["properties"] != nil && !strings.HasSuffix(name, "Summary") {
			s["unevaluatedProperties"] = false
		}
	}
	return c, c.compile()
})

func (c *contract) compile() error {
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	if err := compiler.AddResource("openapi.json", map[string]any(c.document)); err != nil {
		return err
	}
	var err error
	add := func(path ...string) {
		if err != nil {
			return
		}
		location := locationOf(path...)
		c.schemas[location], err = compiler.Compile("openapi.json#" + location)
	}
	for name := range c.document.at("components", "headers") {
		add("components", "headers", name, "schema")
	}
	each := func(responses node, path ...string) {
		for name := range responses {
			for contentType := range responses.at(name, "content") {
				add(append(path, name, "content", contentType, "schema")...)
			}
		}
	}
	each(c.document.at("components", "responses"), "components", "responses")
	for _, op := range c.operations() {
		each(op.node.at("responses"), "paths", op.path, op.method, "responses")
	}
	return err
}

// locationOf is a JSON pointer in the fragment of a URL (RFC 6901, 6).
func locationOf(path ...string) string {
	var pointer strings.Builder
	for _, name := range path {
		name = strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
		pointer.WriteString("/" + url.PathEscape(name))
	}
	return pointer.String()
}

// described is an operation of openapi.json.
type described struct {
	path, method string // the method in lower case
	node         node
}

func (d described) String() string { return strings.ToUpper(d.method) + " " + d.path }

func (c *contract) operations() []described {
	var all []described
	for path := range c.document.at("paths") {
		for method := range c.document.at("paths", path) {
			all = append(all, described{path, method, c.document.at("paths", path, method)})
		}
	}
	return all
}

// response finds what is said about an answer, and where.
func (c *contract) response(method, pattern string, status int) (response node, path []string) {
	path = []string{"paths", pattern, strings.ToLower(method), "responses", fmt.Sprint(status)}
	if c.document.at(path[:3]...) == nil { // no operation
		switch status {
		case http.StatusNotFound:
			path = []string{"components", "responses", "NotFound"}
		case http.StatusMethodNotAllowed:
			path = []string{"components", "responses", "MethodNotAllowed"}
		}
	}
	response = c.document.at(path...)
	if ref := response.text("$ref"); ref != "" {
		path = strings.Split(strings.TrimPrefix(ref, "#/"), "/")
		response = c.document.at(path...)
	}
	return response, path
}

// check holds an answer to the contract.
func (c *contract) check(method, pattern string, got answer) error {
	response, path := c.response(method, pattern, got.status)
	if response == nil {
		return fmt.Errorf("the status %d is not documented", got.status)
	}
	if err := c.checkHeaders(response, got.header); err != nil {
		return err
	}
	contentType := got.header.Get("Content-Type")
	if response.at("content", contentType) == nil {
		return fmt.Errorf("the content type %s is not documented", contentType)
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return err
	}
	if !strings.HasSuffix(mediaType, "json") {
		return nil
	}
	body, err := jsonschema.UnmarshalJSON(strings.NewReader(got.body))
	if err != nil {
		return err
	}
	// Both types of an error have one body; the first says more about it.
	return c.schemas[locationOf(append(path, "content", "application/json", "schema")...)].Validate(body)
}

func (c *contract) checkHeaders(response node, header http.Header) error {
	for name := range c.document.at("components", "headers") {
		said, value := response.at("headers", name) != nil, header.Get(name)
		required, _ := c.document.at("components", "headers", name)["required"].(bool)
		switch {
		case value == "" && said && required:
			return fmt.Errorf("the header %s is missing", name)
		case value != "" && !said:
			return fmt.Errorf("the header %s is not documented", name)
		case value != "":
			if err := c.schemas[locationOf("components", "headers", name, "schema")].Validate(value); err != nil {
				return fmt.Errorf("header %s: %w", name, err)
			}
		}
	}
	return nil
}

// conforming holds every answer of the API to the contract, whatever the test
// is about.
func conforming(t testing.TB, api http.Handler) http.Handler {
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route := chi.NewRouteContext()
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		api.ServeHTTP(rec, r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, route)))
		got := answer{rec.status, w.Header(), rec.body.String()}
		if err := c.check(r.Method, route.RoutePattern(), got); err != nil {
			t.Errorf("%s %s, answer %d: openapi.json does not allow it: %v\n%s", r.Method, route.RoutePattern(), got.status, err, got.body)
		}
	})
}

// recorder copies an answer on its way out.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.body.Write(p)
	return r.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// The test of the tests: an answer that differs is found.
func TestContractFindsDifferences(t *testing.T) {
	t.Parallel()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	const id = "0198e2a4-6d1c-7c3a-9f0e-3b5d8a1c2e47"
	good := func() (int, http.Header, map[string]any) {
		return http.StatusAccepted,
			http.Header{"Content-Type": {"application/json"}, "Location": {"/emails/" + id}, "X-Request-Id": {id}},
			map[string]any{"id": id, "object": "email", "status": "queued"}
	}
	for name, spoil := range map[string]func(status *int, header http.Header, body map[string]any){
		"nothing":         func(*int, http.Header, map[string]any) {},
		"status":          func(status *int, _ http.Header, _ map[string]any) { *status = http.StatusTeapot },
		"missing header":  func(_ *int, h http.Header, _ map[string]any) { h.Del("Location") },
		"other header":    func(_ *int, h http.Header, _ map[string]any) { h.Set("Retry-After", "1") },
		"wrong header":    func(_ *int, h http.Header, _ map[string]any) { h.Set("Location", "https://example.com") },
		"content type":    func(_ *int, h http.Header, _ map[string]any) { h.Set("Content-Type", "text/plain") },
		"missing member":  func(_ *int, _ http.Header, b map[string]any) { delete(b, "status") },
		"other member":    func(_ *int, _ http.Header, b map[string]any) { b["statusCode"] = 202 },
		"wrong value":     func(_ *int, _ http.Header, b map[string]any) { b["status"] = "sent" },
		"wrong format":    func(_ *int, _ http.Header, b map[string]any) { b["id"] = "1" },
		"null for string": func(_ *int, _ http.Header, b map[string]any) { b["id"] = nil },
	} {
		status, header, members := good()
		spoil(&status, header, members)
		body, err := json.Marshal(members)
		if err != nil {
			t.Fatal(err)
		}
		err = c.check("POST", "/emails", answer{status, header, string(body)})
		if (err == nil) != (name == "nothing") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
