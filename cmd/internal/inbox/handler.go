package inbox

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"unicode"
)

const (
	// pagePolicy lets a page use this server's own files and nothing else.
	pagePolicy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; " +
		"img-src 'self' data:; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

	// bodyPolicy is for a stranger's HTML: its own styles and the pictures
	// that came with it, no script, no form, nothing remote. Its links open in
	// a new tab as ordinary pages, because following them is what a developer
	// wants to do with a mail.
	bodyPolicy = "default-src 'none'; img-src data:; font-src data:; style-src 'unsafe-inline'; " +
		"form-action 'none'; base-uri 'none'; frame-ancestors 'self'; " +
		"sandbox allow-popups allow-popups-to-escape-sandbox"

	// filePolicy is for what is to be saved and never shown.
	filePolicy = "default-src 'none'; sandbox; frame-ancestors 'none'"
)

//go:embed pages
var files embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"bytes": formatSize,
	"clock": formatClock,
	"join":  strings.Join,
}).ParseFS(files, "pages/*.html"))

// handler serves the pages and the API of one inbox.
type handler struct {
	inbox *Inbox
	store *store
}

func newHandler(in *Inbox) http.Handler {
	h := handler{inbox: in, store: in.store}
	mux := http.NewServeMux()
	route := func(pattern string, serve func(http.ResponseWriter, *http.Request) error) {
		mux.Handle(pattern, endpoint(serve))
	}
	route("GET /{$}", h.listPage)
	route("POST /clear", h.clearPage)
	route("GET /messages/{id}", h.messagePage)
	route("GET /messages/{id}/body", h.body)
	route("GET /messages/{id}/download", h.download)
	route("GET /messages/{id}/attachments/{index}", h.attachment)
	route("GET /style.css", asset("style.css"))
	route("GET /list.js", asset("list.js"))

	route("GET /api/messages", h.apiList)
	route("DELETE /api/messages", h.apiClear)
	route("GET /api/messages/{id}", h.apiMessage)
	route("GET /api/messages/{id}/source", h.apiSource)

	// A page on another site must not empty the inbox by way of the
	// developer's browser.
	return secured(http.NewCrossOriginProtection().Handler(mux))
}

// secured sets the headers that every answer has.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// endpoint turns a returned error into an answer.
type endpoint func(http.ResponseWriter, *http.Request) error

// ServeHTTP answers with what the function writes, or with its error.
func (serve endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := serve(w, r)
	if err == nil {
		return
	}
	status := http.StatusInternalServerError
	if errors.Is(err, errNotFound) {
		status = http.StatusNotFound
	}
	if strings.HasPrefix(r.URL.Path, "/api/") {
		_ = writeJSON(w, status, apiError{Error: err.Error()})
		return
	}
	http.Error(w, err.Error(), status)
}

// message reads and parses the message that the path names.
func (h handler) message(r *http.Request) (message, []byte, error) {
	s, raw, err := h.store.get(r.PathValue("id"))
	if err != nil {
		return message{}, nil, err
	}
	return parseMessage(s, raw), raw, nil
}

// body is the message's HTML as a document of its own, for the frame.
func (h handler) body(w http.ResponseWriter, r *http.Request) error {
	m, _, err := h.message(r)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Security-Policy", bodyPolicy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	send(w, m.framedHTML())
	return nil
}

func (h handler) download(w http.ResponseWriter, r *http.Request) error {
	s, raw, err := h.store.get(r.PathValue("id"))
	if err != nil {
		return err
	}
	writeFile(w, s.ID+fileSuffix, raw)
	return nil
}

func (h handler) attachment(w http.ResponseWriter, r *http.Request) error {
	m, _, err := h.message(r)
	if err != nil {
		return err
	}
	index, err := strconv.Atoi(r.PathValue("index"))
	if err != nil || index < 0 || index >= len(m.Attachments) {
		return fmt.Errorf("%w: it has no such attachment", errNotFound)
	}
	a := m.Attachments[index]
	writeFile(w, safeFilename(a), a.Content)
	return nil
}

// writeFile makes the browser save the content. The type is always that of
// unknown bytes: what a stranger's message calls it is not to be trusted.
func writeFile(w http.ResponseWriter, name string, content []byte) {
	h := w.Header()
	h.Set("Content-Security-Policy", filePolicy)
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
	h.Set("Content-Length", strconv.Itoa(len(content)))
	send(w, content)
}

// safeFilename is the attachment's name without folders, control characters
// and leading dots.
func safeFilename(a attachment) string {
	name := path.Base(strings.ReplaceAll(a.Filename, `\`, "/"))
	name = strings.Map(func(r rune) rune {
		// Format characters can make an .exe look like a .txt.
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '/' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(name, ""))
	name = strings.TrimLeft(strings.TrimSpace(name), ".")
	if name == "" {
		return fmt.Sprintf("attachment-%d.bin", a.Index+1)
	}
	return name
}

func asset(name string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		http.ServeFileFS(w, r, files, "pages/"+name)
		return nil
	}
}

// render writes a page, or nothing if its template fails.
func render(w http.ResponseWriter, name string, data any) error {
	var page bytes.Buffer
	if err := pages.ExecuteTemplate(&page, name, data); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	send(w, page.Bytes())
	return nil
}

// send writes the answer's body. When that fails the client has gone, and
// there is nobody to tell.
func send(w http.ResponseWriter, body []byte) { _, _ = w.Write(body) }
