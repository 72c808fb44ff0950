package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The endpoints that idempotency keys are scoped to. The library and the SQL
// function share [EndpointEmails] with the HTTP API.
const (
	EndpointEmails = "POST /emails"
	EndpointBatch  = "POST /emails/batch"
)

// MaxBatch is how many messages one submission may hold.
const MaxBatch = 100

const maxKey = 255 // characters of an idempotency key

// Submission is one request to send: one message, or a batch under one key.
type Submission struct {
	Org uuid.UUID
	// IdempotencyKey names the submission; empty: nothing protects a retry.
	IdempotencyKey string
	// Messages has exactly one element unless Batch is set.
	Messages []Message
	// Batch makes this a batch of 1 to [MaxBatch] messages.
	Batch bool
	// Permissive lets the good messages of a batch through when others are
	// refused. Otherwise one bad message refuses all.
	Permissive bool
	// Refused holds messages of the batch that the caller does not accept, by
	// index.
	Refused map[int]Refusal
}

// Refusal says why a message of a batch is not accepted.
type Refusal struct {
	// Raw is what was received, in a canonical form, for the fingerprint. Nil:
	// it could be decoded and is in Messages.
	Raw []byte
	Err error
}

// Receipt is the answer to a submission. All submissions of one request under
// one key get the same, but for Replayed.
type Receipt struct {
	// IDs are the emails, in the order of the accepted messages.
	IDs []uuid.UUID
	// StatusCode and Response are the answer of the HTTP API.
	StatusCode int
	Response   json.RawMessage
	// Replayed means that an earlier submission created the emails.
	Replayed bool
}

// accepted is one message on its way into the tables.
type accepted struct {
	id         uuid.UUID
	status     Status
	message    *Message
	recipients []string
	// metadata is that of its job; nil: it has none.
	metadata []byte
}

// pending is a submission on its way into the tables.
type pending struct {
	Submission
	id          uuid.UUID
	endpoint    string
	fingerprint []byte
	emails      []accepted
	// fresh is the receipt if this submission creates the emails.
	fresh Receipt
	// lateErr is an error that holds only if this is no replay: what was fine
	// once may have come too late since, or need a provider that is gone.
	lateErr error
	// quotaErr is the same about what its org has waiting, from the last run.
	quotaErr error
	// counted is how many emails the last run has counted as waiting.
	counted int

	// receipt and err are the result of the last run of the transaction.
	receipt Receipt
	err     error
}

// prepare does all that needs no database. Its error is a *ValidationError.
func prepare(s Submission, now time.Time, f foresight) (*pending, error) {
	p := &pending{Submission: s, id: newID(), endpoint: EndpointEmails}
	if s.Batch {
		p.endpoint = EndpointBatch
	}
	if err := p.checkShape(); err != nil {
		return nil, err
	}
	refused, err := p.acceptMessages(now, f)
	if err != nil {
		return nil, err
	}
	if p.fingerprint, err = p.fingerprintAs(fingerprintVersion); err != nil {
		return nil, err
	}
	p.fresh, err = p.answer(refused)
	return p, err
}

func notPrintableASCII(c rune) bool { return c < ' ' || c > '~' }

func (p *pending) checkShape() error {
	var errs fieldErrors
	// No key is fine; what is no key over HTTP is none here either.
	if len(p.IdempotencyKey) > maxKey || strings.ContainsFunc(p.IdempotencyKey, notPrintableASCII) {
		errs.add("idempotency_key", "must be at most %d printable ASCII characters", maxKey)
	}
	switch n := len(p.Messages); {
	case !p.Batch && n != 1:
		return fmt.Errorf("a submission that is no batch has %d messages, not 1", n)
	case n == 0:
		errs.add("", "the batch is empty")
	case n > MaxBatch:
		errs.add("", "the batch has %d emails, more than %d", n, MaxBatch)
	}
	return errs.err()
}

