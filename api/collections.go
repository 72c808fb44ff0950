package api

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/outboxd/outboxd/outbox"
)

const (
	// maxElements bounds a list or an object while it is read. How many it may
	// have is less, and is judged later with all that is wrong; but of a body of
	// 10 MB, three million empty attachments would take a hundred times its size.
	maxElements = 1000

	// maxDepth is how deep a body may be nested. What is documented needs 5.
	maxDepth = 32
)

// isDeep reports whether JSON is nested deeper than [maxDepth].
func isDeep(body []byte) bool {
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
		case inString:
		case c == '[' || c == '{':
			if depth++; depth > maxDepth {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}

const errTooMany = "has more than %d elements"

// list is a list that is read no further than [maxElements].
type list[T any] []T

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *list[T]) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '[' {
		return json.UnmarshalDecode(dec, (*[]T)(l))
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	*l = list[T]{}
	for dec.PeekKind() != ']' {
		if len(*l) == maxElements {
			return wrongValue(fmt.Sprintf(errTooMany, maxElements))
		}
		var element T
		if err := json.UnmarshalDecode(dec, &element); err != nil {
			return err
		}
		*l = append(*l, element)
	}
	_, err := dec.ReadToken()
	return err
}

// stringList takes "a" for ["a"].
type stringList []string

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (l *stringList) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '"' {
		return (*list[string])(l).UnmarshalJSONFrom(dec)
	}
	*l = make(stringList, 1)
	return json.UnmarshalDecode(dec, &(*l)[0])
}

// stringMap takes no null for a string: an empty header is not an absent one. It is
// read no further than [maxElements].
type stringMap map[string]string

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (m *stringMap) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '{' {
		return json.UnmarshalDecode(dec, (*map[string]string)(m))
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	*m = stringMap{}
	hasNull := false
	for dec.PeekKind() != '}' {
		if len(*m) == maxElements {
			return wrongValue(fmt.Sprintf(errTooMany, maxElements))
		}
		var name string
		var value *string
		if err := json.UnmarshalDecode(dec, &name); err != nil {
			return err
		}
		if err := json.UnmarshalDecode(dec, &value); err != nil {
			return err
		}
		if hasNull = hasNull || value == nil; !hasNull {
			(*m)[name] = *value
		}
	}
	if _, err := dec.ReadToken(); err != nil || !hasNull {
		return err
	}
	return wrongValue("has the wrong type: null is not accepted for a string in it")
}

// rawBatch is a batch that is read no further than what one may hold; the rest is
// counted.
type rawBatch struct {
	items []jsontext.Value
	count int
}

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (b *rawBatch) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '[' {
		return json.UnmarshalDecode(dec, &b.items)
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for ; dec.PeekKind() != ']'; b.count++ {
		if b.count >= outbox.MaxBatch {
			if err := dec.SkipValue(); err != nil {
				return err
			}
			continue
		}
		item, err := dec.ReadValue()
		if err != nil {
			return err
		}
		b.items = append(b.items, item.Clone())
	}
	_, err := dec.ReadToken()
	return err
}
