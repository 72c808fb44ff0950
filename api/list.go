package api

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// Limits of a page.
const (
	defaultPage = 20
	maxPage     = 100
)

// listAnswer is a page of anything.
type listAnswer struct {
	Object  string `json:"object"`
	HasMore bool   `json:"has_more"`
	Data    any    `json:"data"`
}

// listEmails serves GET /emails.
func (s *server) listEmails(r *http.Request, key *apiKey) (*response, error) {
	q, err := emailQuery(r.URL.Query())
	if err != nil {
		return nil, err
	}
	q.Org = key.org
	emails, more, err := s.outbox.List(r.Context(), q)
	if err != nil {
		return nil, err
	}
	data := make([]emailSummary, len(emails))
	for i := range emails {
		data[i] = emailSummaryOf(&emails[i])
	}
	return &response{body: listAnswer{Object: "list", HasMore: more, Data: data}}, nil
}

// queryReader reads parameters and collects what is wrong with them.
type queryReader struct {
	values url.Values
	errs   []outbox.FieldError
}

func emailQuery(values url.Values) (outbox.Query, error) {
	r := queryReader{values: values}
	r.known("limit", "after", "before", "status", "to", "tag", "created_after", "created_before")
	q := outbox.Query{
		Limit: r.limit(),
		After: r.id("after"), Before: r.id("before"),
		Status: r.status(), To: r.text("to"), Tag: r.text("tag"),
		CreatedAfter: r.time("created_after"), CreatedBefore: r.time("created_before"),
	}
	if q.After != uuid.Nil && q.Before != uuid.Nil {
		r.wrong("before", "cannot be combined with after")
	}
	if r.errs != nil {
		return q, invalid(r.errs...)
	}
	return q, nil
}

func (r *queryReader) wrong(name, message string) {
	r.errs = append(r.errs, outbox.FieldError{Field: name, Message: message})
}

// known refuses parameters that do not exist: a misspelt filter would
// otherwise select everything.
func (r *queryReader) known(names ...string) {
	for name, values := range r.values {
		if !slices.Contains(names, name) {
			r.wrong(strings.ToValidUTF8(name[:min(len(name), 64)], ""), "is not a known parameter")
		} else if len(values) > 1 {
			r.wrong(name, "is given twice")
		}
	}
}

// text refuses what Postgres does not take as text.
func (r *queryReader) text(name string) string {
	text := r.values.Get(name)
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		r.wrong(name, "must be UTF-8 without U+0000")
	}
	return text
}

func (r *queryReader) limit() int {
	text := r.values.Get("limit")
	if text == "" {
		return defaultPage
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		r.wrong("limit", "must be a number from 1 to 100")
	}
	return n
}

func (r *queryReader) id(name string) uuid.UUID {
	text := r.values.Get(name)
	if text == "" {
		return uuid.Nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		r.wrong(name, "must be an id")
	}
	return id
}

func (r *queryReader) status() outbox.Status {
	status := outbox.Status(r.values.Get("status"))
	if status != "" && !slices.Contains(outbox.Statuses, status) {
		r.wrong("status", "is not a status")
	}
	return status
}

func (r *queryReader) time(name string) time.Time {
	text := r.values.Get(name)
	if text == "" {
		return time.Time{}
	}
	t, ok := parseTime(text)
	if !ok {
		r.wrong(name, rfc3339Message)
	}
	return t
}
