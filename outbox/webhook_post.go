package outbox

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// maxIgnored is how much of an answer's body is read, for the sake of the
// connection, before it is thrown away.
const maxIgnored = 4 << 10

// post makes one attempt. It returns an error if there was none to speak of: the
// payload or its signature could not be made, or this worker is stopping.
func (d *webhookDeliverer) post(ctx context.Context, m *webhookDelivery) (webhookOutcome, error) {
	body, err := m.payload.encode(d.keys)
	if err != nil {
		return webhookOutcome{}, err
	}
	secret, previous, err := m.secrets(d.keys)
	if err != nil {
		return webhookOutcome{}, err
	}
	if d.endpoints.refuse(m.endpoint) != "" {
		return webhookOutcome{err: "endpoint_not_allowed"}, nil // it was allowed when it was set
	}
	call, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(call, http.MethodPost, m.endpoint, bytes.NewReader(body))
	if err != nil {
		return webhookOutcome{err: "endpoint_not_allowed"}, nil
	}
	m.sign(req.Header, body, secret, previous)
	req.GetBody = nil // one attempt is one request
	resp, err := d.client.Do(req)
	if ctx.Err() != nil && err != nil {
		return webhookOutcome{}, ctx.Err()
	}
	if err != nil {
		return webhookOutcome{err: wordOf(err)}, nil
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxIgnored)
	return answered(resp), nil
}

// answered reads a status as Standard Webhooks does: 2xx is success, and nothing
// else is.
func answered(resp *http.Response) webhookOutcome {
	o := webhookOutcome{status: resp.StatusCode}
	if o.delivered() {
		return o
	}
	o.err, o.retryAfter = "status", providers.RetryAfter(resp.Header, time.Now())
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		o.err = "redirect"
	}
	return o
}

// secrets are what to sign with; a nil previous: there is none.
func (m *webhookDelivery) secrets(keys *KeyRing) (secret, previous []byte, err error) {
	if secret, err = m.secret.open(keys, m.org, m.webhook); err != nil {
		return nil, nil, err
	}
	previous, err = m.previous.open(keys, m.org, m.webhook)
	return secret, previous, err
}

// sign sets the headers of Standard Webhooks, and the same under the names that
// receivers of Resend's webhooks look for. The time is the database's: receivers
// refuse what is minutes off.
// (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md)
func (m *webhookDelivery) sign(h http.Header, body, secret, previous []byte) {
	id, timestamp := m.id.String(), strconv.FormatInt(m.now.Unix(), 10)
	signature := signatureOf(secret, id, timestamp, body)
	if previous != nil {
		signature += " " + signatureOf(previous, id, timestamp, body)
	}
	for _, prefix := range []string{"Webhook-", "Svix-"} {
		h.Set(prefix+"Id", id)
		h.Set(prefix+"Timestamp", timestamp)
		h.Set(prefix+"Signature", signature)
	}
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "outboxd-webhooks")
}

func signatureOf(secret []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// wordOf says in a word why there was no answer. The errors themselves quote the
// URL.
func wordOf(err error) string {
	_, noName := errors.AsType[*net.DNSError](err)
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	op, isOp := errors.AsType[*net.OpError](err)
	network, isNetwork := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, errPrivateAddress):
		return "address_not_allowed"
	case noName:
		return "name_not_found"
	case badCertificate, noTLS, isOp && op.Op == "remote error": // a TLS alert
		return "tls_failed"
	case errors.Is(err, context.DeadlineExceeded), isNetwork && network.Timeout():
		return "timeout"
	case isOp && op.Op == "dial":
		return "not_connected"
	}
	return "no_answer"
}
