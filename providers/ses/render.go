package ses

import (
	"fmt"
	"net/textproto"
	"regexp"
	"strings"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/imf"
)

// Render implements [providers.Provider]: a message in Internet Message Format.
// SES puts a Date and a Message-ID of its own in place of ours:
// https://docs.aws.amazon.com/ses/latest/dg/header-fields.html
func (p *Provider) Render(r providers.Request) ([]byte, error) {
	payload, err := imf.Render(r)
	if err != nil {
		return nil, err
	}
	if err := check(r); err != nil {
		return nil, err
	}
	if len(payload) > maxBytes {
		return nil, providers.Refuse("too_large", fmt.Sprintf("%d bytes rendered, Amazon SES takes %d", len(payload), maxBytes))
	}
	return payload, nil
}

// check refuses what SES cannot carry and MIME could.
func check(r providers.Request) error {
	m := r.Message
	if n := len(m.Recipients()); n > maxRecipients {
		return providers.Refuse("too_many_recipients", fmt.Sprintf("Amazon SES takes %d recipients", maxRecipients))
	}
	// A local part has to be ASCII:
	// https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_Destination.html
	if imf.NeedsUTF8(m) {
		return providers.Refuse("utf8_address", "Amazon SES carries no address beyond ASCII")
	}
	if !word.MatchString(r.Key) {
		return providers.Refuse("bad_key", "Amazon SES carries no such key")
	}
	if err := checkTags(m.Tags); err != nil {
		return err
	}
	return checkHeaders(m.Headers)
}

// word is what a tag's name and value are made of, and the key, which is a
// tag's value: https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_MessageTag.html
//
// How many tags a message may have is published nowhere; too many are a
// BadRequest.
var word = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)

// checkTags refuses a name that comes twice, which makes two values of one name
// in events.
func checkTags(tags []providers.Tag) error {
	seen := map[string]bool{ReferenceTag: true}
	for _, t := range tags {
		if !word.MatchString(t.Name) || !word.MatchString(t.Value) {
			return providers.Refuse("bad_tag", "not a tag that Amazon SES carries: "+t.Name)
		}
		if seen[t.Name] {
			return providers.Refuse("repeated_tag", "one value of a tag, and "+ReferenceTag+" is outboxd's: "+t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}

// checkHeaders refuses what steers SES, such as another configuration set, and
// a field that comes twice, which SES refuses of most fields:
// https://docs.aws.amazon.com/ses/latest/dg/header-fields.html
func checkHeaders(list []providers.Header) error {
	seen := map[string]bool{}
	for _, h := range list {
		name := textproto.CanonicalMIMEHeaderKey(h.Name)
		if seen[name] || strings.HasPrefix(name, "X-Ses-") {
			return providers.Refuse("bad_header", "Amazon SES carries a header once, and none of its own: "+h.Name)
		}
		seen[name] = true
	}
	return nil
}
