package api

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/outboxd/outboxd/outbox"
)

// sendBatch serves POST /emails/batch.
func (s *server) sendBatch(r *http.Request, key *apiKey) (*response, error) {
	idempotencyKey, err := requiredKey(r, key)
	if err != nil {
		return nil, err
	}
	permissive, err := batchValidation(r)
	if err != nil {
		return nil, err
	}
	body, err := s.readBody(r)
	if err != nil {
		return nil, err
	}
	submission, err := decodeBatch(body, key)
	if err != nil {
		return nil, err
	}
	s.limits.charge(key, len(submission.Messages))
	if !permissive {
		if err := refuseAll(submission.Refused); err != nil {
			return nil, err
		}
	}
	submission.Org, submission.IdempotencyKey, submission.Permissive = key.org, idempotencyKey, permissive
	receipt, err := s.outbox.Enqueue(r.Context(), submission)
	if err != nil {
		return nil, err
	}
	return receiptResponse(receipt), nil
}

func batchValidation(r *http.Request) (permissive bool, err error) {
	switch mode := r.Header.Get("X-Batch-Validation"); strings.ToLower(mode) {
	case "", "strict":
		return false, nil
	case "permissive":
		return true, nil
	}
	return false, invalid(outbox.FieldError{Field: "x-batch-validation", Message: "must be strict or permissive"})
}

// decodeBatch decodes each message by itself, so that a bad one does not spoil
// the others.
func decodeBatch(body []byte, key *apiKey) (outbox.Submission, error) {
	var batch rawBatch
	if err := json.Unmarshal(body, &batch); err != nil {
		if _, semantic := errors.AsType[*json.SemanticError](err); semantic {
			return outbox.Submission{}, invalid(outbox.FieldError{Message: "the body must be a JSON array of emails"})
		}
		return outbox.Submission{}, invalidJSON(err)
	}
	if batch.count > outbox.MaxBatch {
		return outbox.Submission{}, invalid(outbox.FieldError{
			Message: fmt.Sprintf("the batch has %d emails, more than %d", batch.count, outbox.MaxBatch),
		})
	}
	s := outbox.Submission{Batch: true, Messages: make([]outbox.Message, len(batch.items)), Refused: map[int]outbox.Refusal{}}
	for i, item := range batch.items {
		message, err := decodeEmail(item)
		if err != nil {
			s.Refused[i] = outbox.Refusal{Raw: canonical(item), Err: err}
			continue
		}
		s.Messages[i] = message
		// Which domains are allowed can change between a request and its retry,
		// so it must not show in the fingerprint.
		if err := key.checkFrom(message.From); err != nil {
			s.Refused[i] = outbox.Refusal{Err: err}
		}
	}
	return s, nil
}

// canonical is a form of a message that could not be decoded, for the
// fingerprint: it does not depend on how the message was written (RFC 8785).
func canonical(item jsontext.Value) []byte {
	v := item.Clone()
	if err := v.Canonicalize(); err != nil {
		return item
	}
	return v
}

// refuseAll answers a strict batch with everything that is wrong in it.
func refuseAll(refused map[int]outbox.Refusal) error {
	var fields []outbox.FieldError
	for i := range outbox.MaxBatch {
		refusal, ok := refused[i]
		if !ok {
			continue
		}
		answer := errorOf(refusal.Err)
		if answer.StatusCode != http.StatusUnprocessableEntity {
			return answer
		}
		for _, f := range answer.Errors {
			f.Field = strings.TrimSuffix(fmt.Sprintf("[%d].%s", i, f.Field), ".")
			fields = append(fields, f)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return invalid(slices.Clip(fields)...)
}
