package api

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// sendEmail serves POST /emails.
func (s *server) sendEmail(r *http.Request, key *apiKey) (*response, error) {
	idempotencyKey, err := requiredKey(r, key)
	if err != nil {
		return nil, err
	}
	body, err := s.readBody(r)
	if err != nil {
		return nil, err
	}
	message, err := decodeEmail(body)
	if err != nil {
		return nil, err
	}
	if err := key.checkFrom(message.From); err != nil {
		return nil, err
	}
	receipt, err := s.outbox.Enqueue(r.Context(), outbox.Submission{
		Org: key.org, IdempotencyKey: idempotencyKey, Messages: []outbox.Message{message},
	})
	if err != nil {
		return nil, err
	}
	resp := receiptResponse(receipt)
	resp.header.Set("Location", "/emails/"+receipt.IDs[0].String())
	return resp, nil
}

// requiredKey reads the idempotency key, and insists on one where the org or
// the API key does.
func requiredKey(r *http.Request, key *apiKey) (string, error) {
	idempotencyKey, err := idempotencyKey(r)
	if err == nil && idempotencyKey == "" && key.requireIdempotencyKey {
		return "", problem(http.StatusBadRequest, "missing_idempotency_key",
			"This API key requires the header Idempotency-Key.")
	}
	return idempotencyKey, err
}

func receiptResponse(receipt outbox.Receipt) *response {
	resp := &response{status: receipt.StatusCode, header: http.Header{}, body: receipt.Response}
	if receipt.Replayed {
		resp.header.Set("Idempotent-Replayed", "true")
	}
	return resp
}

// checkFrom holds the sender to the domains of the org and of the key.
func (k *apiKey) checkFrom(from string) error {
	if len(k.orgDomains) == 0 && len(k.keyDomains) == 0 {
		return nil
	}
	domain, err := outbox.AddressDomain(from)
	if err != nil {
		return nil //nolint:nilerr // reported with all that is wrong with the message
	}
	for _, allowed := range [][]string{k.orgDomains, k.keyDomains} {
		if len(allowed) > 0 && !slices.Contains(allowed, domain) {
			return problem(http.StatusForbidden, "invalid_from_address",
				"This API key may not send from "+domain+". Allowed: "+strings.Join(allowed, ", ")+".")
		}
	}
	return nil
}

// getEmail serves GET /emails/{id}.
func (s *server) getEmail(r *http.Request, key *apiKey) (*response, error) {
	id, err := pathID(r)
	if err != nil {
		return nil, err
	}
	email, err := s.outbox.Get(r.Context(), key.org, id)
	if err != nil {
		return nil, err
	}
	return &response{body: emailDetailOf(email)}, nil
}

// updateRequest is the body of PATCH /emails/{id}. One SDK repeats the id in it.
type updateRequest struct {
	ID          string  `json:"id"`
	ScheduledAt instant `json:"scheduled_at"`
}

// updateEmail serves PATCH /emails/{id}.
func (s *server) updateEmail(r *http.Request, key *apiKey, id uuid.UUID) error {
	body, err := s.readBody(r)
	if err != nil {
		return err
	}
	var wire updateRequest
	if err := decode(body, &wire); err != nil {
		return err
	}
	if wire.ID != "" && wire.ID != id.String() {
		return invalid(outbox.FieldError{Field: "id", Message: "is not the id in the path"})
	}
	return s.outbox.Reschedule(r.Context(), key.org, id, time.Time(wire.ScheduledAt))
}

// changeEmail serves a route that changes the email in its path and answers
// with its id.
func changeEmail(change func(r *http.Request, key *apiKey, id uuid.UUID) error) keyedFunc {
	return func(r *http.Request, key *apiKey) (*response, error) {
		id, err := pathID(r)
		if err != nil {
			return nil, err
		}
		if err := change(r, key, id); err != nil {
			return nil, err
		}
		return &response{body: emailReference{Object: "email", ID: id}}, nil
	}
}

// cancelEmail serves POST /emails/{id}/cancel.
func (s *server) cancelEmail(r *http.Request, key *apiKey, id uuid.UUID) error {
	return s.outbox.Cancel(r.Context(), key.org, id)
}

// retryEmail serves POST /emails/{id}/retry.
func (s *server) retryEmail(r *http.Request, key *apiKey, id uuid.UUID) error {
	return s.outbox.Retry(r.Context(), key.org, id, key.who())
}

// resolveRequest is the body of POST /emails/{id}/resolve.
type resolveRequest struct {
	Outcome string `json:"outcome"`
}

// resolveEmail serves POST /emails/{id}/resolve.
func (s *server) resolveEmail(r *http.Request, key *apiKey, id uuid.UUID) error {
	body, err := s.readBody(r)
	if err != nil {
		return err
	}
	var wire resolveRequest
	if err := decode(body, &wire); err != nil {
		return err
	}
	return s.outbox.Resolve(r.Context(), key.org, id, outbox.Outcome(wire.Outcome), key.who())
}

// emailReference is the answer to a change of an email.
type emailReference struct {
	Object string    `json:"object"`
	ID     uuid.UUID `json:"id"`
}

