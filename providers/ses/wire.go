package ses

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go"

	"github.com/outboxd/outboxd/providers"
)

// carrier is the SDK's HTTP client for one send. It puts the signed request on
// the wire by [providers.Call], and keeps what came of it: what the SDK makes
// of a failure has other types, and another opinion on a reply cut short.
type carrier struct {
	ctx     context.Context // one call's: the SDK's interface has no place for it
	client  *http.Client
	sending providers.Sending

	header http.Header
	reply  *providers.Reply
	err    error
}

// Do implements the SDK's HTTPClient.
func (c *carrier) Do(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	c.header = req.Header
	s := c.sending
	s.Payload = body
	call := providers.Call{Client: c.client, URL: req.URL.String(), Header: req.Header}
	// The SDK's own context ends with the call's, and knows no grace.
	reply, err := call.Post(c.ctx, s)
	if err != nil {
		c.err = err
		return nil, err
	}
	c.reply = &reply
	return &http.Response{
		StatusCode: reply.Status, Header: reply.Header, Request: req,
		Body: io.NopCloser(bytes.NewReader(reply.Body)), ContentLength: int64(len(reply.Body)),
	}, nil
}

// secrets returns what must not be quoted. A signature is good for a repetition
// of the request within minutes.
func (c *carrier) secrets(credentials aws.Credentials) []string {
	authorization := c.header.Get("Authorization")
	_, signature, _ := strings.Cut(authorization, "Signature=")
	return []string{
		authorization, signature,
		credentials.SessionToken, credentials.SecretAccessKey, credentials.AccessKeyID,
	}
}

// unsent is the error for a request that the SDK did not get as far as the wire.
func unsent(ctx context.Context) *providers.Error {
	if gone := ctx.Err(); gone != nil {
		return &providers.Error{Outcome: providers.Deferred, Code: providers.CodeNotConnected, Err: gone}
	}
	return &providers.Error{
		Outcome: providers.Misconfigured, Code: "not_signed",
		Err: errors.New("the AWS SDK made no request; check AWS_REGION and SES_ENDPOINT_URL"),
	}
}

// signer are credentials at hand, so that signing asks nobody.
type signer struct{ credentials aws.Credentials }

// Retrieve implements [aws.CredentialsProvider].
func (s signer) Retrieve(context.Context) (aws.Credentials, error) { return s.credentials, nil }

// retrieve finds the credentials, within bounds. Without any nothing can be
// sent, and the message is not to blame.
func (p *Provider) retrieve(ctx context.Context) (signer, error) {
	bounded, cancel := context.WithTimeout(ctx, credentialsTime)
	defer cancel()
	found, err := p.credentials.Retrieve(bounded)
	if err == nil && found.HasKeys() {
		return signer{found}, nil
	}
	if ctx.Err() != nil {
		return signer{}, unsent(ctx)
	}
	return signer{}, &providers.Error{Outcome: providers.Misconfigured, Code: "no_credentials", Err: noCredentials(err)}
}

// noCredentials keeps of err what is safe to log: the output of a credential
// process, which is made of secrets, is quoted when it cannot be read.
func noCredentials(err error) error {
	const hint = "no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the process a role"
	if api, ok := errors.AsType[smithy.APIError](err); ok && errorCode.MatchString(api.ErrorCode()) {
		return fmt.Errorf("%s (%s)", hint, api.ErrorCode())
	}
	return errors.New(hint)
}
