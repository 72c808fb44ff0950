package inbox

import (
	"bytes"
	"encoding/base64"
	"net/url"
	"regexp"
	"strings"

	nethtml "golang.org/x/net/html"
)

// baseTag makes links open in a new tab, not inside the frame.
const baseTag = `<base target="_blank">`

// framedHTML prepares a message's HTML for the frame: pictures that travel
// within the message are put in place, because the frame may load nothing.
// All else stays byte for byte; it is the frame's policy, and not this
// function, that keeps scripts and remote content out.
func (m message) framedHTML() []byte {
	pictures := m.pictures()
	var out bytes.Buffer
	based := false
	z := nethtml.NewTokenizer(strings.NewReader(m.HTML))
	for z.Next() != nethtml.ErrorToken {
		raw := bytes.Clone(z.Raw()) // Token reads the same buffer
		token := z.Token()
		isTag := token.Type == nethtml.StartTagToken || token.Type == nethtml.SelfClosingTagToken
		if isTag && !based && token.Data != "html" && token.Data != "head" {
			out.WriteString(baseTag) // after a doctype, or the page turns quirky
			based = true
		}
		if isTag && usePictures(&token, pictures) {
			out.WriteString(token.String())
		} else {
			out.Write(raw)
		}
	}
	return out.Bytes()
}

// pictureAddress finds cid: addresses, also in a srcset or a style.
var pictureAddress = regexp.MustCompile(`cid:[^\s"'(),;<>]+`)

// usePictures replaces the cid: addresses in a tag's attributes, and tells
// whether there were any.
func usePictures(token *nethtml.Token, pictures map[string]string) bool {
	changed := false
	for i, attr := range token.Attr {
		token.Attr[i].Val = pictureAddress.ReplaceAllStringFunc(attr.Val, func(address string) string {
			data, ok := pictures[address]
			if !ok {
				return address
			}
			changed = true
			return data
		})
	}
	return changed
}

// pictures maps the cid: addresses of the message's images to data: URLs.
func (m message) pictures() map[string]string {
	pictures := map[string]string{}
	for _, a := range m.Attachments {
		if a.ContentID == "" || !a.IsImage() {
			continue
		}
		data := "data:" + a.ContentType + ";base64," + base64.StdEncoding.EncodeToString(a.Content)
		pictures["cid:"+a.ContentID] = data
		pictures["cid:"+url.PathEscape(a.ContentID)] = data
	}
	return pictures
}
