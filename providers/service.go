package providers

import (
	"fmt"
	"net/textproto"
)

// Service is what services behind an HTTP API have in common: they take a
// message as an object, with limits that they answer a 4xx beyond.
type Service struct {
	// Name is the service's own spelling of its name, for error messages.
	Name string
	// MaxRecipients bounds To, Cc and Bcc together.
	MaxRecipients int
	// OwnHeaders are fields that the service sets itself, in canonical form.
	OwnHeaders []string
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
		if seen[name] {
			return Refuse("bad_header", s.Name+" carries a header once, and none of its own: "+h.Name)
		}
		seen[name] = true
	}
	return nil
}
