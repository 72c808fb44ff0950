package providers

import "strings"

const (
	// maxMessageID is more than any service's id needs.
	maxMessageID = 256
	// maxExcerpt is how much is kept of a reply in no documented form.
	maxExcerpt = 500
)

// MessageID returns id as it can be stored and shown, for
// [Receipt].ProviderMessageID: nothing if it is longer than 256 bytes or has a
// character that is not visible ASCII. The message is accepted whatever its id
// is.
func MessageID(id string) string {
	if len(id) > maxMessageID || strings.ContainsFunc(id, notVisible) {
		return ""
	}
	return id
}

// Excerpt returns the beginning of a reply in no documented form, for
// [Error].Detail: at most 500 bytes, as UTF-8.
func Excerpt(body []byte) string {
	return strings.ToValidUTF8(string(body[:min(len(body), maxExcerpt)]), "")
}
