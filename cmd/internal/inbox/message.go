package inbox

import (
	"bytes"
	"net/mail"
	"strings"
	"time"

	"github.com/jhillyerd/enmime/v2"
)

// summary is what a list shows of a message. It needs the header alone.
type summary struct {
	ID         string    `json:"id"`
	ReceivedAt time.Time `json:"received_at"`
	Size       int       `json:"size"`
	From       string    `json:"from"`
	To         []string  `json:"to"`
	Subject    string    `json:"subject"`
	Envelope   envelope  `json:"envelope"`
}

func summarise(id string, l label, raw []byte) summary {
	h := readHeader(raw)
	s := summary{
		ID:         id,
		ReceivedAt: l.ReceivedAt,
		Size:       len(raw),
		From:       strings.Join(h.addresses("From"), ", "),
		To:         h.addresses("To"),
		Subject:    h.get("Subject"),
		Envelope:   l.envelope,
	}
	if s.From == "" {
		s.From = l.From
	}
	if len(s.To) == 0 { // all recipients are blind ones
		s.To = l.To
	}
	return s
}

// field is one header field, unfolded.
type field struct {
	Name string
	raw  string
}

// Value is the field's text with encoded words decoded.
func (f field) Value() string {
	return strings.ToValidUTF8(enmime.DecodeRFC2047(f.raw), "\uFFFD")
}

// header is a message's header in its own order.
type header []field

// readHeader is lenient: a line that is no field is left out, because a
// developer's message may well be malformed and is to be shown all the same.
func readHeader(raw []byte) header {
	var h header
	for len(raw) > 0 {
		var line []byte
		line, raw, _ = bytes.Cut(raw, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\r"))
		if len(line) == 0 {
			break
		}
		if line[0] == ' ' || line[0] == '\t' {
			if len(h) > 0 {
				h[len(h)-1].raw += " " + strings.TrimSpace(string(line))
			}
			continue
		}
		name, value, ok := strings.Cut(string(line), ":")
		if ok {
			h = append(h, field{Name: strings.TrimSpace(name), raw: strings.TrimSpace(value)})
		}
	}
	return h
}

// get returns the first field of that name, decoded.
func (h header) get(name string) string {
	for _, f := range h {
		if strings.EqualFold(f.Name, name) {
			return f.Value()
		}
	}
	return ""
}

// addresses lists a field's addresses as people write them. One that cannot
// be parsed is shown as it is.
func (h header) addresses(name string) []string {
	var list []string
	for _, f := range h {
		if !strings.EqualFold(f.Name, name) {
			continue
		}
		parsed, err := enmime.ParseAddressList(f.raw)
		if err != nil {
			list = append(list, f.Value())
			continue
		}
		for _, address := range parsed {
			list = append(list, display(address))
		}
	}
	return list
}

// display writes an address without the encoding that mail.Address adds.
func display(a *mail.Address) string {
	if a.Name == "" {
		return a.Address
	}
	return a.Name + " <" + a.Address + ">"
}

// message is a parsed message.
type message struct {
	summary
	Header      header
	Text        string
	HTML        string
	Attachments []attachment
	// Problem says why the body could not be read; then only the header and
	// the source can be shown.
	Problem string
}

// attachment is a part of a message that is not its text: a file, or an image
// that its HTML shows.
type attachment struct {
	Index       int
	Filename    string
	ContentType string
	ContentID   string
	Disposition string
	Content     []byte
}

// IsImage tells whether a browser may show it within the message.
func (a attachment) IsImage() bool { return strings.HasPrefix(a.ContentType, "image/") }

// parser takes messages at their word: guessed character sets and a text made
// from the HTML would hide what was really sent.
var parser = enmime.NewParser(
	enmime.DisableCharacterDetection(true),
	enmime.DisableTextConversion(true),
)

func parseMessage(s summary, raw []byte) message {
	m := message{summary: s, Header: readHeader(raw)}
	parsed, err := parser.ReadEnvelope(bytes.NewReader(raw))
	if err != nil {
		m.Problem = err.Error()
		return m
	}
	m.Text, m.HTML = parsed.Text, parsed.HTML
	for _, group := range [][]*enmime.Part{parsed.Attachments, parsed.Inlines, parsed.OtherParts} {
		for _, p := range group {
			m.addAttachment(p)
		}
	}
	return m
}

// addAttachment leaves out the parts that Text and HTML were read from: a
// body may be marked "inline" too.
func (m *message) addAttachment(p *enmime.Part) {
	isText := p.ContentType == "text/plain" || p.ContentType == "text/html"
	if p.Disposition == "inline" && p.FileName == "" && isText {
		return
	}
	m.Attachments = append(m.Attachments, attachment{
		Index:       len(m.Attachments),
		Filename:    p.FileName,
		ContentType: p.ContentType,
		ContentID:   strings.Trim(p.ContentID, "<>"),
		Disposition: p.Disposition,
		Content:     p.Content,
	})
}
