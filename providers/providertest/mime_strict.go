package providertest

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"net/textproto"
	"regexp"
	"strings"
	"unicode/utf8"
)

// checkMIME checks what the standards demand of a message on its way.
func checkMIME(content []byte) error {
	if err := checkLines(content); err != nil {
		return err
	}
	header, body, found := bytes.Cut(content, []byte("\r\n\r\n"))
	if !found {
		return errors.New("no empty line ends the header")
	}
	if !isSevenBit(body) {
		return errors.New("the body has bytes beyond ASCII")
	}
	if err := checkWords(header); err != nil {
		return err
	}
	parsed, err := mail.ReadMessage(bytes.NewReader(content))
	if err != nil {
		return err
	}
	if err := checkFields(textproto.MIMEHeader(parsed.Header)); err != nil {
		return err
	}
	return checkPart(textproto.MIMEHeader(parsed.Header), body, nil)
}

// checkLines checks line ends and lengths: RFC 5322, 2.1.1 and 2.3.
func checkLines(content []byte) error {
	for line := range bytes.Lines(content) {
		text, ok := bytes.CutSuffix(line, []byte("\r\n"))
		switch {
		case !ok:
			return fmt.Errorf("a line does not end with CRLF: %.60q", line)
		case bytes.ContainsAny(text, "\r\x00"):
			return fmt.Errorf("a bare CR or NUL in a line: %.60q", line)
		case len(text) > 998:
			return fmt.Errorf("a line of %d bytes, at most 998", len(text))
		}
	}
	return nil
}

func isSevenBit(b []byte) bool {
	return bytes.IndexFunc(b, func(r rune) bool { return r > '~' }) < 0
}

var encodedWord = regexp.MustCompile(`=\?[^?\s]+\?[bBqQ]\?[^?\s]*\?=`)

// checkWords checks that an encoded word has at most 75 characters and its line
// 76, and that none cuts a character in two: RFC 2047, 2 and 5.
func checkWords(header []byte) error {
	var decoder mime.WordDecoder
	for line := range bytes.Lines(header) {
		if n := len(bytes.TrimRight(line, "\r\n")); n > 76 && encodedWord.Match(line) {
			return fmt.Errorf("a line of %d characters with an encoded word, at most 76", n)
		}
	}
	for _, word := range encodedWord.FindAllString(string(header), -1) {
		text, err := decoder.Decode(word)
		switch {
		case err != nil:
			return fmt.Errorf("encoded word %s: %w", word, err)
		case len(word) > 75:
			return fmt.Errorf("an encoded word of %d characters, at most 75: %s", len(word), word)
		case !utf8.ValidString(text):
			return fmt.Errorf("a character is cut in two: %s", word)
		}
	}
	return nil
}

var messageID = regexp.MustCompile(`^<[!-;=?-~]+@[!-;=?-~]+>$`)

// checkFields checks the fields that a message has once: RFC 5322, 3.6.
func checkFields(h textproto.MIMEHeader) error {
	for _, name := range []string{"Date", "From", "Message-Id", "Mime-Version", "Content-Type"} {
		if n := len(h[name]); n != 1 {
			return fmt.Errorf("%d fields %s, want 1", n, name)
		}
	}
	for _, name := range []string{"To", "Cc", "Reply-To", "Subject"} {
		if n := len(h[name]); n > 1 {
			return fmt.Errorf("%d fields %s, at most 1", n, name)
		}
	}
	if _, err := mail.ParseDate(h.Get("Date")); err != nil {
		return err
	}
	if !messageID.MatchString(h.Get("Message-Id")) || h.Get("Mime-Version") != "1.0" {
		return fmt.Errorf("Message-ID %q, MIME-Version %q", h.Get("Message-Id"), h.Get("Mime-Version"))
	}
	if len(h["Bcc"]) > 0 {
		return errors.New("a field Bcc")
	}
	return nil
}

// checkPart checks a part and those in it. The relatives are the parts of the
// multipart/related that it stands in, nil elsewhere.
func checkPart(h textproto.MIMEHeader, body []byte, relatives []string) error {
	mediaType, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return err
	}
	for _, name := range []string{"Content-Type", "Content-Disposition"} {
		if strings.Contains(h.Get(name), "=?") {
			return fmt.Errorf("an encoded word in %s, where RFC 2231 applies", name)
		}
	}
	if strings.HasPrefix(mediaType, "multipart/") {
		return checkMultipart(mediaType, params["boundary"], body)
	}
	if h.Get("Content-Id") != "" {
		if id := h.Get("Content-Id"); !strings.HasPrefix(id, "<") || !strings.HasSuffix(id, ">") {
			return fmt.Errorf("Content-ID %s is not in angle brackets", id)
		}
	}
	disposition := h.Get("Content-Disposition")
	if strings.HasPrefix(disposition, "inline") && (len(relatives) == 0 || relatives[0] != "text/html") {
		return errors.New("an inline file that no multipart/related with HTML holds: RFC 2387")
	}
	if disposition == "" && !strings.EqualFold(params["charset"], "utf-8") {
		return fmt.Errorf("a body of type %s, want charset utf-8", h.Get("Content-Type"))
	}
	return checkEncoding(h.Get("Content-Transfer-Encoding"), body)
}

// checkEncoding checks a leaf's body: RFC 2045, 6.7 and 6.8.
func checkEncoding(encoding string, body []byte) error {
	switch strings.ToLower(encoding) {
	case "base64":
		var text []byte
		for line := range bytes.Lines(body) {
			if len(text)%76 != 0 {
				return errors.New("a base64 line before the last that has not 76 characters")
			}
			text = append(text, bytes.TrimRight(line, "\r\n")...)
		}
		_, err := base64.StdEncoding.DecodeString(string(text))
		return err
	case "quoted-printable":
		for line := range bytes.Lines(body) {
			if n := len(bytes.TrimRight(line, "\r\n")); n > 76 {
				return fmt.Errorf("a quoted-printable line of %d characters, at most 76", n)
			}
		}
		return nil
	case "", "7bit":
		return nil
	}
	return fmt.Errorf("Content-Transfer-Encoding %s", encoding)
}

// checkMultipart checks the parts of a multipart, and their order.
func checkMultipart(mediaType, boundary string, body []byte) error {
	type piece struct {
		header textproto.MIMEHeader
		body   []byte
	}
	var pieces []piece
	var types []string
	reader := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		p, err := reader.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(p)
		if err != nil {
			return err
		}
		kind, _, _ := strings.Cut(p.Header.Get("Content-Type"), ";")
		types = append(types, kind)
		pieces = append(pieces, piece{p.Header, content})
	}
	if mediaType == "multipart/alternative" && types[0] != "text/plain" {
		return fmt.Errorf("multipart/alternative of %v: the plainest is first (RFC 2046, 5.1.4)", types)
	}
	var relatives []string
	if mediaType == "multipart/related" {
		relatives = types
	}
	for _, p := range pieces {
		if err := checkPart(p.header, p.body, relatives); err != nil {
			return err
		}
	}
	return nil
}
