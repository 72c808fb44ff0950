package api

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"sync"
)

// The page is rendered from the description that programs get, so it cannot
// say anything else. It needs no script and nothing from the network.
var (
	//go:embed docs/page.html
	docsTemplate string
	//go:embed docs/style.css
	docsStyle string
)

// serveDocs serves GET /docs.
func (s *server) serveDocs(*http.Request) (*response, error) {
	page, err := docsPage()
	if err != nil {
		return nil, err
	}
	return &response{body: page, header: docsHeader()}, nil
}

// docsPage renders the page once: it is the same for everybody.
var docsPage = sync.OnceValues(func() ([]byte, error) {
	d, err := readDescription(openAPI)
	if err != nil {
		return nil, fmt.Errorf("read openapi.json: %w", err)
	}
	page, err := template.New("docs").Parse(docsTemplate)
	if err != nil {
		return nil, fmt.Errorf("parse the template of /docs: %w", err)
	}
	var out bytes.Buffer
	err = page.Execute(&out, struct {
		*docsView
		Style template.CSS
	}{docsViewOf(d), template.CSS(docsStyle)}) //nolint:gosec // our own file
	if err != nil {
		return nil, fmt.Errorf("render /docs: %w", err)
	}
	return out.Bytes(), nil
})

// docsHeader allows the page its own style and nothing else, so that text in
// the description can never become a script.
func docsHeader() http.Header {
	sum := sha256.Sum256([]byte(docsStyle))
	return http.Header{
		"Content-Type": {"text/html; charset=utf-8"},
		"Content-Security-Policy": {"default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
	}
}
