package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrIdempotencyKeyReused means that the key belongs to another request.
	// The first submission is untouched.
	ErrIdempotencyKeyReused = errors.New("this idempotency key was used for another request")

	// ErrSubmissionInProgress means that a submission with the same key is
	// being committed and did not end in time. Try again with the same key.
	ErrSubmissionInProgress = errors.New("a submission with this idempotency key is in progress")

	// ErrNotFound means that there is no such email in this org.
	ErrNotFound = errors.New("no such email")

	// ErrOutcomeUnknown means that the connection to the database was lost
	// during COMMIT and that the submission could not be found since. Try
	// again with the same idempotency key.
	ErrOutcomeUnknown = errors.New("the database connection was lost during the commit")
)

// FieldError is what is wrong with one field of a submission.
type FieldError struct {
	// Field is a path such as to[0] or attachments[1].filename.
	Field   string `json:"field"`
	Message string `json:"message"`
}

// ValidationError lists everything that is wrong with a submission.
type ValidationError struct {
	Fields []FieldError
}

// Error joins the fields into one sentence.
func (e *ValidationError) Error() string {
	parts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		// An empty field is about the whole.
		parts[i] = strings.TrimPrefix(f.Field+": "+f.Message, ": ")
	}
	return strings.Join(parts, "; ")
}

// fieldErrors collects what is wrong.
type fieldErrors []FieldError

func (f *fieldErrors) add(field, format string, args ...any) {
	*f = append(*f, FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
}

func (f fieldErrors) err() error {
	if len(f) == 0 {
		return nil
	}
	return &ValidationError{Fields: f}
}

// IsUnavailable reports whether an error says that the database cannot be
// used right now, or that this process lacks a key, so that the same call may
// succeed later.
func IsUnavailable(err error) bool {
	if _, sealed := errors.AsType[*SealError](err); sealed {
		return true
	}
	if errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgerrcode.IsConnectionException(pgErr.Code) ||
			pgerrcode.IsInsufficientResources(pgErr.Code) ||
			pgerrcode.IsOperatorIntervention(pgErr.Code) ||
			pgerrcode.IsTransactionRollback(pgErr.Code) ||
			pgErr.Code == pgerrcode.LockNotAvailable ||
			pgErr.Code == pgerrcode.IdleInTransactionSessionTimeout ||
			pgErr.Code == pgerrcode.ReadOnlySQLTransaction
	}
	return isConnectionLost(err)
}

// isConnectionLost reports whether there was no connection, or it broke.
func isConnectionLost(err error) bool {
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	return refused || network || pgconn.SafeToRetry(err) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}
