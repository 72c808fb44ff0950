package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/internal/redact"
)

// handlerFunc answers a request with a response or an error; only [server.open]
// writes to the connection.
type handlerFunc func(*http.Request) (*response, error)

// keyedFunc is a handler behind an API key.
type keyedFunc func(*http.Request, *apiKey) (*response, error)

// response is a success.
type response struct {
	status int // zero: 200
	header http.Header
	body   any // bytes and a json.RawMessage go out as they are
}

// open serves a route that asks for no API key.
func (s *server) open(h handlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		resp, err := s.call(h, r)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		maps.Copy(w.Header(), resp.header)
		s.write(w, r, cmp.Or(resp.header.Get("Content-Type"), "application/json"), max(resp.status, http.StatusOK), resp.body)
	}
}

// keyed serves a route behind an API key with the scope.
func (s *server) keyed(scope string, h keyedFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.open(func(r *http.Request) (*response, error) {
			key, err := s.authenticate(r, scope)
			if err != nil {
				return nil, err
			}
			lineOf(r).org, lineOf(r).key = key.org.String(), key.id
			defer s.limits.show(w.Header(), key)
			if err := s.limits.admit(key); err != nil {
				return nil, err
			}
			return h(r, key)
		})(w, r)
	}
}

// call turns a panic into an error, so that the client gets an answer and the
// process goes on.
func (s *server) call(h handlerFunc, r *http.Request) (resp *response, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.ErrorContext(r.Context(), "panic", "panic", redact.Quoted(fmt.Sprint(p)), "stack", string(debug.Stack()))
			resp, err = nil, problem(http.StatusInternalServerError, "internal_server_error", internalMessage)
		}
	}()
	return h(r)
}

func (s *server) write(w http.ResponseWriter, r *http.Request, contentType string, status int, body any) {
	encoded, err := encode(body)
	if err != nil {
		s.log.ErrorContext(r.Context(), "encode answer", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// The client may be gone; there is nobody to tell.
	_, _ = w.Write(encoded)
}

func encode(body any) ([]byte, error) {
	switch raw := body.(type) {
	case json.RawMessage:
		return raw, nil
	case []byte:
		return raw, nil
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // an address in <> is no HTML here
	err := encoder.Encode(body)
	return out.Bytes(), err
}

// line is what a request's log line says beyond the request itself.
type line struct {
	requestID, org, key, name, detail string
}

type lineKey struct{}

func lineOf(r *http.Request) *line {
	if l, ok := r.Context().Value(lineKey{}).(*line); ok {
		return l
	}
	return new(line)
}

// observe gives the request an id, a span and its log line. The line names the
// route's pattern: a path may hold an address.
func (s *server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l := &line{requestID: uuid.NewString()}
		w.Header().Set("X-Request-Id", l.requestID)
		r = r.WithContext(context.WithValue(r.Context(), lineKey{}, l))
		r, span := s.tracer.start(r)
		rec := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
		start := time.Now()
		next.ServeHTTP(rec, r)
		s.metrics.answered(r.Method, chi.RouteContext(r.Context()).RoutePattern(), rec.status, time.Since(start))
		endSpan(span, r, l, rec.status)

		level := slog.LevelInfo
		if rec.status >= http.StatusInternalServerError {
			level = slog.LevelError
		}
		s.log.LogAttrs(r.Context(), level, "request",
			slog.String("method", r.Method), slog.String("route", chi.RouteContext(r.Context()).RoutePattern()),
			slog.Int("status", rec.status), slog.Duration("took", time.Since(start)),
			slog.String("request_id", l.requestID), slog.String("org", l.org), slog.String("key", l.key),
			slog.String("name", l.name), slog.String("detail", l.detail), logTrace(span))
	})
}

type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (r *statusRecorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// tolerant routes by what a path names, whatever base URL a client has put it
// behind: one that ends in a slash (//emails) or has a prefix (/v1/emails). It
// needs no configuration, so clients with different base URLs work side by side.
func tolerant(routes chi.Routes) func(http.Handler) http.Handler {
	// Asked for at the first request: routes come after middleware.
	roots := sync.OnceValue(func() map[string]bool { return rootsOf(routes) })
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			chi.RouteContext(r.Context()).RoutePath = routePath(r.URL.EscapedPath(), roots())
			next.ServeHTTP(w, r)
		})
	}
}

// rootsOf is the first segment of every route.
func rootsOf(routes chi.Routes) map[string]bool {
	roots := map[string]bool{}
	for _, route := range routes.Routes() {
		root, _, _ := strings.Cut(strings.TrimPrefix(route.Pattern, "/"), "/")
		roots[root] = true
	}
	return roots
}

// routePath cleans an escaped path, in which a slash that belongs to a name is no
// separator, and leaves out what stands before the first segment that is a root.
// What follows that segment is never skipped, so a path that begins like a route
// is that route or none.
func routePath(requested string, roots map[string]bool) string {
	clean := path.Clean("/" + requested)
	for rest := clean; rest != ""; {
		segment, _, _ := strings.Cut(rest[1:], "/")
		if roots[segment] {
			return rest
		}
		rest = rest[1+len(segment):]
	}
	return clean
}

// pathID reads the id in the path. One that is no UUID names nothing.
func pathID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil {
		return uuid.Nil, errNotFound
	}
	return id, nil
}
