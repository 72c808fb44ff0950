package imf

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/textproto"
	"net/url"
	"strings"

	"github.com/outboxd/outboxd/providers"
)

// part is a node of the message's tree: a leaf with its encoded body, or a
// multipart of the given kind.
type part struct {
	header textproto.MIMEHeader
	body   []byte

	kind     string
	params   map[string]string
	children []part
}

// structure returns the tree of m:
//
//	mixed( alternative( text, related( html, inline... ) ), attachment... )
//
// with the levels left out that would have one child only.
func structure(m providers.Message) (part, error) {
	inline, attached, err := fileParts(m)
	if err != nil {
		return part{}, err
	}
	var bodies []part
	if m.Text != "" {
		bodies = append(bodies, textPart("text/plain", m.Text))
	}
	if m.HTML != "" {
		html := textPart("text/html", m.HTML)
		if len(inline) > 0 {
			// RFC 2387, 3.1: the type of the root is a required parameter.
			html = part{
				kind: "related", params: map[string]string{"type": "text/html"},
				children: append([]part{html}, inline...),
			}
		}
		bodies = append(bodies, html)
	}
	root := wrap("alternative", bodies)
	return wrap("mixed", append([]part{root}, attached...)), nil
}

func wrap(kind string, children []part) part {
	if len(children) == 1 {
		return children[0]
	}
	return part{kind: kind, children: children}
}

// fileParts splits the attachments into those that the HTML shows and the
// others. Without HTML nothing can refer to an inline part, and it is carried
// as an attachment.
func fileParts(m providers.Message) (inline, attached []part, err error) {
	for _, a := range m.Attachments {
		shown := a.ContentID != "" && m.HTML != ""
		p, err := filePart(a, shown)
		if err != nil {
			return nil, nil, err
		}
		if shown {
			inline = append(inline, p)
		} else {
			attached = append(attached, p)
		}
	}
	return inline, attached, nil
}

func textPart(mediaType, text string) part {
	// Line breaks become LF here and CRLF in the writer. Given a lone CR, the
	// writer drops the next LF if only encoded characters are in between.
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	var b bytes.Buffer
	w := quotedprintable.NewWriter(&b)
	_, _ = w.Write([]byte(text)) // to a bytes.Buffer
	_ = w.Close()
	return part{
		header: textproto.MIMEHeader{
			"Content-Type":              {mediaType + "; charset=utf-8"},
			"Content-Transfer-Encoding": {"quoted-printable"},
		},
		body: b.Bytes(),
	}
}

func filePart(a providers.Attachment, inline bool) (part, error) {
	contentType, err := fileType(a)
	if err != nil {
		return part{}, err
	}
	disposition := "attachment"
	if inline {
		disposition = "inline"
	}
	if a.Filename != "" {
		disposition += fileName(a.Filename)
	}
	header := textproto.MIMEHeader{
		"Content-Type":              {contentType},
		"Content-Disposition":       {disposition},
		"Content-Transfer-Encoding": {"base64"},
	}
	if a.ContentID != "" {
		if !isContentID(a.ContentID) {
			return part{}, providers.Refuse("bad_content_id", "not a content id: "+a.ContentID)
		}
		header.Set("Content-ID", "<"+a.ContentID+">")
	}
	return part{header: header, body: base64Lines(a.Content)}, nil
}

// fileName returns the parameter with a file's name, encoded as RFC 2231 has it
// where it is beyond ASCII, or where readers would take it for an encoded word,
// which many look for in quoted strings too.
func fileName(name string) string {
	if !strings.Contains(name, "=?") {
		return strings.TrimPrefix(mime.FormatMediaType("x", map[string]string{"filename": name}), "x")
	}
	return "; filename*=utf-8''" + strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
}

// fileType returns the media type of a, with its parameters.
func fileType(a providers.Attachment) (string, error) {
	if a.ContentType == "" {
		return "application/octet-stream", nil
	}
	mediaType, params, err := mime.ParseMediaType(a.ContentType)
	formatted := mime.FormatMediaType(mediaType, params)
	switch {
	case err != nil, formatted == "", !strings.Contains(mediaType, "/"), strings.HasPrefix(mediaType, "multipart/"):
		return "", providers.Refuse("bad_content_type", "not the type of a file: "+a.ContentType)
	case strings.HasPrefix(mediaType, "message/"):
		// These types may not be in base64 (RFC 2046, 5.2), which alone keeps
		// the file as it is. Its name still says what it is.
		return "application/octet-stream", nil
	}
	return formatted, nil
}

// isContentID reports whether s can stand between angle brackets.
func isContentID(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || r == '<' || r == '>'
	}) < 0
}

// base64Lines encodes content in lines of 76 characters: RFC 2045, 6.8.
func base64Lines(content []byte) []byte {
	const inLine, outLine = 57, 76
	out := make([]byte, 0, (len(content)/inLine+1)*(outLine+2))
	for len(content) > 0 {
		n := min(inLine, len(content))
		out = base64.StdEncoding.AppendEncode(out, content[:n])
		out = append(out, "\r\n"...)
		content = content[n:]
	}
	return out
}

// encode returns the part's header and its body on the wire. Boundaries follow
// from the key, so that the same request gives the same bytes.
func (p part) encode(key string) (textproto.MIMEHeader, []byte, error) {
	if p.kind == "" {
		return p.header, p.body, nil
	}
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if err := w.SetBoundary(boundary(key, p.kind)); err != nil {
		return nil, nil, err
	}
	for _, child := range p.children {
		header, body, err := child.encode(key)
		if err != nil {
			return nil, nil, err
		}
		pw, err := w.CreatePart(header)
		if err != nil {
			return nil, nil, err
		}
		_, _ = pw.Write(body) // to a bytes.Buffer
	}
	if err := w.Close(); err != nil {
		return nil, nil, err
	}
	params := map[string]string{"boundary": w.Boundary()}
	maps.Copy(params, p.params)
	header := textproto.MIMEHeader{"Content-Type": {mime.FormatMediaType("multipart/"+p.kind, params)}}
	return header, b.Bytes(), nil
}

// boundary returns a boundary that cannot occur in a body: "=_" is in neither
// base64 nor quoted-printable (RFC 2045, 6.7). A kind occurs once in a message.
func boundary(key, kind string) string {
	sum := sha256.Sum256([]byte(kind + "\x00" + key))
	return "=_" + hex.EncodeToString(sum[:16])
}
