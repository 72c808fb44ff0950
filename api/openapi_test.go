package api_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/outboxd/outboxd/api"
)

func openAPIContract(t *testing.T) *contract {
	t.Helper()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Examples are part of it: each is held to its schema.
func TestOpenAPIIsValid(t *testing.T) {
	t.Parallel()
	document, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := document.Validate(context.Background(), openapi3.EnableSchemaFormatValidation(), openapi3.EnableMultiError()); err != nil {
		t.Error(err)
	}
	for _, op := range openAPIContract(t).operations() {
		if op.node.text("summary") == "" || op.node.text("description") == "" || op.node.text("operationId") == "" || op.node["security"] == nil {
			t.Errorf("%s: a summary, a description, an operationId and the security are wanted", op)
		}
	}
}

func TestOpenAPIHasEveryRoute(t *testing.T) {
	t.Parallel()
	var routes, described []string
	err := chi.Walk(api.New(api.Config{}).Handler.(chi.Routes), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		routes = append(routes, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range openAPIContract(t).operations() {
		described = append(described, op.String())
	}
	slices.Sort(routes)
	slices.Sort(described)
	if diff := cmp.Diff(routes, described); diff != "" {
		t.Errorf("routes (-code +openapi.json):\n%s", diff)
	}
}

func TestOpenAPIHasEveryMember(t *testing.T) {
	t.Parallel()
	schemas := openAPIContract(t).document.at("components", "schemas")
	// Types that package outbox keeps to itself, and small ones: their answers
	// are held to the contract by every test that gets one.
	unseen := []string{"SubmittedEmail", "SubmittedBatch", "BatchItem", "BatchError", "Buffer", "Health", "WebhookPayload", "WebhookData"}
	for name := range schemas {
		request, isRequest := api.RequestTypes[name]
		answer, isAnswer := api.AnswerTypes[name]
		switch {
		case isRequest:
			compareMembers(t, schemas, name, reflect.TypeOf(request), true)
		case isAnswer:
			compareMembers(t, schemas, name, reflect.TypeOf(answer), false)
		case schemas.at(name)["properties"] != nil && !slices.Contains(unseen, name):
			t.Errorf("%s: add the type to export_openapi_test.go", name)
		}
	}
}

func compareMembers(t *testing.T, schemas node, name string, typ reflect.Type, request bool) {
	t.Helper()
	required, properties := membersOfSchema(schemas, name)
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(typ) {
		tag, hasTag := f.Tag.Lookup("json")
		if !hasTag {
			continue // not of the wire: embedded, or our own
		}
		member, options, _ := strings.Cut(tag, ",")
		fields[member] = f
		if !request && slices.Contains(required, member) == strings.Contains(options, "omitempty") {
			t.Errorf("%s.%s: required and omitempty contradict each other", name, member)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(fields)), slices.Sorted(maps.Keys(properties))); diff != "" {
		t.Errorf("%s (-code +openapi.json):\n%s", name, diff)
	}
	for member, f := range fields {
		want := typesOfGo(f.Type)
		if request && !slices.Contains(required, member) {
			want = append(want, "null")
		}
		got := typesOfSchema(schemas, properties.at(member))
		slices.Sort(want)
		if diff := cmp.Diff(want, got); want != nil && diff != "" {
			t.Errorf("%s.%s: types (-code +openapi.json):\n%s", name, member, diff)
		}
	}
}

func membersOfSchema(schemas node, name string) (required []string, properties node) {
	s := schemas.at(name)
	required, properties = s.strings("required"), maps.Clone(s.at("properties"))
	for _, part := range s.list("allOf") {
		r, p := membersOfSchema(schemas, filepath.Base(node(part.(map[string]any)).text("$ref")))
		required = append(required, r...)
		maps.Copy(properties, p)
	}
	return required, properties
}

// typesOfGo are the types of JSON that a member has or takes; nil: any.
func typesOfGo(t reflect.Type) []string {
	switch t.String() {
	case "api.stringList":
		return []string{"string", "array"}
	case "api.content":
		return []string{"string", "array", "object"}
	case "json.RawMessage":
		return []string{"object"}
	case "api.instant", "time.Time", "uuid.UUID":
		return []string{"string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return append(typesOfGo(t.Elem()), "null")
	case reflect.Bool:
		return []string{"boolean"}
	case reflect.Int:
		return []string{"integer"}
	case reflect.Slice:
		return []string{"array"}
	case reflect.Map:
		if strings.HasPrefix(t.String(), "map[") {
			return []string{"object", "null"} // a nil map is null
		}
		return []string{"object"} // reads itself
	case reflect.String:
		return []string{"string"}
	}
	return nil
}

func typesOfSchema(schemas, s node) []string {
	if ref := s.text("$ref"); ref != "" {
		s = schemas.at(filepath.Base(ref))
	}
	var types []string
	switch kind := s["type"].(type) {
	case string:
		types = []string{kind}
	case []any:
		types = s.strings("type")
	}
	if s["const"] != nil {
		types = []string{"string"}
	}
	for _, alternative := range s.list("oneOf") {
		types = append(types, typesOfSchema(schemas, alternative.(map[string]any))...)
	}
	slices.Sort(types)
	return types
}

func TestOpenAPIHasEveryValue(t *testing.T) {
	t.Parallel()
	schemas := openAPIContract(t).document.at("components", "schemas")
	for schema, goType := range map[string]string{
		"Status": "Status", "OnUnknown": "Policy", "Priority": "Priority", "Stage": "Stage", "Evidence": "Evidence",
		"SuppressionReason": "SuppressionReason",
		"WebhookEventType":  "WebhookEvent", "WebhookStatus": "WebhookStatus", "DisabledReason": "DisabledReason",
	} {
		want := constantsOf(t, "../outbox", goType)
		if diff := cmp.Diff(want, schemas.at(schema).strings("enum")); diff != "" {
			t.Errorf("%s (-code +openapi.json):\n%s", schema, diff)
		}
	}
	for name := range schemas {
		s := schemas.at(name)
		described := slices.Sorted(maps.Keys(s.at("x-enumDescriptions")))
		if values := slices.Sorted(slices.Values(s.strings("enum"))); !slices.Equal(values, described) {
			t.Errorf("%s: values %v, described %v", name, values, described)
		}
	}
}

// sources are the files of a package, without its tests.
func sources(t *testing.T, dir string) []*ast.File {
	t.Helper()
	names, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// constantsOf are the string constants of a type, in the order of the source.
func constantsOf(t *testing.T, dir, typ string) []string {
	t.Helper()
	var values []string
	for _, file := range sources(t, dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			if name, ok := spec.Type.(*ast.Ident); ok && name.Name == typ {
				values = append(values, literal(t, spec.Values[0]))
			}
			return true
		})
	}
	return values
}

func literal(t *testing.T, e ast.Expr) string {
	t.Helper()
	lit, ok := e.(*ast.BasicLit)
	if !ok {
		t.Fatalf("%T is no literal", e)
	}
	value, err := strconv.Unquote(lit.Value)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// argumentsOf are an argument of every call of a function of package api, where
// it is written out.
func argumentsOf(t *testing.T, function string, pick func([]ast.Expr) []ast.Expr) []string {
	t.Helper()
	var values []string
	for _, file := range sources(t, ".") {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := ""
			switch f := call.Fun.(type) {
			case *ast.Ident:
				name = f.Name
			case *ast.SelectorExpr:
				name = f.Sel.Name
			}
			if name == function {
				for _, e := range pick(call.Args) {
					values = append(values, literal(t, e))
				}
			}
			return true
		})
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// An error has a name where problem is called, and nowhere else.
func TestOpenAPIHasEveryErrorName(t *testing.T) {
	t.Parallel()
	c := openAPIContract(t)
	inCode := argumentsOf(t, "problem", func(args []ast.Expr) []ast.Expr {
		if copied, ok := args[1].(*ast.SelectorExpr); ok && copied.Sel.Name == "Name" {
			return nil // of another error
		}
		return args[1:2]
	})
	if diff := cmp.Diff(inCode, slices.Sorted(slices.Values(c.errorNames()))); diff != "" {
		t.Errorf("error names (-code +openapi.json):\n%s", diff)
	}
}

func (c *contract) errorNames() []string {
	return c.document.at("components", "schemas", "ErrorName").strings("enum")
}

func TestOpenAPIHasEveryQueryParameter(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Scopes: []string{"admin"}})
	inCode := argumentsOf(t, "known", func(args []ast.Expr) []ast.Expr { return args })
	var described []string
	for _, op := range openAPIContract(t).operations() {
		for _, p := range op.node.list("parameters") {
			parameter := node(p.(map[string]any))
			if parameter.text("in") != "query" {
				continue
			}
			described = append(described, parameter.text("name"))
			path := op.path + "?" + url.Values{parameter.text("name"): {fmt.Sprint(parameter["example"])}}.Encode()
			if got := s.do(strings.ToUpper(op.method), path, ""); got.status != http.StatusOK {
				t.Errorf("%s %s: answer %d %s", op.method, path, got.status, got.body)
			}
		}
	}
	slices.Sort(described)
	if diff := cmp.Diff(inCode, slices.Compact(described)); diff != "" {
		t.Errorf("parameters (-code +openapi.json):\n%s", diff)
	}
}