// itemError is one refused message in the answer to a permissive batch.
type itemError struct {
	Index   int    `json:"index"`
	Message string `json:"message"`
}

func (p *pending) acceptMessages(now time.Time, f foresight) ([]itemError, error) {
	var all fieldErrors
	refused := []itemError{}
	for i := range p.Messages {
		err := p.refusal(i)
		if err == nil && p.Permissive {
			err = f.carriable(&p.Messages[i], now)
		}
		if err == nil {
			p.emails = append(p.emails, newAccepted(&p.Messages[i]))
			p.checkLate(i, now, f)
			continue
		}
		refused = append(refused, itemError{i, err.Error()})
		all = append(all, p.inBatch(i, err)...)
	}
	if len(refused) > 0 && !p.Permissive {
		return nil, all.err()
	}
	return refused, nil
}

func (p *pending) refusal(i int) error {
	if r, ok := p.Refused[i]; ok {
		return r.Err
	}
	return p.Messages[i].Validate()
}

// checkLate remembers what the clock or the providers have against a message
// until it is known that this is no replay. What the clock has against one
// message of a batch refuses the whole: which messages are due depends on when
// one asks, and a replay must not.
func (p *pending) checkLate(i int, now time.Time, f foresight) {
	if p.lateErr != nil {
		return
	}
	err := p.Messages[i].validateTimes(now)
	if err == nil && !p.Permissive {
		err = f.carriable(&p.Messages[i], now)
	}
	if err != nil {
		p.lateErr = p.inBatch(i, err).err()
	}
}

// inBatch names the message in the field names of its errors.
func (p *pending) inBatch(i int, err error) fieldErrors {
	invalid, ok := errors.AsType[*ValidationError](err)
	if !ok {
		invalid = &ValidationError{Fields: []FieldError{{Message: err.Error()}}}
	}
	fields := slices.Clone(invalid.Fields)
	for j := range fields {
		if !p.Batch {
			continue
		}
		index := fmt.Sprintf("[%d]", i)
		if fields[j].Field != "" {
			index += "."
		}
		fields[j].Field = index + fields[j].Field
	}
	return fields
}

func newAccepted(m *Message) accepted {
	status := StatusQueued
	if !m.ScheduledAt.IsZero() {
		status = StatusScheduled
	}
	return accepted{id: newID(), status: status, message: m, recipients: m.searchable()}
}

// newID returns a UUIDv7: time-ordered, so that the newest emails are
// neighbours in every index, with 74 random bits that cannot be guessed.
func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// submittedAt is the time in an id, to the millisecond. The row has the same,
// so that ordering and filtering by id is ordering and filtering by time.
func submittedAt(id uuid.UUID) time.Time { return time.Unix(id.Time().UnixTime()).UTC() }

type emailAnswer struct {
	ID     uuid.UUID `json:"id"`
	Object string    `json:"object"`
	Status Status    `json:"status"`
}

type batchAnswer struct {
	Data   []batchItem `json:"data"`
	Errors []itemError `json:"errors"`
}

type batchItem struct {
	ID uuid.UUID `json:"id"`
}

// answer renders the response that is stored with the key and replayed byte
// for byte.
func (p *pending) answer(refused []itemError) (Receipt, error) {
	r := Receipt{IDs: make([]uuid.UUID, len(p.emails)), StatusCode: http.StatusAccepted}
	items := make([]batchItem, len(p.emails))
	for i, e := range p.emails {
		r.IDs[i], items[i].ID = e.id, e.id
	}
	var body any = batchAnswer{Data: items, Errors: refused}
	if !p.Batch {
		body = emailAnswer{ID: p.emails[0].id, Object: "email", Status: p.emails[0].status}
	}
	var err error
	if r.Response, err = json.Marshal(body); err != nil {
		return Receipt{}, fmt.Errorf("render the answer: %w", err)
	}
	return r, nil
}

func (p *pending) fingerprintAs(version int16) ([]byte, error) {
	return fingerprint(version, p.endpoint, &p.Submission)
}
