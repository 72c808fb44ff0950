package api

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// The paths and shapes are those of the Resend API, so that its SDKs manage
// webhooks; what it does not have is said to be ours in openapi.json.

// createWebhookRequest is the body of POST /webhooks.
type createWebhookRequest struct {
	Endpoint string   `json:"endpoint"`
	Events   []string `json:"events"`
}

// updateWebhookRequest is the body of PATCH /webhooks/{id}.
type updateWebhookRequest struct {
	Endpoint string   `json:"endpoint"`
	Events   []string `json:"events"`
	Status   string   `json:"status"`
}

// replayWebhookRequest is the body of POST /webhooks/{id}/replay.
type replayWebhookRequest struct {
	Since instant `json:"since"`
}

// webhookReference is the answer to a change of a webhook.
type webhookReference struct {
	Object string    `json:"object"`
	ID     uuid.UUID `json:"id"`
}

// webhookSecret is the answer that tells a new secret.
type webhookSecret struct {
	webhookReference
	SigningSecret string `json:"signing_secret"`
}

// webhookDeleted is the answer to a deletion.
type webhookDeleted struct {
	webhookReference
	Deleted bool `json:"deleted"`
}

// webhookReplayed is the answer to a replay of many messages.
type webhookReplayed struct {
	webhookReference
	Replayed int  `json:"replayed"`
	HasMore  bool `json:"has_more"`
}

// webhookSummary is a webhook in a list.
type webhookSummary struct {
	webhookReference
	CreatedAt time.Time             `json:"created_at"`
	Status    outbox.WebhookStatus  `json:"status"`
	Endpoint  string                `json:"endpoint"`
	Events    []outbox.WebhookEvent `json:"events"`

	DisabledReason *string    `json:"disabled_reason"`
	FailingSince   *time.Time `json:"failing_since"`
}

// webhookDetail is one webhook with its secret.
type webhookDetail struct {
	webhookSummary
	SigningSecret string `json:"signing_secret"`
}

// webhookEventSummary is a message in a list, which Resend calls an event.
type webhookEventSummary struct {
	Object    string              `json:"object"`
	ID        uuid.UUID           `json:"id"`
	Type      outbox.WebhookEvent `json:"type"`
	CreatedAt time.Time           `json:"created_at"`
	Status    string              `json:"status"`

	EmailID        uuid.UUID  `json:"email_id"`
	Attempts       int        `json:"attempts"`
	NextAttemptAt  *time.Time `json:"next_attempt_at"`
	DeliveredAt    *time.Time `json:"delivered_at"`
	FailedAt       *time.Time `json:"failed_at"`
	LastStatusCode *int       `json:"last_status_code"`
	LastError      *string    `json:"last_error"`
}

// webhookEventDetail is one message with its payload.
type webhookEventDetail struct {
	webhookEventSummary
	Payload json.RawMessage `json:"payload"`
}

func webhookRef(id uuid.UUID) webhookReference { return webhookReference{Object: "webhook", ID: id} }

func webhookSummaryOf(w *outbox.Webhook) webhookSummary {
	return webhookSummary{
		webhookReference: webhookRef(w.ID), CreatedAt: w.CreatedAt.UTC(), Status: w.Status, Endpoint: w.Endpoint,
		Events: w.Events, DisabledReason: orNull(string(w.DisabledReason)), FailingSince: orNull(w.FailingSince),
	}
}

func webhookEventSummaryOf(m *outbox.WebhookMessage) webhookEventSummary {
	return webhookEventSummary{
		Object: "webhook_event", ID: m.ID, Type: m.Type, CreatedAt: m.CreatedAt.UTC(), Status: messageStatus(m),
		EmailID: m.Email, Attempts: m.Attempts, NextAttemptAt: orNull(m.NextAttemptAt),
		DeliveredAt: orNull(m.DeliveredAt), FailedAt: orNull(m.FailedAt),
		LastStatusCode: orNull(m.LastStatus), LastError: orNull(m.LastError),
	}
}

// messageStatus has the words of Resend.
func messageStatus(m *outbox.WebhookMessage) string {
	switch {
	case !m.DeliveredAt.IsZero():
		return "success"
	case !m.FailedAt.IsZero():
		return "failed"
	case m.Attempts > 0:
		return "attempting"
	}
	return "pending"
}

func webhookEvents(names []string) []outbox.WebhookEvent {
	events := make([]outbox.WebhookEvent, len(names))
	for i, name := range names {
		events[i] = outbox.WebhookEvent(name)
	}
	return events
}

// createWebhook serves POST /webhooks.
func (s *server) createWebhook(r *http.Request, key *apiKey) (*response, error) {
	var wire createWebhookRequest
	if err := s.read(r, &wire); err != nil {
		return nil, err
	}
	w, err := s.outbox.CreateWebhook(r.Context(), key.org, wire.Endpoint, webhookEvents(wire.Events))
	if err != nil {
		return nil, err
	}
	return &response{status: http.StatusCreated, body: webhookSecret{webhookRef(w.ID), w.Secret}}, nil
}

// listWebhooks serves GET /webhooks.
func (s *server) listWebhooks(r *http.Request, key *apiKey) (*response, error) {
	q := queryReader{values: r.URL.Query()}
	q.known("limit", "after", "before")
	limit, after, before := q.limit(), q.id("after"), q.id("before")
	if after != uuid.Nil && before != uuid.Nil {
		q.wrong("before", "cannot be combined with after")
	}
	if q.errs != nil {
		return nil, invalid(q.errs...)
	}
	webhooks, err := s.outbox.ListWebhooks(r.Context(), key.org)
	if err != nil {
		return nil, err
	}
	page, more := pageOf(webhooks, limit, after, before)
	data := make([]webhookSummary, len(page))
	for i := range page {
		data[i] = webhookSummaryOf(&page[i])
	}
	return &response{body: listAnswer{Object: "list", HasMore: more, Data: data}}, nil
}

