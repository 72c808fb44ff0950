// Package redact keeps what senders wrote out of logs and job errors. Errors of
// Postgres, of providers and of Go itself quote the values that they are about.
package redact

import (
	"errors"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// address is an email address, also as a URL writes it.
	address = regexp.MustCompile(`[^\s<>"'(),:;=\[\]]+(?:@|%40)[^\s<>"'(),:;=\[\]&]+`)
	// query is what follows the path of a URL: searches name addresses there, and
	// some services take keys.
	query = regexp.MustCompile(`(https?://[^\s"'?]+)\?[^\s"']+`)
	// quoted is what a message quotes, from the first mark to the last: not all
	// programs escape the marks in between.
	quoted = regexp.MustCompile(`(?s)".*"`)
	// unparsed is a connection string, in which pgx does not find every password.
	unparsed = regexp.MustCompile("(?s)cannot parse `.*`")
	// unencoded is a value that pgx could not send.
	unencoded = regexp.MustCompile(`(?s)unable to encode .* into (binary|text) format`)
)

// Text takes addresses and the queries of URLs out of a text.
func Text(text string) string {
	if strings.Contains(text, "://") {
		text = query.ReplaceAllString(text, "$1?(query)")
	}
	if strings.Contains(text, "@") || strings.Contains(text, "%40") {
		text = address.ReplaceAllString(text, "(address)")
	}
	return text
}

// Quoted takes everything out of a text that it quotes, besides.
func Quoted(text string) string { return Text(quoted.ReplaceAllString(text, `"(value)"`)) }

// Error is the text of an error without the values that it is about.
func Error(err error) string {
	text := err.Error()
	for inner := range chain(err) {
		switch e := inner.(type) { //nolint:errorlint // each link of the chain is looked at
		case *pgconn.PgError:
			// 22 is the class of values that do not fit, and the code says why. The
			// messages of the others name tables and constraints.
			if strings.HasPrefix(e.Code, "22") && e.Message != "" {
				text = strings.ReplaceAll(text, e.Message, "(value)")
			}
		case *pgconn.ParseConfigError:
			text = unparsed.ReplaceAllString(text, "cannot parse it")
		case pgx.ScanArgError:
			text = strings.ReplaceAll(text, e.Err.Error(), "(value)")
		}
	}
	return Text(unencoded.ReplaceAllString(text, "unable to encode (value) into $1 format"))
}

// chain goes through an error and all that it wraps.
func chain(err error) func(yield func(error) bool) {
	return func(yield func(error) bool) { walk(err, yield) }
}

func walk(err error, yield func(error) bool) bool {
	if err == nil {
		return true
	}
	if !yield(err) {
		return false
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, inner := range many.Unwrap() {
			if !walk(inner, yield) {
				return false
			}
		}
		return true
	}
	return walk(errors.Unwrap(err), yield)
}

// Failure is an error that says the same without the values that it is about, for
// those who keep its text. [errors.Is] and [errors.As] find what is behind it. Nil
// stays nil.
func Failure(err error) error {
	if err == nil {
		return nil
	}
	return &failure{Error(err), err}
}

type failure struct {
	text string
	err  error
}

// Error is the text without values.
func (f *failure) Error() string { return f.text }

// Unwrap returns the error with them.
func (f *failure) Unwrap() error { return f.err }
