package providers

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"
)

// maxAnswer bounds the answer to a search. Adapters ask for one message, so a
// longer one is not the answer.
const maxAnswer = 1 << 20

// Codes of searches that gave no answer, see [Error].Code.
const (
	// CodeNoAnswer: the search did not get through, or its reply broke off.
	CodeNoAnswer = "no_answer"
	// CodeSearchRefused: the reply's status was not 200.
	CodeSearchRefused = "search_refused"
	// CodeBadAnswer: the reply was too long or not the JSON that was expected.
	CodeBadAnswer = "bad_answer"
)

// Query is a GET of a [Finder], which changes nothing at the provider.
type Query struct {
	// Client is usually from [NewHTTPClient]. Its CheckRedirect is not used:
	// Query follows no redirect, which would take the credentials along.
	Client *http.Client
	URL    string
	Header http.Header
}

// JSON makes the request and decodes the answer, of at most 1 MiB, into answer.
// It ends with ctx. Any status but 200 is an error; errors are *[Error] without
// the URL, the credentials or the reply in them, and their outcome is [InDoubt]:
// a search that fails says nothing about the message.
func (q Query) JSON(ctx context.Context, answer any) error {
	if q.Client == nil {
		return &Error{Code: CodeNoAnswer, Err: errNoClient}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.URL, http.NoBody)
	if err != nil {
		return &Error{Code: CodeNoAnswer, Err: transportError(err)}
	}
	if q.Header != nil {
		req.Header = q.Header.Clone()
	}
	client := *q.Client
	client.CheckRedirect = keepRedirect
	resp, err := client.Do(req)
	if err != nil {
		return noAnswer(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return &Error{Code: CodeSearchRefused, Status: resp.StatusCode, RetryAfter: RetryAfter(resp.Header, time.Now())}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return noAnswer(ctx, err)
	}
	// The decoder's errors quote what they stumbled over.
	if len(body) > maxAnswer || json.Unmarshal(body, answer) != nil {
		return &Error{Code: CodeBadAnswer, Status: resp.StatusCode}
	}
	return nil
}

func noAnswer(ctx context.Context, err error) *Error {
	if gone := ctx.Err(); gone != nil {
		return &Error{Code: CodeNoAnswer, Err: gone}
	}
	return &Error{Code: CodeNoAnswer, Err: transportError(err)}
}