// pageOf cuts a page out of all of an org's webhooks, the newest first.
func pageOf(all []outbox.Webhook, limit int, after, before uuid.UUID) (page []outbox.Webhook, more bool) {
	for _, w := range all {
		older, newer := w.ID.String() < after.String(), w.ID.String() > before.String()
		if (after == uuid.Nil || older) && (before == uuid.Nil || newer) {
			page = append(page, w)
		}
	}
	if len(page) <= limit {
		return page, false
	}
	if before != uuid.Nil {
		return page[len(page)-limit:], true // the nearest ones
	}
	return page[:limit], true
}

// webhook serves a route for the webhook in its path.
func webhook(serve func(r *http.Request, key *apiKey, id uuid.UUID) (any, error)) keyedFunc {
	return func(r *http.Request, key *apiKey) (*response, error) {
		id, err := uuid.Parse(chi.URLParam(r, "id"))
		if err != nil {
			return nil, errWebhookNotFound
		}
		body, err := serve(r, key, id)
		if err != nil {
			return nil, err
		}
		return &response{body: body}, nil
	}
}

// getWebhook serves GET /webhooks/{id}.
func (s *server) getWebhook(r *http.Request, key *apiKey, id uuid.UUID) (any, error) {
	w, err := s.outbox.GetWebhook(r.Context(), key.org, id)
	if err != nil {
		return nil, err
	}
	return webhookDetail{webhookSummaryOf(w), w.Secret}, nil
}

// updateWebhook serves PATCH /webhooks/{id}.
func (s *server) updateWebhook(r *http.Request, key *apiKey, id uuid.UUID) (any, error) {
	var wire updateWebhookRequest
	if err := s.read(r, &wire); err != nil {
		return nil, err
	}
	change := outbox.WebhookChange{Endpoint: wire.Endpoint, Status: outbox.WebhookStatus(wire.Status)}
	if wire.Events != nil {
		change.Events = webhookEvents(wire.Events)
	}
	return webhookRef(id), s.outbox.UpdateWebhook(r.Context(), key.org, id, change)
}

// deleteWebhook serves DELETE /webhooks/{id}.
func (s *server) deleteWebhook(r *http.Request, key *apiKey, id uuid.UUID) (any, error) {
	return webhookDeleted{webhookRef(id), true}, s.outbox.DeleteWebhook(r.Context(), key.org, id)
}

// rotateSecret serves POST /webhooks/{id}/signing-secret/rotate.
func (s *server) rotateSecret(r *http.Request, key *apiKey, id uuid.UUID) (any, error) {
	secret, err := s.outbox.RotateWebhookSecret(r.Context(), key.org, id)
	return webhookSecret{webhookRef(id), secret}, err
}

// replayWebhook serves POST /webhooks/{id}/replay.
func (s *server) replayWebhook(r *http.Request, key *apiKey, id uuid.UUID) (any, error) {
	var wire replayWebhookRequest
	if err := s.read(r, &wire); err != nil {
		return nil, err
	}
	since := time.Time(wire.Since)
	if since.IsZero() {
		return nil, invalid(outbox.FieldError{Field: "since", Message: "is required"})
	}
	replayed, more, err := s.outbox.ReplayWebhook(r.Context(), key.org, id, since)
	return webhookReplayed{webhookRef(id), replayed, more}, err
}

// listWebhookEvents serves GET /webhooks/{id}/events.
func (s *server) listWebhookEvents(r *http.Request, key *apiKey, id uuid.UUID) (any, error) {
	q := queryReader{values: r.URL.Query()}
	q.known("limit", "after")
	limit, after := q.limit(), q.id("after")
	if q.errs != nil {
		return nil, invalid(q.errs...)
	}
	messages, more, err := s.outbox.ListWebhookMessages(r.Context(), key.org, id, after, limit)
	if err != nil {
		return nil, err
	}
	data := make([]webhookEventSummary, len(messages))
	for i := range messages {
		data[i] = webhookEventSummaryOf(&messages[i])
	}
	return listAnswer{Object: "list", HasMore: more, Data: data}, nil
}

// eventID reads the message's id in the path.
func eventID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(chi.URLParam(r, "event"))
	if err != nil {
		return uuid.Nil, errWebhookEventNotFound
	}
	return id, nil
}

// getWebhookEvent serves GET /webhooks/{id}/events/{event}.
func (s *server) getWebhookEvent(r *http.Request, key *apiKey, id uuid.UUID) (any, error) {
	event, err := eventID(r)
	if err != nil {
		return nil, err
	}
	m, err := s.outbox.GetWebhookMessage(r.Context(), key.org, id, event)
	if err != nil {
		return nil, err
	}
	return webhookEventDetail{webhookEventSummaryOf(m), m.Payload}, nil
}

// replayWebhookEvent serves POST /webhooks/{id}/events/{event}/replay.
func (s *server) replayWebhookEvent(r *http.Request, key *apiKey, id uuid.UUID) (any, error) {
	event, err := eventID(r)
	if err != nil {
		return nil, err
	}
	return webhookReference{Object: "webhook_event", ID: event},
		s.outbox.ReplayWebhookMessage(r.Context(), key.org, id, event)
}

// read reads a body of one JSON object.
func (s *server) read(r *http.Request, v any) error {
	body, err := s.readBody(r)
	if err != nil {
		return err
	}
	return decode(body, v)
}
