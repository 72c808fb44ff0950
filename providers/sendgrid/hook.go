package sendgrid

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/hook"
)

// Headers of a signed request:
// https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/getting-started-event-webhook-security-features
const (
	signatureHeader = "X-Twilio-Email-Event-Webhook-Signature"
	timestampHeader = "X-Twilio-Email-Event-Webhook-Timestamp"
)

// HookConfig is what verifies the Event Webhook.
type HookConfig struct {
	// PublicKeys are verification keys as SendGrid shows them: DER in base64.
	// Any of them verifies, so that the key can be changed.
	PublicKeys []string
}

// Hook verifies and reads SendGrid's Event Webhook with "Signed Event Webhook"
// on. Its methods may be called concurrently.
//
// sendgrid-go's helper is not used: it lets a request of any age pass, and
// panics on a key that is not an elliptic curve's.
type Hook struct{ keys []*ecdsa.PublicKey }

var _ providers.Hook = (*Hook)(nil)

// NewHook returns a hook for the account that has the keys.
func NewHook(c HookConfig) (*Hook, error) {
	texts, err := hook.Secrets("verification key", c.PublicKeys)
	if err != nil {
		return nil, fmt.Errorf("sendgrid: %w", err)
	}
	h := &Hook{}
	for _, text := range texts {
		key, err := publicKey(text)
		if err != nil {
			return nil, err
		}
		h.keys = append(h.keys, key)
	}
	return h, nil
}

func publicKey(text string) (*ecdsa.PublicKey, error) {
	der, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, errors.New("sendgrid: the verification key is not base64; copy it as SendGrid shows it")
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, errors.New("sendgrid: the verification key is not a public key; copy it as SendGrid shows it")
	}
	key, ok := parsed.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("sendgrid: the verification key is not one of ECDSA on the curve P-256")
	}
	return key, nil
}

// ParseEvents implements [providers.Hook].
func (h *Hook) ParseEvents(_ context.Context, header http.Header, body []byte, now time.Time) ([]providers.Event, error) {
	if err := h.verify(header, body, now); err != nil {
		return nil, err
	}
	return parseEvents(body)
}

// verify checks the signature over timestamp and body.
func (h *Hook) verify(header http.Header, body []byte, now time.Time) error {
	timestamp := header.Get(timestampHeader)
	if err := hook.CheckSeconds(timestamp, now); err != nil {
		return err
	}
	signature, err := base64.StdEncoding.Strict().DecodeString(header.Get(signatureHeader))
	if err != nil || len(signature) == 0 {
		return hook.Unverified("its signature is missing or not base64")
	}
	digest := sha256.New()
	digest.Write([]byte(timestamp))
	digest.Write(body)
	sum := digest.Sum(nil)
	for _, key := range h.keys {
		if ecdsa.VerifyASN1(key, sum, signature) {
			return nil
		}
	}
	return hook.Unverified("its signature is of none of the keys")
}

// eventTypes are the events that say something about a message:
// https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/event
//
// Left out are group_resubscribe and account_status_change.
var eventTypes = map[string]providers.EventType{
	"processed":         providers.EventAccepted,
	"deferred":          providers.EventDelayed,
	"delivered":         providers.EventDelivered,
	"bounce":            providers.EventBounced,
	"dropped":           providers.EventBounced,
	"spamreport":        providers.EventComplained,
	"unsubscribe":       providers.EventUnsubscribed,
	"group_unsubscribe": providers.EventUnsubscribed,
	"open":              providers.EventOpened,
	"click":             providers.EventClicked,
}

// permanentDrops are the reasons of a drop that say that the address takes no
// mail. The other reasons are the recipient's wish, the content or the account:
// https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/event
var permanentDrops = map[string]bool{"Bounced Address": true, "Invalid": true}

// parseEvents reads a batch. Members of an event are looked at one by one: custom
// arguments are members too, and other programs of the account choose theirs
// freely. One odd event must not keep the rest of its batch back.
func parseEvents(body []byte) ([]providers.Event, error) {
	var batch []hook.Members
	if err := json.Unmarshal(body, &batch); err != nil {
		return nil, hook.Unreadable("its body is not a list in JSON")
	}
	if len(batch) > hook.MaxEvents {
		return nil, hook.Unreadable("it has too many events")
	}
	var list []providers.Event
	for _, members := range batch {
		if e, ok := event(members); ok {
			list = append(list, e)
		}
	}
	return list, nil
}

// event reports false for what says nothing about a message.
func event(m hook.Members) (providers.Event, bool) {
	name := m.Text("event")
	kind, ok := eventTypes[name]
	if !ok {
		return providers.Event{}, false
	}
	return hook.Clean(providers.Event{
		Type:              kind,
		Reference:         m.Text(ReferenceArg),
		ProviderMessageID: messageID(m.Text("sg_message_id")),
		Recipient:         m.Text("email"),
		OccurredAt:        eventTime(m["timestamp"]),
		Permanent:         permanent(name, m),
		Detail:            detailOf(name, m),
	})
}

// messageID returns the X-Message-Id of the reply to the message, which is the
// sg_message_id up to its first dot. What follows is different for each
// recipient.
// https://www.twilio.com/docs/sendgrid/glossary/message-id
func messageID(sgMessageID string) string {
	id, _, _ := strings.Cut(sgMessageID, ".")
	return id
}

// permanent tells a bounce from a block, which is the message's or the sender's
// and may pass: https://www.twilio.com/docs/sendgrid/glossary/blocks
func permanent(name string, m hook.Members) bool {
	switch name {
	case "bounce":
		return m.Text("type") == "bounce"
	case "dropped":
		return permanentDrops[m.Text("reason")]
	}
	return false
}

// detailOf is what the recipient's server said, why SendGrid did not ask it, or
// what was clicked.
func detailOf(name string, m hook.Members) string {
	switch name {
	case "bounce":
		return hook.Detail(m.Text("bounce_classification"), m.Text("reason"))
	case "click":
		return m.Text("url")
	}
	return hook.Detail(m.Text("reason"), m.Text("response"))
}

// eventTime is in seconds since 1970.
func eventTime(raw json.RawMessage) time.Time {
	var seconds int64
	if err := json.Unmarshal(raw, &seconds); err != nil {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}
