package api

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// docsView is what the template of /docs shows, in the order in which it does.
type docsView struct {
	Title, Summary string
	Intro          []prose
	Authentication []prose
	Groups         []groupView
	Errors         []errorView
	ErrorExample   string
	Objects        []objectView
}

type groupView struct {
	Name        string
	Description []prose
	Operations  []operationView
}

type operationView struct {
	ID, Method, Path, Summary string
	Description               []prose
	Scope                     string
	Parameters                []fieldView
	Body                      *bodyView
	Examples                  []exampleView
	Answers                   []answerView
}

type bodyView struct {
	Type   []text
	Limits string
	Bytes  string      // how large it may be
	Object *objectView // shown here and not among the objects
}

type exampleView struct{ Summary, Curl string }

type answerView struct {
	Status      string
	Description []prose
	Type        []text
	Errors      []string
	Headers     []fieldView
	Sample      string
}

type errorView struct {
	Name    string
	Status  string
	Meaning []prose
}

type objectView struct {
	Name        string
	Description []prose
	Type        []text // of what is no object
	Fields      []fieldView
	Values      []fieldView // of an enumeration
}

type fieldView struct {
	Name        string
	Type        []text
	Limits      string
	Required    bool
	Description []prose
}

// text is a piece of text that may link to an object.
type text struct{ Text, Object string }

// prose is a paragraph, in pieces.
type prose []piece

type piece struct {
	Text string
	Code bool
}

// proseOf reads the only Markdown that the description has: paragraphs, and
// code between backticks.
func proseOf(markdown string) []prose {
	if markdown == "" {
		return nil
	}
	var paragraphs []prose
	for paragraph := range strings.SplitSeq(markdown, "\n\n") {
		var p prose
		for i, part := range strings.Split(paragraph, "`") {
			if part != "" {
				p = append(p, piece{Text: part, Code: i%2 == 1})
			}
		}
		paragraphs = append(paragraphs, p)
	}
	return paragraphs
}

func docsViewOf(d *description) *docsView {
	v := &docsView{
		Title: d.Info.Title, Summary: d.Info.Summary, Intro: proseOf(d.Info.Description),
		Authentication: proseOf(d.Components.SecuritySchemes["apiKey"].Description),
		Errors:         errorViews(d),
	}
	inline := map[string]bool{"ErrorName": true} // shown as the table of errors
	for _, tag := range d.Tags {
		group := groupView{Name: tag.Name, Description: proseOf(tag.Description)}
		for _, path := range d.Paths {
			for _, method := range path.Value {
				if op := &method.Value; slices.Contains(op.Tags, tag.Name) {
					view := operationViewOf(d, path.Name, method.Name, op)
					if view.Body != nil && view.Body.Object != nil {
						inline[view.Body.Object.Name] = true
					}
					group.Operations = append(group.Operations, view)
				}
			}
		}
		v.Groups = append(v.Groups, group)
	}
	for _, s := range d.Components.Schemas {
		if !inline[s.Name] {
			v.Objects = append(v.Objects, objectViewOf(d, s.Name, s.Value))
		}
	}
	if s, ok := d.Components.Schemas.get("Error"); ok && len(s.Examples) > 0 {
		v.ErrorExample = dedent(s.Examples[0])
	}
	return v
}

// errorViews is a row for each error name, by status.
func errorViews(d *description) []errorView {
	names, ok := d.Components.Schemas.get("ErrorName")
	if !ok {
		return nil
	}
	status := map[string]string{}
	for _, r := range d.Components.Responses {
		for _, name := range errorNames(&r.Value) {
			status[name] = errorStatus(&r.Value)
		}
	}
	views := make([]errorView, len(names.Enum))
	for i, name := range names.Enum {
		views[i] = errorView{Name: name, Status: status[name], Meaning: proseOf(names.EnumDescriptions[name])}
	}
	slices.SortStableFunc(views, func(a, b errorView) int { return cmp.Compare(a.Status, b.Status) })
	return views
}

// errorNames are the names that an error answer narrows the one shape to.
func errorNames(a *answer) []string {
	content, _ := a.Content.get("application/json")
	if name, ok := content.Schema.Properties.get("name"); ok && content.Schema.Ref != "" {
		return name.Enum
	}
	return nil
}

