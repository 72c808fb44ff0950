package api

import (
	"bytes"
	_ "embed"
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
	return &response{body: page, header: pageHeader(docsStyle, "'none'")}, nil
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
