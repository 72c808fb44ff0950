package api

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"sync"

	"github.com/go-chi/chi/v5"

	"github.com/outboxd/outboxd/internal/redact"
	"github.com/outboxd/outboxd/outbox"
)

// The page behind a link to unsubscribe. Recipients see it, so it answers in
// HTML whatever happens, and it needs no script, no cookie and nothing from the
// network.
var (
	//go:embed unsubscribe/page.html
	unsubscribeTemplate string
	//go:embed unsubscribe/style.css
	unsubscribeStyle string
)

var unsubscribePage = sync.OnceValues(func() (*template.Template, error) {
	return template.New("unsubscribe").Parse(unsubscribeTemplate)
})

// notice is what the page says.
type notice struct {
	Title string
	Text  string
	// Sender is whom the text is about; empty: it is not known any more.
	Sender string
	// Ask adds the button that unsubscribes.
	Ask bool

	status     int // zero: 200
	retryAfter int // seconds; zero: no Retry-After
}

// page serves a route for people that asks for no API key.
func (s *server) page(h func(*http.Request) (*notice, error)) http.HandlerFunc {
	return s.open(func(r *http.Request) (*response, error) {
		var n *notice
		_, err := s.call(func(r *http.Request) (_ *response, err error) {
			n, err = h(r)
			return nil, err
		}, r)
		if err != nil {
			n = s.noticeOf(r, err)
		}
		return n.render()
	})
}

// noticeOf is an error in the words of the page. What else there is to say goes
// to the log.
func (s *server) noticeOf(r *http.Request, err error) *notice {
	if errors.Is(err, outbox.ErrNotFound) {
		return &notice{
			status: http.StatusNotFound, Title: "This link does not work",
			Text: "It is not complete, or not from us. Please open it from the email again.",
		}
	}
	e, l := errorOf(err), lineOf(r)
	l.name, l.detail = e.Name, redact.Error(err)
	return &notice{
		status: e.StatusCode, retryAfter: e.retryAfter, Title: "This did not work",
		Text: "Something went wrong on our side, and nothing was changed. Please try again in a minute.",
	}
}

// askToUnsubscribe serves GET /unsubscribe/{token}. Programs that scan emails
// follow their links, so it changes nothing (RFC 8058, 1).
func (s *server) askToUnsubscribe(r *http.Request) (*notice, error) {
	sender, err := s.outbox.UnsubscribeSender(r.Context(), chi.URLParam(r, "token"))
	if err != nil {
		return nil, err
	}
	return &notice{Title: "Unsubscribe", Text: "You will get no more emails from", Sender: sender, Ask: true}, nil
}

// unsubscribe serves POST /unsubscribe/{token}, for the button and for mail
// programs (RFC 8058, 3.2). That it is a POST says enough: the body is not read,
// in whichever of the two forms it comes.
func (s *server) unsubscribe(r *http.Request) (*notice, error) {
	if err := s.outbox.Unsubscribe(r.Context(), chi.URLParam(r, "token")); err != nil {
		return nil, err
	}
	return &notice{Title: "You are unsubscribed", Text: "You will get no more of these emails. You can close this page."}, nil
}

func (n *notice) render() (*response, error) {
	page, err := unsubscribePage()
	if err != nil {
		return nil, fmt.Errorf("parse the template of /unsubscribe: %w", err)
	}
	var out bytes.Buffer
	err = page.Execute(&out, struct {
		*notice
		Style template.CSS
	}{n, template.CSS(unsubscribeStyle)}) //nolint:gosec // our own file
	if err != nil {
		return nil, fmt.Errorf("render /unsubscribe: %w", err)
	}
	header := pageHeader(unsubscribeStyle, "'self'")
	// The address of the page is a key; search engines and other sites get none.
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Robots-Tag", "noindex")
	if n.retryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(n.retryAfter))
	}
	return &response{status: n.status, header: header, body: out.Bytes()}, nil
}

// pageHeader allows a page its own style and forms to where it says, and nothing
// else, so that text on it can never become a script.
func pageHeader(style, forms string) http.Header {
	sum := sha256.Sum256([]byte(style))
	return http.Header{
		"Content-Type": {"text/html; charset=utf-8"},
		"Content-Security-Policy": {"default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; base-uri 'none'; form-action " + forms + "; frame-ancestors 'none'"},
	}
}
