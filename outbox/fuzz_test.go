package outbox_test

import (
	"net/mail"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/outboxd/outboxd/outbox"
)

// An address that is accepted can be written into a header and an envelope, and
// means the same when it is read again.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{
		"a@example.com", "Name <a@example.com>", "Müller, Jürgen <j@example.com>", `"Doe, J." <j@example.com>`,
		"=?utf-8?q?J=C3=BCrgen?= <j@example.com>", "ü@example.com", "a@müller.example", "a@xn--mller-kva.example",
		`"a@b"@example.com`, "a@b@example.com", "a@localhost", "a@example", "a@[127.0.0.1]", "a@example.com.", "a@example.com..",
		"<a@example.com>", "<<a@example.com>>", "a <b> <c@example.com>", "a@example.com, b@example.com", "(c) a@example.com",
		"=?utf-8?q?a=0D=0ABcc:_x=40example.com?= <a@example.com>", `"=?utf-8?q?a=0A?=" <a@example.com>`, "a\n@example.com",
		"\xff <a@example.com>", "=?iso-8859-1?q?=FF?= <a@example.com>", "a\u2028b <a@example.com>", "A@EXAMPLE.COM", "a@ｅxample.com",
		strings.Repeat("a", 65) + "@example.com", strings.Repeat("é", 500) + " <a@example.com>", "a@" + strings.Repeat("a", 64) + ".example", "", "@", "a@", "@example.com", ">", "<>",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := outbox.ParseAddress(s)
		if err != nil {
			return
		}
		for _, part := range []string{got.Name, got.Email} {
			if !utf8.ValidString(part) || strings.ContainsFunc(part, unicode.IsControl) {
				t.Fatalf("%q is read as %q, which cannot be in a header", s, part)
			}
		}
		checkEnvelope(t, got.Email)
		for _, form := range []string{got.Email, "<" + got.Email + ">", "Name <" + got.Email + ">"} {
			if again, err := outbox.ParseAddress(form); err != nil || again.Email != got.Email {
				t.Fatalf("%q is read as %q, and that as %q (%v)", s, got.Email, again.Email, err)
			}
		}
	})
}

// checkEnvelope: the address cannot be taken for another one by anybody who
// reads it after us.
func checkEnvelope(t *testing.T, email string) {
	t.Helper()
	at := strings.LastIndexByte(email, '@')
	local, domain := email[:at], email[at+1:]
	if strings.Contains(local, "@") && !strings.HasPrefix(local, `"`) {
		t.Fatalf("%q splits in two ways", email)
	}
	if strings.ContainsAny(email, "<> ,;\t") && !strings.HasPrefix(local, `"`) {
		t.Fatalf("%q can end early", email)
	}
	if strings.ContainsFunc(domain, func(c rune) bool { return c <= ' ' || c > '~' }) || strings.HasSuffix(domain, ".") {
		t.Fatalf("domain %q is not ASCII, or not bare", domain)
	}
	parsed, err := mail.ParseAddress("<" + email + ">")
	if err != nil || parsed.Address[strings.LastIndexByte(parsed.Address, '@')+1:] != domain {
		t.Fatalf("the standard library reads %q as %v (%v)", email, parsed, err)
	}
}

// The properties of the fingerprint, with inputs that coverage guides.
func FuzzFingerprint(f *testing.F) { f.Fuzz(rapid.MakeFuzz(injective)) }

func FuzzFingerprintOfMovedBytes(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(injectiveWhenBytesMove))
}
