package imf

import "github.com/outboxd/outboxd/providers"

// Mailbox returns a as it stands in an address field: in ASCII, with its name
// quoted or as encoded words.
func Mailbox(a providers.Address) string { return address(a) }

// Unstructured returns the value of the named field in ASCII: as it is, or as
// encoded words.
func Unstructured(name, value string) string {
	if providers.IsASCII(value) {
		return value
	}
	return encodedWords(name, value)
}
