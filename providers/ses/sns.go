package ses

import (
	"context"
	"crypto"
	"crypto/rsa"
	_ "crypto/sha1" // for signatures of version 1
	_ "crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/hook"
)

// Types of messages:
// https://docs.aws.amazon.com/sns/latest/dg/sns-message-and-json-formats.html
const (
	typeNotification = "Notification"
	typeSubscribe    = "SubscriptionConfirmation"
	typeUnsubscribe  = "UnsubscribeConfirmation"
)

// hashes are those of the versions of signatures. Version 1 is still what a
// topic has unless somebody sets its SignatureVersion:
// https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message-configure-message-signature.html
var hashes = map[string]crypto.Hash{"1": crypto.SHA1, "2": crypto.SHA256}

// message is the envelope that SNS puts around what was published.
type message struct {
	Type             string
	MessageId        string //nolint:revive // SNS' spelling, which is part of what is signed
	TopicArn         string
	Subject          *string
	Message          string
	Timestamp        string
	Token            string
	SubscribeURL     string
	SignatureVersion string
	Signature        string
	SigningCertURL   string
}

// signed is what the signature covers: names and values of some members, in the
// order of the names, each on a line of its own. It is false for types that SNS
// does not have.
// https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message-verify-message-signature.html
func (m *message) signed() (string, bool) {
	var b strings.Builder
	add := func(name, value string) { b.WriteString(name + "\n" + value + "\n") }
	add("Message", m.Message)
	add("MessageId", m.MessageId)
	switch m.Type {
	case typeNotification:
		if m.Subject != nil {
			add("Subject", *m.Subject)
		}
		add("Timestamp", m.Timestamp)
	case typeSubscribe, typeUnsubscribe:
		add("SubscribeURL", m.SubscribeURL)
		add("Timestamp", m.Timestamp)
		add("Token", m.Token)
	default:
		return "", false
	}
	add("TopicArn", m.TopicArn)
	add("Type", m.Type)
	return b.String(), true
}

// verify returns the message in a body. What costs nothing to check comes
// before a certificate is fetched.
func (h *Hook) verify(ctx context.Context, body []byte, now time.Time) (*message, error) {
	m := &message{}
	if err := json.Unmarshal(body, m); err != nil || m.Signature == "" {
		return nil, hook.Unverified("its body is not a signed message of SNS; raw message delivery has to be off")
	}
	text, known := m.signed()
	hash, versioned := hashes[m.SignatureVersion]
	signature, err := base64.StdEncoding.Strict().DecodeString(m.Signature)
	switch {
	case !known:
		return nil, hook.Unverified("SNS has no messages of its type")
	case !h.topics[m.TopicArn]:
		return nil, hook.Unverified("it is of another topic")
	case !versioned:
		return nil, hook.Unverified("its signature is of an unknown version")
	case err != nil:
		return nil, hook.Unverified("its signature is not base64")
	}
	if err := hook.CheckTime(hook.Time(m.Timestamp), now); err != nil {
		return nil, err
	}
	key, err := h.certificates.key(ctx, m.SigningCertURL, now)
	if err != nil {
		return nil, err
	}
	digest := hash.New()
	digest.Write([]byte(text))
	if err := rsa.VerifyPKCS1v15(key, hash, digest.Sum(nil), signature); err != nil {
		return nil, hook.Unverified("its signature is not of the certificate's key")
	}
	return m, nil
}

const (
	// fetchTime bounds a request to SNS, and maxFetched its answer.
	fetchTime  = 5 * time.Second
	maxFetched = 64 << 10
)

// endpoint is the only place that anything is fetched from.
type endpoint struct {
	scheme, host string
	client       *http.Client
}

// parse returns a URL at the endpoint, and false for one anywhere else. Scheme
// and host are compared as they are written: there is one way to write them.
func (e endpoint) parse(raw string) (*url.URL, bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != e.scheme || u.Host != e.host || u.User != nil || u.Opaque != "" || u.Fragment != "" {
		return nil, false
	}
	return u, true
}

// get reads a URL, of the endpoint, and follows no redirect. The error is a
// [providers.ErrHookUnavailable], also when SNS answers that it is out of order
// or asked too often.
func (e endpoint) get(ctx context.Context, u *url.URL) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return 0, nil, unavailable("SNS cannot be asked")
	}
	client := *e.client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		// The cause quotes the URL, and that of a confirmation is a secret.
		return 0, nil, unavailable("SNS cannot be reached")
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests {
		return 0, nil, unavailable(fmt.Sprintf("SNS answers %d", resp.StatusCode))
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxFetched))
	if err != nil {
		return 0, nil, unavailable("SNS' answer broke off")
	}
	return resp.StatusCode, body, nil
}

func unavailable(why string) error { return fmt.Errorf("%w: %s", providers.ErrHookUnavailable, why) }
