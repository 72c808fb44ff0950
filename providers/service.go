package providers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/textproto"
	"strings"
)

// Service is what services behind an HTTP API have in common: they take a
// message as an object, with limits that they answer a 4xx beyond.
type Service struct {
	// Name is the service's own spelling of its name, for error messages.
	Name string
	// MaxRecipients bounds To, Cc and Bcc together.
	MaxRecipients int
	// MaxBytes bounds the rendered request.
	MaxBytes int
	// OwnHeaders are fields that the service sets itself, in canonical form.
	OwnHeaders []string
	// OwnPrefixes begin fields that tell the service what to do, in canonical
	// form.
	OwnPrefixes []string
}

// Check refuses what the service cannot carry, and all that [Check] refuses.
// The error is an *[Error] with outcome [Rejected].
func (s Service) Check(m Message) error {
	if err := Check(m); err != nil {
		return err
	}
	recipients := m.Recipients()
	switch {
	case len(m.To) == 0:
		return Refuse("no_recipient", s.Name+" needs an address in To")
	case len(recipients) > s.MaxRecipients:
		return Refuse("too_many_recipients", fmt.Sprintf("%s takes %d recipients", s.Name, s.MaxRecipients))
	case m.Subject == "":
		return Refuse("empty_subject", s.Name+" needs a subject")
	}
	for _, list := range [][]Address{{m.From}, recipients, m.ReplyTo} {
		for _, a := range list {
			if !IsASCII(a.Email) {
				return Refuse("utf8_address", s.Name+" carries no address beyond ASCII: "+a.Email)
			}
		}
	}
	return s.checkHeaders(m.Headers)
}

// checkHeaders refuses what does not fit an object of names and values, and
// the fields that are the service's own.
func (s Service) checkHeaders(list []Header) error {
	seen := map[string]bool{}
	for _, name := range s.OwnHeaders {
		seen[name] = true
	}
	for _, h := range list {
		name := textproto.CanonicalMIMEHeaderKey(h.Name)
		if seen[name] || s.owns(name) {
			return Refuse("bad_header", s.Name+" carries a header once, and none of its own: "+h.Name)
		}
		seen[name] = true
	}
	return nil
}

// owns reports whether a field's name begins like the service's own.
func (s Service) owns(name string) bool {
	for _, prefix := range s.OwnPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// CheckFile refuses a file that goes by no name, for which services answer a
// 4xx or drop it in silence, and a type that is none. An inline part may go by
// its content id, see [Attachment.Name].
func (s Service) CheckFile(a Attachment) error {
	if a.Name() == "" {
		return Refuse("unnamed_attachment", s.Name+" carries no file without a name")
	}
	if a.ContentType == "" {
		return nil
	}
	if _, _, err := mime.ParseMediaType(a.ContentType); err != nil {
		return Refuse("bad_content_type", "not a content type: "+a.ContentType)
	}
	return nil
}

// CheckSize refuses a rendered request that is larger than the service takes.
func (s Service) CheckSize(payload []byte) error {
	if len(payload) > s.MaxBytes {
		return Refuse("too_large", fmt.Sprintf("%d bytes rendered, %s takes %d", len(payload), s.Name, s.MaxBytes))
	}
	return nil
}

// JSON returns a request's body as JSON, of at most MaxBytes. The fields come
// in the order of the struct and the maps in the order of their keys, so the
// bytes follow from the value. HTML is left as it is: escaped, each of its
// brackets would take six bytes.
func (s Service) JSON(body any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(body); err != nil {
		return nil, &Error{Outcome: Rejected, Code: "not_json", Err: err}
	}
	payload := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	if err := s.CheckSize(payload); err != nil {
		return nil, err
	}
	return payload, nil
}
