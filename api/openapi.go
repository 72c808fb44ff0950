package api

import (
	_ "embed"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// openAPI describes this API. It is written by hand, so that it reads well;
// tests hold it to the code and the code to it.
//
//go:embed openapi.json
var openAPI []byte

// serveOpenAPI serves GET /openapi.json.
func (s *server) serveOpenAPI(*http.Request) (*response, error) {
	return &response{body: openAPI}, nil
}

// description is as much of an OpenAPI document as the page at /docs shows.
type description struct {
	Info struct {
		Title       string `json:"title"`
		Summary     string `json:"summary"`
		Description string `json:"description"`
	} `json:"info"`
	Tags []struct {
		Name        string `json:"name"`
		Description string `json:"description"`
	} `json:"tags"`
	Paths      object[object[operation]] `json:"paths"` // by path and method
	Components struct {
		SecuritySchemes map[string]struct {
			Description string `json:"description"`
		} `json:"securitySchemes"`
		Parameters map[string]parameter `json:"parameters"`
		Headers    map[string]header    `json:"headers"`
		Responses  object[answer]       `json:"responses"`
		Schemas    object[*schema]      `json:"schemas"`
	} `json:"components"`
}

type operation struct {
	ID          string                `json:"operationId"`
	Tags        []string              `json:"tags"`
	Summary     string                `json:"summary"`
	Description string                `json:"description"`
	Security    []map[string][]string `json:"security"` // by scheme, the scopes
	Parameters  []parameter           `json:"parameters"`
	RequestBody struct {
		MaxBytes int64             `json:"x-max-bytes"`
		Content  object[mediaType] `json:"content"`
	} `json:"requestBody"`
	Responses object[answer] `json:"responses"` // by status
}

type parameter struct {
	Ref         string `json:"$ref"`
	Name        string `json:"name"`
	In          string `json:"in"`
	Required    bool   `json:"required"`
	Description string `json:"description"`
	Schema      schema `json:"schema"`
	Example     any    `json:"example"`
}

type header struct {
	Ref         string `json:"$ref"`
	Description string `json:"description"`
}

type answer struct {
	Ref         string            `json:"$ref"`
	Description string            `json:"description"`
	Headers     object[header]    `json:"headers"`
	Content     object[mediaType] `json:"content"`
}

type mediaType struct {
	Schema   schema          `json:"schema"`
	Example  jsontext.Value  `json:"example"`
	Examples object[example] `json:"examples"`
}

type example struct {
	Summary string         `json:"summary"`
	Value   jsontext.Value `json:"value"`
}

type schema struct {
	Ref              string            `json:"$ref"`
	Type             oneOrMany         `json:"type"`
	Const            any               `json:"const"`
	Enum             []string          `json:"enum"`
	EnumDescriptions map[string]string `json:"x-enumDescriptions"`
	Description      string            `json:"description"`
	Format           string            `json:"format"`
	Default          any               `json:"default"`
	Examples         []jsontext.Value  `json:"examples"`
	OneOf            []*schema         `json:"oneOf"`
	AllOf            []*schema         `json:"allOf"`

	Required             []string        `json:"required"`
	Properties           object[*schema] `json:"properties"`
	AdditionalProperties *schema         `json:"additionalProperties"`
	Items                *schema         `json:"items"`

	MinLength     int  `json:"minLength"`
	MaxLength     int  `json:"maxLength"`
	MaxBytes      int  `json:"x-max-bytes"`
	MinItems      int  `json:"minItems"`
	MaxItems      int  `json:"maxItems"`
	MaxProperties int  `json:"maxProperties"`
	Minimum       *int `json:"minimum"`
	Maximum       *int `json:"maximum"`
}

// UnmarshalJSONFrom implements [json.UnmarshalerFrom]. A schema can also be a
// boolean, of which the page shows nothing.
func (s *schema) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if kind := dec.PeekKind(); kind == 't' || kind == 'f' {
		return dec.SkipValue()
	}
	type plain schema
	return json.UnmarshalDecode(dec, (*plain)(s))
}

// oneOrMany takes "a" for ["a"].
type oneOrMany = stringList

// object is a JSON object whose members keep their order: somebody gave it
// thought.
type object[T any] []member[T]

type member[T any] struct {
	Name  string
	Value T
}

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (o *object[T]) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if _, err := dec.ReadToken(); err != nil { // the brace
		return err
	}
	for dec.PeekKind() != '}' {
		var m member[T]
		if err := json.UnmarshalDecode(dec, &m.Name); err != nil {
			return err
		}
		if err := json.UnmarshalDecode(dec, &m.Value); err != nil {
			return err
		}
		*o = append(*o, m)
	}
	_, err := dec.ReadToken()
	return err
}

func (o object[T]) get(name string) (value T, ok bool) {
	for _, m := range o {
		if m.Name == name {
			return m.Value, true
		}
	}
	return value, false
}

func readDescription(document []byte) (*description, error) {
	d := new(description)
	if err := json.Unmarshal(document, d); err != nil {
		return nil, err
	}
	d.resolve()
	return d, nil
}

// resolve replaces references by what they name. Those to schemas stay: the
// page shows them as links.
func (d *description) resolve() {
	for _, path := range d.Paths {
		for _, method := range path.Value {
			op := method.Value
			for i, p := range op.Parameters {
				if p.Ref != "" {
					op.Parameters[i] = d.Components.Parameters[refName(p.Ref)]
				}
			}
			for i, r := range op.Responses {
				if r.Value.Ref != "" {
					op.Responses[i].Value, _ = d.Components.Responses.get(refName(r.Value.Ref))
				}
				headers := op.Responses[i].Value.Headers
				for j, h := range headers {
					if h.Value.Ref != "" {
						headers[j].Value = d.Components.Headers[refName(h.Value.Ref)]
					}
				}
			}
		}
	}
}

// refName is the name in a reference such as #/components/schemas/Email.
func refName(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }
