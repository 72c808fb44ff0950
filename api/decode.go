package api

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/outboxd/outboxd/outbox"
)

// Decoding repairs nothing in silence. encoding/json turns invalid UTF-8 and
// lone surrogates into U+FFFD, takes the last of duplicate keys and matches
// names in any case, so two different requests can become one. This decoder
// refuses all of that.

// emailRequest is the body of POST /emails.
type emailRequest struct {
	From        string           `json:"from"`
	To          stringList       `json:"to"`
	Cc          stringList       `json:"cc"`
	Bcc         stringList       `json:"bcc"`
	ReplyTo     stringList       `json:"reply_to"`
	Subject     string           `json:"subject"`
	HTML        string           `json:"html"`
	Text        string           `json:"text"`
	Headers     stringMap        `json:"headers"`
	Attachments list[attachment] `json:"attachments"`
	Tags        list[outbox.Tag] `json:"tags"`
	Metadata    stringMap        `json:"metadata"`
	ScheduledAt instant          `json:"scheduled_at"`
	ExpiresAt   instant          `json:"expires_at"`
	OnUnknown   string           `json:"on_unknown"`
	Priority    string           `json:"priority"`
	Provider    string           `json:"provider"`

	ListUnsubscribe bool `json:"list_unsubscribe"`
}

type attachment struct {
	Filename    string  `json:"filename"`
	Content     content `json:"content"`
	ContentType string  `json:"content_type"`
	ContentID   string  `json:"content_id"`
	Path        string  `json:"path"`
}

// decodeEmail decodes one email.
func decodeEmail(body []byte) (outbox.Message, error) {
	var wire emailRequest
	if err := decode(body, &wire); err != nil {
		return outbox.Message{}, err
	}
	return wire.message()
}

// message maps the wire to the domain.
func (e *emailRequest) message() (outbox.Message, error) {
	m := outbox.Message{
		From: e.From, To: e.To, Cc: e.Cc, Bcc: e.Bcc, ReplyTo: e.ReplyTo,
		Subject: e.Subject, HTML: e.HTML, Text: e.Text,
		Headers: e.Headers, Tags: e.Tags, Metadata: e.Metadata,
		ScheduledAt: time.Time(e.ScheduledAt), ExpiresAt: time.Time(e.ExpiresAt),
		OnUnknown: outbox.Policy(e.OnUnknown), Priority: outbox.Priority(e.Priority), Provider: e.Provider,
		ListUnsubscribe: e.ListUnsubscribe,
	}
	for i, a := range e.Attachments {
		field := fmt.Sprintf("attachments[%d].", i)
		if a.Path != "" {
			return m, invalid(outbox.FieldError{
				Field: field + "path", Message: "is not supported: outboxd fetches no URLs, send the file in content",
			})
		}
		if !a.Content.given {
			return m, invalid(outbox.FieldError{Field: field + "content", Message: "is required"})
		}
		m.Attachments = append(m.Attachments, outbox.Attachment{
			Filename: a.Filename, ContentType: a.ContentType, ContentID: a.ContentID, Content: a.Content.bytes,
		})
	}
	return m, nil
}

// readBody reads the whole body, within the limit.
func (s *server) readBody(r *http.Request) ([]byte, error) {
	if err := checkContentType(r); err != nil {
		return nil, err
	}
	body, err := readAll(r, s.maxBody, s.bodies)
	if err == nil && isDeep(body) {
		return nil, problem(http.StatusBadRequest, "invalid_json",
			fmt.Sprintf("The request body is nested more than %d levels deep.", maxDepth))
	}
	return body, err
}

func checkContentType(r *http.Request) error {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return problem(http.StatusUnsupportedMediaType, "unsupported_media_type",
			"Compressed request bodies are not taken; send the body without Content-Encoding.")
	}
	header := r.Header.Get("Content-Type")
	if header == "" {
		return nil
	}
	mediaType, params, err := mime.ParseMediaType(header)
	if err != nil || mediaType != "application/json" {
		return problem(http.StatusUnsupportedMediaType, "unsupported_media_type",
			"Send the body as Content-Type: application/json.")
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return problem(http.StatusUnsupportedMediaType, "unsupported_media_type", "Send the body in UTF-8.")
	}
	return nil
}

// decode reads exactly one JSON value of the type of v.
func decode(body []byte, v any) error {
	err := json.Unmarshal(body, v, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		return invalid(outbox.FieldError{Field: fieldOf(semantic.JSONPointer), Message: semanticMessage(semantic)})
	}
	return invalidJSON(err)
}

// invalidJSON says what is wrong and where, without quoting the body.
func invalidJSON(err error) error {
	reason := "it is not one complete JSON value"
	syntactic, ok := errors.AsType[*jsontext.SyntacticError](err)
	if ok {
		switch {
		case errors.Is(err, jsontext.ErrDuplicateName):
			reason = "a name is given twice: " + fieldOf(syntactic.JSONPointer)
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
			reason = "it ends early"
		default:
			reason = syntactic.Err.Error() + " at byte " + strconv.FormatInt(syntactic.ByteOffset, 10)
		}
	}
	e := problem(http.StatusBadRequest, "invalid_json", "The request body is not valid JSON: "+reason+".")
	e.cause = err
	return e
}