func errorStatus(a *answer) string {
	content, _ := a.Content.get("application/json")
	status, ok := content.Schema.Properties.get("statusCode")
	if !ok {
		return ""
	}
	return fmt.Sprint(status.Const)
}

func operationViewOf(d *description, path, method string, op *operation) operationView {
	v := operationView{
		ID: op.ID, Method: strings.ToUpper(method), Path: path, Summary: op.Summary, Description: proseOf(op.Description),
	}
	for _, s := range op.Security {
		v.Scope = strings.Join(s["apiKey"], ", ")
	}
	for _, p := range op.Parameters {
		v.Parameters = append(v.Parameters, fieldView{
			Name: p.Name, Type: append(typeOf(&p.Schema), text{Text: " in " + placeOf(p.In)}), Limits: limitsOf(&p.Schema),
			Required: p.Required, Description: proseOf(p.Description),
		})
	}
	body, hasBody := op.RequestBody.Content.get("application/json")
	if hasBody {
		v.Body = &bodyView{
			Type: typeOf(&body.Schema), Limits: limitsOf(&body.Schema),
			Bytes: fmt.Sprintf("%d MiB", op.RequestBody.MaxBytes>>20), Object: namedObject(d, &body.Schema),
		}
		for _, e := range body.Examples {
			v.Examples = append(v.Examples, exampleView{e.Value.Summary, curlOf(v.Method, path, op, e)})
		}
	} else {
		v.Examples = []exampleView{{Curl: curlOf(v.Method, path, op, member[example]{})}}
	}
	for _, r := range op.Responses {
		v.Answers = append(v.Answers, answerViewOf(r.Name, &r.Value))
	}
	return v
}

// placeOf says where a parameter goes.
func placeOf(in string) string {
	if in == "header" {
		return "a header"
	}
	return "the " + in
}

// namedObject is the object that a request body is, if it is no list of them.
func namedObject(d *description, s *schema) *objectView {
	if s.Ref == "" {
		return nil
	}
	name := refName(s.Ref)
	named, ok := d.Components.Schemas.get(name)
	if !ok {
		return nil
	}
	view := objectViewOf(d, name, named)
	// That a member may be null is said once, for all requests.
	for i := range view.Fields {
		view.Fields[i].Type = withoutNull(view.Fields[i].Type)
	}
	return &view
}

func answerViewOf(status string, a *answer) answerView {
	v := answerView{Status: status, Description: proseOf(a.Description), Errors: errorNames(a)}
	if v.Errors == nil {
		for _, content := range a.Content {
			if v.Type = typeOf(&content.Value.Schema); content.Name != "application/json" {
				v.Type = []text{{Text: content.Name}}
			}
			v.Sample = dedent(content.Value.Example)
		}
	}
	for _, h := range a.Headers {
		// Every answer has it, which is said once.
		if h.Name != "X-Request-Id" {
			v.Headers = append(v.Headers, fieldView{Name: h.Name, Description: proseOf(h.Value.Description)})
		}
	}
	return v
}

func objectViewOf(d *description, name string, s *schema) objectView {
	v := objectView{Name: name, Description: proseOf(s.Description)}
	for _, value := range s.Enum {
		v.Values = append(v.Values, fieldView{Name: value, Description: proseOf(s.EnumDescriptions[value])})
	}
	v.Fields = fieldsOf(d, s)
	if v.Values == nil && v.Fields == nil {
		v.Type = typeOf(s)
		if limits := limitsOf(s); limits != "" {
			v.Type = append(v.Type, text{Text: ", " + limits})
		}
	}
	return v
}

// fieldsOf lists the members of an object, first those that it takes over
// from another.
func fieldsOf(d *description, s *schema) []fieldView {
	var fields []fieldView
	for _, part := range s.AllOf {
		if base, ok := d.Components.Schemas.get(refName(part.Ref)); ok {
			fields = append(fields, fieldsOf(d, base)...)
		}
	}
	for _, p := range s.Properties {
		fields = append(fields, fieldView{
			Name: p.Name, Type: typeOf(p.Value), Limits: limitsOf(p.Value),
			Required: slices.Contains(s.Required, p.Name), Description: proseOf(p.Value.Description),
		})
	}
	return fields
}

