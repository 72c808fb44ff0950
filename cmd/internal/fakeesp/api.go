package fakeesp

import (
	"bytes"
	"embed"
	"encoding/json"
	"html/template"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

const (
	certificatePath = "/SimpleNotificationService-fake.pem"
	confirmPath     = "/fake/sns-confirm"

	// maxScript bounds a script that is posted.
	maxScript = 1 << 20

	// maxShown bounds the accepted messages on the page; the API has all.
	maxShown = 200
)

// Message is an accepted message in GET /fake/accepted.
type Message struct {
	Time      time.Time `json:"time"`
	Provider  string    `json:"provider"`
	ID        string    `json:"id"`
	Reference string    `json:"reference"`
	From      string    `json:"from"`
	To        []string  `json:"to"`
	Subject   string    `json:"subject"`
	// Bytes is the size of the body, which is at GET /fake/accepted/{id} as it
	// came over the wire.
	Bytes int `json:"bytes"`

	body []byte
}

// accepted returns what was accepted, the oldest first.
func (s *Server) accepted() []Message {
	list := []Message{}
	for _, a := range append(s.http.Accepted(), s.smtp.Accepted()...) {
		list = append(list, newMessage(a))
	}
	slices.SortStableFunc(list, func(a, b Message) int { return a.Time.Compare(b.Time) })
	return list
}

func newMessage(a providertest.Accepted) Message {
	return Message{
		Time: a.At.UTC(), Provider: a.Provider, ID: a.ID, Reference: a.Reference,
		From: a.From, To: a.To, Subject: a.Subject, Bytes: len(a.Body), body: a.Body,
	}
}

// pages serves the page and the API. What changes the fake is not to be had from
// a page on another site by way of the developer's browser.
func (s *Server) pages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /fake/style.css", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFileFS(w, r, files, "pages/style.css")
	})
	mux.HandleFunc("GET /fake/accepted", func(w http.ResponseWriter, _ *http.Request) {
		list := s.accepted()
		writeJSON(w, http.StatusOK, map[string]any{"total": len(list), "accepted": list})
	})
	mux.HandleFunc("GET /fake/accepted/{id}", s.body)
	mux.HandleFunc("GET /fake/script", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.script.current())
	})
	mux.HandleFunc("POST /fake/script", s.setScript)
	mux.HandleFunc("POST /fake/reset", s.resetPage)
	mux.HandleFunc("GET "+certificatePath, s.certificate)
	mux.HandleFunc("GET "+confirmPath, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	return secured(http.NewCrossOriginProtection().Handler(mux))
}

// secured sets the headers that every answer has: a page may use this server's
// style and nothing else.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// body answers with the bytes that were handed over. They are a stranger's, so
// the type is never one that a browser runs.
func (s *Server) body(w http.ResponseWriter, r *http.Request) {
	for _, m := range s.accepted() {
		if m.ID == r.PathValue("id") {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = w.Write(m.body)
			return
		}
	}
	writeJSON(w, http.StatusNotFound, failure{"no message " + r.PathValue("id") + " was accepted"})
}

type failure struct {
	Error string `json:"error"`
}

func (s *Server) setScript(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxScript))
	if err == nil {
		var rules []Rule
		if rules, err = ParseScript(text); err == nil {
			s.script.set(rules)
			writeJSON(w, http.StatusOK, rules)
			return
		}
	}
	writeJSON(w, http.StatusBadRequest, failure{err.Error()})
}

func (s *Server) resetPage(w http.ResponseWriter, r *http.Request) {
	s.reset()
	if r.Header.Get("Content-Type") == "application/x-www-form-urlencoded" && r.Header.Get("Origin") != "" {
		http.Redirect(w, r, "/", http.StatusSeeOther) // the page's button
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) certificate(w http.ResponseWriter, r *http.Request) {
	for _, h := range s.hooks {
		if ses, ok := h.(providertest.SESWebhooks); ok {
			w.Header().Set("Content-Type", "application/x-pem-file")
			_, _ = w.Write(ses.Certificate)
			return
		}
	}
	http.NotFound(w, r)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(v) // the client has gone
}

//go:embed pages
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"clock":  func(t time.Time) string { return t.Local().Format("15:04:05.000") },
	"status": statusText,
}).ParseFS(files, "pages/*.html"))

// statusText shows what the client was told.
func statusText(status int) string {
	if status == 0 {
		return "no answer"
	}
	return strconv.Itoa(status)
}

type view struct {
	Total       int
	Messages    []Message
	Requests    []Request
	Counts      map[string]int
	Outcomes    []string
	Rules       string
	Environment []string
	Webhooks    []string
	WebhookURL  string
	Domain      string
}

func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	messages := s.accepted()
	requests, counts := s.journal.state()
	v := view{
		Total: len(messages), Requests: requests, Counts: counts, Outcomes: outcomes, Rules: ruleText(s.script.current()),
		Environment: s.Environment(), Webhooks: s.WebhookEnvironment(), WebhookURL: s.options.WebhookURL, Domain: s.options.Domain,
	}
	slices.Reverse(messages)
	v.Messages = messages[:min(len(messages), maxShown)]
	var page bytes.Buffer
	if err := templates.ExecuteTemplate(&page, "page.html", v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page.Bytes())
}

// ruleText shows the rules as they are written, one a line.
func ruleText(rules []Rule) string {
	var text bytes.Buffer
	for _, r := range rules {
		line, err := json.Marshal(r)
		if err != nil {
			continue // of strings and numbers
		}
		text.Write(line)
		text.WriteByte('\n')
	}
	return text.String()
}
