package api

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/outboxd/outboxd/internal/redact"
	"github.com/outboxd/outboxd/providers"
)

// maxHookBody bounds a request of a provider. The largest are SendGrid's, which
// come in batches of less than 1 MB.
const maxHookBody = 4 << 20

// hookAnswer says what became of the events.
type hookAnswer struct {
	Recorded int `json:"recorded"`
	Known    int `json:"known"`
	Stray    int `json:"stray"`
}

// receiveEvents serves POST /hooks/{provider}. The provider's signature is the
// authentication. The answer is a success only once the events are committed, so
// that the provider reports again what was lost on the way.
func (s *server) receiveEvents(r *http.Request) (*response, error) {
	name := chi.URLParam(r, "provider")
	hook, ok := s.hooks[name]
	if !ok {
		return nil, problem(http.StatusNotFound, "not_found", "No events of such a provider are expected here.")
	}
	body, err := readAll(r, min(maxHookBody, s.maxBody), s.hookBodies)
	if err != nil {
		return nil, err
	}
	events, err := hook.ParseEvents(r.Context(), r.Header, body, time.Now())
	if err != nil {
		lineOf(r).detail = redact.Quoted(err.Error())
		switch {
		case errors.Is(err, providers.ErrHookUnavailable):
			return nil, unavailable(err)
		case errors.Is(err, providers.ErrUnverified):
			return nil, problem(http.StatusUnauthorized, "invalid_signature", "The request is not proven to be from the provider.")
		}
		return nil, problem(http.StatusBadRequest, "invalid_event", "The request is from the provider and cannot be understood.")
	}
	recorded, err := s.outbox.RecordEvents(r.Context(), name, events)
	if err != nil {
		return nil, err
	}
	if recorded.Stray > 0 {
		s.log.WarnContext(r.Context(), "events of no known attempt", slog.String("provider", name), slog.Int("count", recorded.Stray))
	}
	return &response{body: hookAnswer{recorded.New, recorded.Known, recorded.Stray}}, nil
}
