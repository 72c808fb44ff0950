package imf

import (
	"bytes"
	"encoding/base64"
	"net/mail"
	"strings"
	"unicode/utf8"

	"github.com/outboxd/outboxd/providers"
)

const (
	// foldAt is the length of a line with an encoded word (RFC 2047, 2), and
	// less than what RFC 5322, 2.1.1 recommends for all.
	foldAt = 76

	// wordBytes is how much text goes into one encoded word. 45 bytes are 60
	// in base64, and the word may have 75 in all: RFC 2047, 2.
	wordBytes = 45

	// wordFrame is the length of an encoded word without its text.
	wordFrame = len("=?utf-8?B??=")

	// firstWordBytes is the least that goes into the word beside a field's
	// name, also if the name is so long that the line gets too long.
	firstWordBytes = 12
)

// writeField writes a header field and folds it at single spaces. Unfolding
// gives the value back byte for byte; a word is never cut.
func writeField(b *bytes.Buffer, name, value string) {
	b.WriteString(name + ":")
	col := len(name) + 1
	rest := " " + strings.Trim(value, " ")
	for first := true; rest != ""; first = false {
		n := wordEnd(rest)
		// Not before the first word: a first line of the name alone is legal
		// and breaks readers.
		if !first && col+n > foldAt {
			b.WriteString("\r\n")
			col = 0
		}
		b.WriteString(rest[:n])
		col += n
		rest = rest[n:]
	}
	b.WriteString("\r\n")
}

// wordEnd returns the length of s up to the next place to fold, which is a
// single space. Common readers make one space of a fold whatever was there, so
// a run of spaces is not a place.
func wordEnd(s string) int {
	for i := 1; i < len(s)-1; i++ {
		if s[i] == ' ' && s[i-1] != ' ' && s[i+1] != ' ' {
			return i
		}
	}
	return len(s)
}

// subject returns s as it stands in a header, encoded if it has to be: beyond
// ASCII, with more text without a place to fold than a line can have, or with
// what a reader would take for an encoded word.
func subject(s string) string {
	if !providers.IsASCII(s) || strings.Contains(s, "=?") {
		return encodedWords("Subject", s)
	}
	for rest := s; rest != ""; {
		n := wordEnd(rest)
		if n > maxLine-len("Subject:  ") {
			return encodedWords("Subject", s)
		}
		rest = rest[n:]
	}
	return s
}

// address returns a as it stands in a header.
func address(a providers.Address) string {
	// Many readers decode words in quoted strings, where none are.
	if !providers.IsASCII(a.Name) || strings.Contains(a.Name, "=?") {
		return encodedWords("Reply-To", a.Name) + " <" + a.Email + ">"
	}
	return (&mail.Address{Name: a.Name, Address: a.Email}).String()
}

// encodedWords returns s as encoded words that are separated by spaces, which
// readers drop. No word cuts a character (RFC 2047, 5), and the first fits on
// the line of the field's name, or of a longer name.
func encodedWords(field, s string) string {
	var words []string
	room := (foldAt - len(field+": ") - wordFrame) / 4 * 3
	limit := min(max(room, firstWordBytes), wordBytes)
	for s != "" {
		n := min(limit, len(s))
		for n < len(s) && !utf8.RuneStart(s[n]) {
			n--
		}
		words = append(words, "=?utf-8?B?"+base64.StdEncoding.EncodeToString([]byte(s[:n]))+"?=")
		s, limit = s[n:], wordBytes
	}
	return strings.Join(words, " ")
}