func semanticMessage(e *json.SemanticError) string {
	if wrong, ok := errors.AsType[wrongValue](e); ok {
		return string(wrong)
	}
	if errors.Is(e, json.ErrUnknownName) {
		return "is not a known field"
	}
	if e.JSONPointer == "" {
		return "the body must be a JSON object"
	}
	return "has the wrong type: " + kindName(e.JSONKind) + " is not accepted here"
}

func kindName(kind jsontext.Kind) string {
	switch kind {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "this value"
}

// fieldOf writes a JSON pointer the way people write fields: to[0],
// attachments[1].filename.
func fieldOf(pointer jsontext.Pointer) string {
	var field strings.Builder
	for token := range pointer.Tokens() {
		if _, err := strconv.Atoi(token); err == nil {
			field.WriteString("[" + token + "]")
			continue
		}
		if field.Len() > 0 {
			field.WriteByte('.')
		}
		field.WriteString(token)
	}
	name := field.String()
	return strings.ToValidUTF8(name[:min(len(name), 200)], "")
}

// wrongValue is a message about a value of the right kind of JSON.
type wrongValue string

func (w wrongValue) Error() string { return string(w) }

const rfc3339Message = "must be a time in RFC 3339, such as 2026-01-31T09:30:00Z"

// instant is an RFC 3339 time. SDKs send an empty string for none.
type instant time.Time

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (t *instant) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	var text string
	if err := json.UnmarshalDecode(dec, &text); err != nil || text == "" {
		return err
	}
	parsed, ok := parseTime(text)
	// Zero means absent: an email for the year 1 would go out at once.
	if !ok || parsed.IsZero() {
		return wrongValue(rfc3339Message)
	}
	*t = instant(parsed)
	return nil
}

var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

// parseTime reads RFC 3339 to the letter: time.Parse also takes a comma for the
// point and hours of one digit. The time must be one that RFC 3339 can write in
// UTC too.
func parseTime(text string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || !rfc3339.MatchString(text) {
		return time.Time{}, false
	}
	// Postgres keeps microseconds; what it would round must not count in the
	// fingerprint either.
	t = t.UTC().Truncate(time.Microsecond)
	return t, t.Year() >= 1 && t.Year() <= 9999
}

// content is a file: base64, or one of the two forms that official SDKs make
// of a byte array.
type content struct {
	bytes []byte
	given bool
}

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (c *content) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	var err error
	switch dec.PeekKind() {
	case 'n':
		return dec.SkipValue()
	case '[':
		c.bytes, err = byteValues(dec)
	case '{':
		c.bytes, err = nodeBuffer(dec)
	default:
		c.bytes, err = base64Text(dec)
	}
	c.given = err == nil
	return err
}

func base64Text(dec *jsontext.Decoder) ([]byte, error) {
	var text string
	if err := json.UnmarshalDecode(dec, &text); err != nil {
		return nil, err
	}
	// Base64 in lines of 76 is common; the padding is not optional.
	decoded, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, wrongValue("must be base64 (RFC 4648, section 4, with padding)")
	}
	return decoded, nil
}

// byteValues reads [104,105].
func byteValues(dec *jsontext.Decoder) ([]byte, error) {
	const wrong = wrongValue("must be an array of byte values, 0 to 255")
	if dec.PeekKind() != '[' {
		return nil, wrong
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	out := []byte{}
	for dec.PeekKind() != ']' {
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		// Into a []uint16 a null would go as a zero.
		b, err := strconv.ParseUint(string(value), 10, 8)
		if err != nil {
			return nil, wrong
		}
		out = append(out, byte(b))
	}
	_, err := dec.ReadToken()
	return out, err
}

// byteArray is a byte array inside the object that Node makes of a Buffer.
type byteArray []byte

// UnmarshalJSONFrom implements [json.UnmarshalerFrom].
func (b *byteArray) UnmarshalJSONFrom(dec *jsontext.Decoder) (err error) {
	*b, err = byteValues(dec)
	return err
}

// nodeBuffer reads {"type":"Buffer","data":[104,105]}.
func nodeBuffer(dec *jsontext.Decoder) ([]byte, error) {
	var buffer struct {
		Type string    `json:"type"`
		Data byteArray `json:"data"`
	}
	if err := json.UnmarshalDecode(dec, &buffer); err != nil {
		return nil, err
	}
	if buffer.Type != "Buffer" || buffer.Data == nil {
		return nil, wrongValue(`must be base64, an array of byte values or {"type":"Buffer","data":[...]}`)
	}
	return buffer.Data, nil
}
