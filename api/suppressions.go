package api

import (
	"cmp"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// suppressionAnswer is an address that is not sent to.
type suppressionAnswer struct {
	Object    string                   `json:"object"`
	Address   string                   `json:"address"`
	Reason    outbox.SuppressionReason `json:"reason"`
	Detail    *string                  `json:"detail"`
	EmailID   *uuid.UUID               `json:"email_id"`
	CreatedAt time.Time                `json:"created_at"`
}

func suppressionOf(s *outbox.Suppression) suppressionAnswer {
	return suppressionAnswer{
		Object: "suppression", Address: s.Address, Reason: s.Reason, Detail: orNull(s.Detail),
		EmailID: orNull(s.EmailID), CreatedAt: s.CreatedAt.UTC(),
	}
}

// SuppressionDetail is a suppression as GET /suppressions shows it, to be encoded
// as JSON.
func SuppressionDetail(s *outbox.Suppression) any { return suppressionOf(s) }

// listSuppressions serves GET /suppressions.
func (s *server) listSuppressions(r *http.Request, key *apiKey) (*response, error) {
	q, err := suppressionQuery(r.URL.Query())
	if err != nil {
		return nil, err
	}
	q.Org = key.org
	list, more, err := s.outbox.Suppressions(r.Context(), q)
	if err != nil {
		return nil, err
	}
	data := make([]suppressionAnswer, len(list))
	for i := range list {
		data[i] = suppressionOf(&list[i])
	}
	return &response{body: listAnswer{Object: "list", HasMore: more, Data: data}}, nil
}

func suppressionQuery(values url.Values) (outbox.SuppressionQuery, error) {
	r := queryReader{values: values}
	r.known("limit", "after", "before", "address")
	q := outbox.SuppressionQuery{Limit: r.limit(), After: r.text("after"), Before: r.text("before"), Address: r.text("address")}
	if q.After != "" && q.Before != "" {
		r.wrong("before", "cannot be combined with after")
	}
	if r.errs != nil {
		return q, invalid(r.errs...)
	}
	return q, nil
}

// suppressionRequest is the body of POST /suppressions.
type suppressionRequest struct {
	Address string `json:"address"`
	Reason  string `json:"reason"`
}

// addSuppression serves POST /suppressions. Whoever did it is kept.
func (s *server) addSuppression(r *http.Request, key *apiKey) (*response, error) {
	body, err := s.readBody(r)
	if err != nil {
		return nil, err
	}
	var wire suppressionRequest
	if err := decode(body, &wire); err != nil {
		return nil, err
	}
	stored, err := s.outbox.Suppress(r.Context(), key.org, outbox.Suppression{
		Address: wire.Address, Detail: "by " + key.who(),
		Reason: cmp.Or(outbox.SuppressionReason(wire.Reason), outbox.SuppressionManual),
	})
	if err != nil {
		return nil, err
	}
	return &response{body: suppressionOf(stored)}, nil
}

// deletedSuppression is the answer to DELETE /suppressions/{address}.
type deletedSuppression struct {
	Object  string `json:"object"`
	Address string `json:"address"`
	Deleted bool   `json:"deleted"`
}

// deleteSuppression serves DELETE /suppressions/{address}.
func (s *server) deleteSuppression(r *http.Request, key *apiKey) (*response, error) {
	address, err := url.PathUnescape(chi.URLParam(r, "address"))
	if err != nil {
		return nil, outbox.ErrNotSuppressed
	}
	if err := s.outbox.Unsuppress(r.Context(), key.org, address); err != nil {
		return nil, err
	}
	return &response{body: deletedSuppression{Object: "suppression", Address: address, Deleted: true}}, nil
}
