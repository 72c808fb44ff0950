package api_test

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/api"
)

func TestDocs(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	page := s.do("GET", "/docs", "", "Authorization", "")
	if page.status != http.StatusOK {
		t.Fatalf("answer %d %s", page.status, page.body)
	}
	c := openAPIContract(t)
	for _, op := range c.operations() {
		if !strings.Contains(page.body, `<article id="`+op.node.text("operationId")+`">`) {
			t.Errorf("%s is not on the page", op)
		}
	}
	for _, name := range c.errorNames() {
		if !regexp.MustCompile(`<tr id="error-` + name + `"><td>[45]\d\d</td>`).MatchString(page.body) {
			t.Errorf("%s is not on the page, with its status", name)
		}
	}
	if n := strings.Count(page.body, "curl &#34;$OUTBOXD_URL/") + strings.Count(page.body, "curl -X "); n < len(c.operations()) {
		t.Errorf("%d commands for %d operations", n, len(c.operations()))
	}
}

// Every link leads somewhere on the page, and no two places have one name.
func TestDocsLinks(t *testing.T) {
	t.Parallel()
	page := newService(t, api.Org{}, api.Key{}).do("GET", "/docs", "").body
	var places []string
	for _, id := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if slices.Contains(places, id[1]) {
			t.Errorf("two places are named %s", id[1])
		}
		places = append(places, id[1])
	}
	for _, link := range regexp.MustCompile(` href="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if link[1] != "openapi.json" && !slices.Contains(places, strings.TrimPrefix(link[1], "#")) {
			t.Errorf("the link %s leads nowhere", link[1])
		}
	}
}

// The page works without the network, and a browser holds it to that.
func TestDocsNeedsNoNetwork(t *testing.T) {
	t.Parallel()
	page := newService(t, api.Org{}, api.Key{}).do("GET", "/docs", "")
	for _, element := range []string{"<script", "<link", "<img", " src=", "url(", "@import", " style="} {
		if strings.Contains(strings.ReplaceAll(page.body, "&lt;img src=", ""), element) {
			t.Errorf("the page has %s", element)
		}
	}
	_, style, _ := strings.Cut(page.body, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	policy := page.header.Get("Content-Security-Policy")
	if want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.HasPrefix(policy, want) {
		t.Errorf("policy %q, want %q", policy, want)
	}
}

func TestOpenAPIIsServedAsWritten(t *testing.T) {
	t.Parallel()
	got := newService(t, api.Org{}, api.Key{}).do("GET", "/openapi.json", "", "Authorization", "")
	if got.status != http.StatusOK || got.body != string(openAPI) || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("answer %d %s, %d bytes", got.status, got.header.Get("Content-Type"), len(got.body))
	}
}
