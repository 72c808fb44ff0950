package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// shown is an answer of the console, parsed.
type shown struct {
	t      *testing.T
	what   string
	status int
	header http.Header
	html   string
	root   *html.Node
}

// do makes a request as the person alice. A form is posted.
func (d *desk) do(method, target string, form url.Values) shown {
	d.t.Helper()
	r := httptest.NewRequestWithContext(d.t.Context(), method, target, strings.NewReader(form.Encode()))
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.SetBasicAuth("alice", "secret")
	recorder := httptest.NewRecorder()
	d.console.ServeHTTP(recorder, r)
	s := shown{t: d.t, what: method + " " + target, status: recorder.Code, header: recorder.Header(), html: recorder.Body.String()}
	root, err := html.Parse(strings.NewReader(s.html))
	if err != nil {
		d.t.Fatal(err)
	}
	s.root = root
	return s
}

// see shows a page that there has to be.
func (d *desk) see(target string) shown {
	d.t.Helper()
	s := d.do(http.MethodGet, target, nil)
	if s.status != http.StatusOK {
		d.t.Fatalf("%s: answer %d %s", s.what, s.status, s.text())
	}
	return s
}

// elements are all of those names.
func (s shown) elements(names ...atom.Atom) (list []*html.Node) {
	for n := range s.root.Descendants() {
		for _, name := range names {
			if n.Type == html.ElementNode && n.DataAtom == name {
				list = append(list, n)
			}
		}
	}
	return list
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// textOf is what an element says, with single spaces.
func textOf(n *html.Node) string {
	var text strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			text.WriteString(d.Data + " ")
		}
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

// text is what the page's body says.
func (s shown) text() string {
	s.t.Helper()
	for _, body := range s.elements(atom.Body) {
		return textOf(body)
	}
	return ""
}

// says checks that each part is on the page.
func (s shown) says(parts ...string) {
	s.t.Helper()
	for _, part := range parts {
		if !strings.Contains(s.text(), part) {
			s.t.Errorf("%s does not say %q:\n%s", s.what, part, s.text())
		}
	}
}

// hides checks that no part is in the page's source.
func (s shown) hides(parts ...string) {
	s.t.Helper()
	for _, part := range parts {
		if strings.Contains(s.html, part) {
			s.t.Errorf("%s shows %q", s.what, part)
		}
	}
}

// rows are the names of the rows of the page's tables.
func (s shown) rows() (names []string) {
	for _, th := range s.elements(atom.Th) {
		if attribute(th, "scope") == "row" {
			names = append(names, textOf(th))
		}
	}
	return names
}

// link is where the link with that text leads.
func (s shown) link(text string) string {
	s.t.Helper()
	for _, a := range s.elements(atom.A) {
		if textOf(a) == text {
			return attribute(a, "href")
		}
	}
	s.t.Fatalf("%s has no link %q", s.what, text)
	return ""
}

// links are where all links of the page into the console lead.
func (s shown) links() (targets []string) {
	for _, a := range s.elements(atom.A) {
		if to := attribute(a, "href"); strings.HasPrefix(to, "/console/") {
			targets = append(targets, strings.SplitN(to, "#", 2)[0])
		}
	}
	return targets
}

// confirmed presses the button of a page that asks.
func (d *desk) confirmed(target string) shown {
	d.t.Helper()
	page := d.see(target)
	for _, form := range page.elements(atom.Form) {
		if attribute(form, "method") != "post" {
			continue
		}
		values := url.Values{}
		for n := range form.Descendants() {
			if n.DataAtom == atom.Input {
				values.Set(attribute(n, "name"), attribute(n, "value"))
			}
		}
		return d.do(http.MethodPost, attribute(form, "action"), values)
	}
	d.t.Fatalf("%s asks nothing", page.what)
	return shown{}
}

// accessible checks what can be checked without a browser.
func (s shown) accessible() {
	s.t.Helper()
	fail := func(format string, args ...any) { s.t.Helper(); s.t.Errorf(s.what+": "+format, args...) }
	if lang := attribute(s.elements(atom.Html)[0], "lang"); lang != "en" {
		fail("the language is %q", lang)
	}
	if title := textOf(s.elements(atom.Title)[0]); !strings.HasSuffix(title, " – outboxd console") {
		fail("the title is %q", title)
	}
	if len(s.elements(atom.H1)) != 1 || len(s.elements(atom.Main)) != 1 || len(s.elements(atom.Nav)) != 1 {
		fail("it has not one h1, one main and one nav")
	}
	ids, labelled := map[string]bool{}, map[string]bool{}
	for n := range s.root.Descendants() {
		if id := attribute(n, "id"); id != "" {
			if ids[id] {
				fail("the id %s is there twice", id)
			}
			ids[id] = true
		}
		if n.DataAtom == atom.Label {
			labelled[attribute(n, "for")] = true
		}
	}
	for _, n := range s.elements(atom.Input, atom.Select, atom.Textarea) {
		if attribute(n, "type") != "hidden" && !labelled[attribute(n, "id")] {
			fail("%s %q has no label", n.Data, attribute(n, "name"))
		}
	}
	for _, n := range s.elements(atom.Th) {
		if attribute(n, "scope") == "" {
			fail("the heading %q has no scope", textOf(n))
		}
	}
	for _, n := range s.elements(atom.A, atom.Button) {
		if textOf(n) == "" {
			fail("a %s says nothing", n.Data)
		}
	}
	s.ordered(fail)
	s.harmless(fail)
}

// ordered checks that no level of headings is left out, and that the first link
// leads past the navigation.
func (s shown) ordered(fail func(string, ...any)) {
	level := 0
	for _, n := range s.elements(atom.H1, atom.H2, atom.H3, atom.H4) {
		if to := int(n.Data[1] - '0'); to > level+1 {
			fail("%s comes after level %d", n.Data, level)
		} else {
			level = to
		}
	}
	if first := s.elements(atom.A)[0]; attribute(first, "href") != "#main" {
		fail("the first link leads to %s", attribute(first, "href"))
	}
	for _, n := range s.elements(atom.Section, atom.Div) {
		if by := attribute(n, "aria-labelledby"); by != "" && !strings.Contains(s.html, fmt.Sprintf("id=%q", by)) {
			fail("nothing has the id %s", by)
		}
	}
}

// harmless checks that the page needs nothing that its policy refuses.
func (s shown) harmless(fail func(string, ...any)) {
	if n := s.elements(atom.Script, atom.Style, atom.Img, atom.Iframe); len(n) > 0 {
		fail("it has a %s", n[0].Data)
	}
	for n := range s.root.Descendants() {
		for _, a := range n.Attr {
			if a.Key == "style" || strings.HasPrefix(a.Key, "on") {
				fail("%s has the attribute %s", n.Data, a.Key)
			}
		}
	}
	if policy := s.header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; style-src 'self';") {
		fail("its policy is %q", policy)
	}
}
