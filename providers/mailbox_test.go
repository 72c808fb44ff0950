package providers_test

import (
	"net/mail"
	"testing"

	"github.com/outboxd/outboxd/providers"
)

// Row 1: a name arrives as it was, whatever is in it.
func TestMailbox(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"":               "s@example.com",
		"Acme":           "Acme <s@example.com>",
		"Jürgen Müller":  "Jürgen Müller <s@example.com>",
		"Müller, Jürgen": `"Müller, Jürgen" <s@example.com>`,
		`a "b" \ c`:      `"a \"b\" \\ c" <s@example.com>`,
		" a ":            `" a " <s@example.com>`,
		"=?utf-8?q?x?=":  `"=?utf-8?q?x?=" <s@example.com>`,
		"a@b.example":    `"a@b.example" <s@example.com>`,
	} {
		got := providers.Address{Name: name, Email: "s@example.com"}.Mailbox()
		if got != want {
			t.Errorf("%q is written %s, want %s", name, got, want)
		}
		read, err := mail.ParseAddress(got)
		if err != nil || name != "=?utf-8?q?x?=" && read.Name != name {
			t.Errorf("%s is read as %v, %v", got, read, err)
		}
	}
}
