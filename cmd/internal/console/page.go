package console

import (
	"bytes"
	"errors"
	"html/template"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/outboxd/outboxd/outbox"
)

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"age":        formatAge,
	"ago":        formatAgo,
	"join":       strings.Join,
	"listing":    listingOf,
	"number":     formatNumber,
	"prose":      proseOf,
	"rate":       formatRate,
	"recipients": recipientsOf,
	"rfc3339":    func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"stamp":      formatStamp,
	"status":     statusOf,
	"when":       whenOf,
	"workers":    workersOf,
}).ParseFS(files, "pages/*.html"))

// page is what every page has.
type page struct {
	// File is the template; Section is its place in the navigation.
	File, Section, Title string
	Status               int
	// Notice says what has just been done.
	Notice string
	// Search is what the search box holds.
	Search string
	// Every makes the browser load the page again after so many seconds; 0: never.
	Every int
	Body  any

	// These are filled in when it is shown.
	Now      time.Time
	ReadOnly bool
	RiverUI  string
}

// response is a page, or a redirect.
type response interface {
	write(w http.ResponseWriter, r *http.Request, h handler) error
}

// redirect leads to another page.
type redirect string

func (to redirect) write(w http.ResponseWriter, r *http.Request, _ handler) error {
	http.Redirect(w, r, string(to), http.StatusSeeOther)
	return nil
}

// write renders the page, or nothing if its template fails.
func (p page) write(w http.ResponseWriter, _ *http.Request, h handler) error {
	p.Now, p.ReadOnly, p.RiverUI = time.Now(), h.ReadOnly, h.RiverUI
	var html bytes.Buffer
	if err := pages.ExecuteTemplate(&html, p.File, p); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if p.Status != 0 {
		w.WriteHeader(p.Status)
	}
	_, _ = w.Write(html.Bytes()) // when that fails, nobody is there to be told
	return nil
}

// endpoint serves a page, or says on one why there is none.
type endpoint struct {
	handler
	serve func(*http.Request) (response, error)
}

// ServeHTTP implements [http.Handler].
func (e endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", pagePolicy)
	err := checkForm(r)
	var answer response
	if err == nil {
		answer, err = e.serve(r)
	}
	if err == nil {
		err = answer.write(w, r, e.handler)
	}
	if err == nil {
		return
	}
	problem := problemOf(err)
	if problem.Status >= http.StatusInternalServerError {
		e.Logger.ErrorContext(r.Context(), "console failed", "route", r.Pattern, "error", err)
	}
	if err := (page{File: "problem.html", Title: problem.Title, Status: problem.Status, Body: problem}).write(w, r, e.handler); err != nil {
		http.Error(w, problem.Title, problem.Status)
	}
}

// checkForm refuses what no text field of a browser sends, and no database takes.
func checkForm(r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return errNoText
	}
	for _, values := range r.Form {
		for _, value := range values {
			if !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
				return errNoText
			}
		}
	}
	return nil
}

var (
	errNoPage   = errors.New("no such page")
	errNoText   = errors.New("no text")
	errReadOnly = errors.New("read-only")
)

// problem is why there is no page, and what to do.
type problem struct {
	Status        int
	Title, Advice string
}

var problems = []struct {
	err error
	problem
}{
	{errNoPage, problem{http.StatusNotFound, "There is no such page", "Start from the overview, or search."}},
	{errNoText, problem{http.StatusBadRequest, "That is no text", "What was typed, or the address of the page, has characters that are none."}},
	{outbox.ErrNotFound, problem{
		http.StatusNotFound, "There is no such email",
		"Its id may be of another installation, or its org was deleted. Search for its recipient or its idempotency key.",
	}},
	{errReadOnly, problem{
		http.StatusForbidden, "This console is read-only",
		"OUTBOXD_ADMIN_READ_ONLY is set. Use outboxctl, or another api process.",
	}},
	{outbox.ErrNotUnknown, problem{
		http.StatusConflict, "The email is not in doubt",
		"Nothing was changed. It was settled meanwhile, or a worker is asking the provider at this moment: look at it again.",
	}},
	{outbox.ErrNotFailed, problem{
		http.StatusConflict, "The email has not failed",
		"Nothing was changed. Somebody else may have retried it: look at it again.",
	}},
	{outbox.ErrContentPurged, problem{
		http.StatusConflict, "The content of this email is no longer kept",
		"Nothing was changed. What is purged cannot be sent again: the application has to submit it anew.",
	}},
	{outbox.ErrNotCancelable, problem{
		http.StatusConflict, "The email can no longer be canceled",
		"Nothing was changed. An attempt has begun, or the email has ended: look at it again.",
	}},
	{outbox.ErrNotSuppressed, problem{
		http.StatusConflict, "The address is not suppressed",
		"Nothing was changed. Somebody else may have removed it.",
	}},
}

// problemOf keeps the text of errors that are not ours from the page.
func problemOf(err error) problem {
	for _, known := range problems {
		if errors.Is(err, known.err) {
			return known.problem
		}
	}
	if outbox.IsUnavailable(err) {
		return problem{
			http.StatusServiceUnavailable, "The database did not answer in time",
			"What is accepted stays in Postgres and is safe. Try again, with a shorter time if it was a list; " +
				"then look at the database and at the log of this process.",
		}
	}
	return problem{http.StatusInternalServerError, "Something went wrong here", "The log of this process says what."}
}