// typeOf says in words what a schema takes.
func typeOf(s *schema) []text {
	switch {
	case s.Ref != "":
		name := refName(s.Ref)
		return []text{{Text: name, Object: name}}
	case s.OneOf != nil:
		return alternatives(s.OneOf)
	case s.Const != nil:
		return []text{{Text: fmt.Sprintf("%q", s.Const)}}
	case s.Enum != nil:
		return []text{{Text: `"` + strings.Join(s.Enum, `" or "`) + `"`}}
	}
	var words []text
	for i, name := range s.Type {
		if i > 0 {
			words = append(words, text{Text: " or "})
		}
		words = append(words, typeWords(name, s)...)
	}
	return words
}

func alternatives(schemas []*schema) []text {
	var words []text
	for i, s := range schemas {
		if i > 0 {
			words = append(words, text{Text: " or "})
		}
		words = append(words, typeOf(s)...)
		if limits := limitsOf(s); limits != "" {
			words = append(words, text{Text: " (" + limits + ")"})
		}
	}
	return words
}

func typeWords(name string, s *schema) []text {
	switch {
	case name == "array" && s.Items != nil:
		return append([]text{{Text: "array of "}}, typeOf(s.Items)...)
	case name == "object" && s.AdditionalProperties != nil && s.AdditionalProperties.Type != nil:
		return []text{{Text: "object of strings"}}
	case s.Format == "date-time" && name == "string":
		return []text{{Text: "time"}}
	case s.Format == "uuid" && name == "string":
		return []text{{Text: "UUID"}}
	}
	return []text{{Text: name}}
}

// withoutNull leaves out the last alternative if that is null.
func withoutNull(words []text) []text {
	if n := len(words); n > 1 && words[n-1].Text == "null" {
		return words[:n-2]
	}
	return words
}

// limitsOf says in words how much a schema takes.
func limitsOf(s *schema) string {
	var limits []string
	for _, l := range []struct {
		low, high int
		unit      string
	}{
		{0, s.MaxBytes, " bytes"}, {s.MinItems, s.MaxItems, " items"}, {0, s.MaxProperties, " members"},
	} {
		limits = appendRange(limits, l.low, l.high, l.unit)
	}
	if s.MaxBytes == 0 { // the sharper limit
		limits = appendRange(limits, s.MinLength, s.MaxLength, " characters")
	}
	if s.Minimum != nil && s.Maximum != nil {
		limits = append(limits, fmt.Sprintf("%d to %d", *s.Minimum, *s.Maximum))
	}
	if s.Default != nil {
		limits = append(limits, fmt.Sprintf("default %v", s.Default))
	}
	return strings.Join(limits, ", ")
}

func appendRange(limits []string, low, high int, unit string) []string {
	switch {
	case high == 0:
		return limits
	case low == 0:
		return append(limits, fmt.Sprintf("at most %d%s", high, unit))
	}
	return append(limits, fmt.Sprintf("%d to %d%s", low, high, unit))
}

// curlOf is a command that can be pasted once the two variables are set.
func curlOf(method, path string, op *operation, e member[example]) string {
	body, query := dedent(e.Value.Value), ""
	var lines []string
	if len(op.Security) > 0 {
		lines = append(lines, `-H "Authorization: Bearer $OUTBOXD_API_KEY"`)
	}
	for _, p := range op.Parameters {
		value := fmt.Sprint(p.Example)
		switch p.In {
		case "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", value)
		case "header":
			if p.Name == "Idempotency-Key" {
				value += "-" + e.Name // another request, another key
			}
			lines = append(lines, "-H "+shellQuote(p.Name+": "+value))
		case "query":
			// One is enough to show how; some exclude each other.
			query = cmp.Or(query, "?"+p.Name+"="+value)
		}
	}
	if body != "" {
		lines = append(lines, "-H 'Content-Type: application/json'", "-d "+shellQuote(body))
	}
	command := "curl "
	if method != "GET" && (method != "POST" || body == "") {
		command += "-X " + method + " "
	}
	lines = slices.Insert(lines, 0, command+`"$OUTBOXD_URL`+path+query+`"`)
	return strings.Join(lines, " \\\n  ")
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// dedent keeps an example as it is written, but for the place where it stands.
func dedent(value jsontext.Value) string {
	lines := strings.Split(string(value), "\n")
	last := lines[len(lines)-1] // closes what the first line opens
	indent := last[:len(last)-len(strings.TrimLeft(last, " "))]
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], indent)
	}
	return strings.Join(lines, "\n")
}