// emailSummary is an email in a list: the fields of Resend's API, then ours.
type emailSummary struct {
	Object      string       `json:"object"`
	ID          uuid.UUID    `json:"id"`
	From        string       `json:"from"`
	To          []string     `json:"to"`
	Cc          []string     `json:"cc"`
	Bcc         []string     `json:"bcc"`
	ReplyTo     []string     `json:"reply_to"`
	Subject     string       `json:"subject"`
	CreatedAt   time.Time    `json:"created_at"`
	ScheduledAt *time.Time   `json:"scheduled_at"`
	LastEvent   string       `json:"last_event"`
	Tags        []outbox.Tag `json:"tags"`

	Status            outbox.Status     `json:"status"`
	Reason            *string           `json:"reason"`
	ReasonDetail      *string           `json:"reason_detail"`
	PossibleDuplicate bool              `json:"possible_duplicate"`
	Metadata          map[string]string `json:"metadata"`
	OnUnknown         *string           `json:"on_unknown"`
	Priority          outbox.Priority   `json:"priority"`
	ExpiresAt         *time.Time        `json:"expires_at"`
	ListUnsubscribe   bool              `json:"list_unsubscribe"`
	NextAttemptAt     *time.Time        `json:"next_attempt_at"`
	EndedAt           *time.Time        `json:"ended_at"`
	ContentPurgedAt   *time.Time        `json:"content_purged_at"`
}

// emailDetail is one email with its content and attempts.
type emailDetail struct {
	emailSummary
	HTML                 *string         `json:"html"`
	Text                 *string         `json:"text"`
	RepeatedRecipients   []string        `json:"repeated_recipients"`
	SuppressedRecipients []string        `json:"suppressed_recipients"`
	MessageID            *string         `json:"message_id"`
	Provider             *string         `json:"provider"`
	Attempts             []attemptDetail `json:"attempts"`
	Events               []eventDetail   `json:"events"`
}

type eventDetail struct {
	ID         uuid.UUID `json:"id"`
	Type       string    `json:"type"`
	Provider   *string   `json:"provider"`
	Recipient  *string   `json:"recipient"`
	Detail     *string   `json:"detail"`
	OccurredAt time.Time `json:"occurred_at"`
	ReceivedAt time.Time `json:"received_at"`
}

type attemptDetail struct {
	Number            int          `json:"number"`
	Provider          string       `json:"provider"`
	ProviderKey       uuid.UUID    `json:"provider_key"`
	Stage             outbox.Stage `json:"stage"`
	Worker            string       `json:"worker"`
	BeganAt           time.Time    `json:"began_at"`
	EndedAt           *time.Time   `json:"ended_at"`
	StatusCode        *int         `json:"status_code"`
	Code              *string      `json:"code"`
	Detail            *string      `json:"detail"`
	ProviderMessageID *string      `json:"provider_message_id"`
	PossibleDuplicate bool         `json:"possible_duplicate"`
	Evidence          *string      `json:"evidence"`
	TraceID           *string      `json:"trace_id"`
}

func emailSummaryOf(e *outbox.Email) emailSummary {
	m := &e.Message
	return emailSummary{
		Object: "email", ID: e.ID, From: m.From, Subject: m.Subject,
		To: orEmpty(m.To), Cc: orEmpty(m.Cc), Bcc: orEmpty(m.Bcc), ReplyTo: orEmpty(m.ReplyTo),
		CreatedAt: e.CreatedAt.UTC(), ScheduledAt: orNull(m.ScheduledAt), LastEvent: string(e.Status),
		Tags: orEmpty(m.Tags), Status: e.Status, Reason: orNull(e.Reason), ReasonDetail: orNull(e.ReasonDetail),
		PossibleDuplicate: e.PossibleDuplicate, Metadata: m.Metadata, OnUnknown: orNull(string(m.OnUnknown)),
		Priority: m.Priority, ExpiresAt: orNull(m.ExpiresAt), ListUnsubscribe: m.ListUnsubscribe,
		NextAttemptAt: orNull(e.NextAttemptAt), EndedAt: orNull(e.EndedAt), ContentPurgedAt: orNull(e.ContentPurgedAt),
	}
}

func emailDetailOf(e *outbox.Email) emailDetail {
	d := emailDetail{
		emailSummary: emailSummaryOf(e),
		HTML:         orNull(e.Message.HTML), Text: orNull(e.Message.Text),
		RepeatedRecipients:   orEmpty(e.Message.RepeatedRecipients()),
		SuppressedRecipients: orEmpty(e.SuppressedRecipients),
		Provider:             orNull(e.Message.Provider),
		Attempts:             make([]attemptDetail, len(e.Attempts)), Events: make([]eventDetail, len(e.Events)),
	}
	for i, a := range e.Attempts {
		d.Attempts[i] = attemptDetail{
			Number: a.Number, Provider: a.Provider, ProviderKey: a.ProviderKey, Stage: a.Stage, Worker: a.Worker,
			BeganAt: a.BeganAt.UTC(), EndedAt: orNull(a.EndedAt), StatusCode: orNull(a.StatusCode), Code: orNull(a.Code),
			Detail: orNull(a.Detail), ProviderMessageID: orNull(a.ProviderMessageID),
			PossibleDuplicate: a.PossibleDuplicate, Evidence: orNull(string(a.Evidence)), TraceID: orNull(a.TraceID),
		}
		// The last provider to have it is the email's; so is its message id.
		d.Provider = &d.Attempts[i].Provider
		if a.ProviderMessageID != "" {
			d.MessageID = d.Attempts[i].ProviderMessageID
		}
	}
	for i, event := range e.Events {
		d.Events[i] = eventDetail{
			ID: event.ID, Type: event.Type, Provider: orNull(event.Provider), Recipient: orNull(event.Recipient),
			Detail: orNull(event.Detail), OccurredAt: event.OccurredAt.UTC(), ReceivedAt: event.ReceivedAt.UTC(),
		}
	}
	return d
}

// Summary is an email as GET /emails lists it, with its org's name, to be encoded as
// JSON.
func Summary(e *outbox.Email, org string) any {
	return struct {
		Org string `json:"org"`
		emailSummary
	}{org, emailSummaryOf(e)}
}

// Detail is an email as GET /emails/{id} shows it, to be encoded as JSON.
func Detail(e *outbox.Email) any { return emailDetailOf(e) }

func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
