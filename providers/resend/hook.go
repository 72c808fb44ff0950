package resend

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
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

// Svix signs and posts for Resend:
// https://resend.com/docs/dashboard/webhooks/verify-webhooks-requests
// https://docs.svix.com/receiving/verifying-payloads/how-manual
const (
	idHeader        = "Svix-Id"
	timestampHeader = "Svix-Timestamp"
	signatureHeader = "Svix-Signature"

	secretPrefix     = "whsec_"
	signatureVersion = "v1,"

	// minKey is what is too short to be a key of Svix, which has 24 bytes.
	minKey = 16
	// maxSignatures bounds the list in the header; there are two while a
	// secret is being changed.
	maxSignatures = 16
)

// HookConfig is what verifies webhooks.
type HookConfig struct {
	// Secrets are signing secrets of the webhook: whsec_ and base64. Any of
	// them verifies, so that the webhook can be replaced by another.
	Secrets []string
}

// Hook verifies and reads Resend's webhooks. Its methods may be called
// concurrently.
type Hook struct{ keys [][]byte }

var _ providers.Hook = (*Hook)(nil)

// NewHook returns a hook for the webhooks that have the secrets.
func NewHook(c HookConfig) (*Hook, error) {
	secrets, err := hook.Secrets("webhook secret", c.Secrets)
	if err != nil {
		return nil, fmt.Errorf("resend: %w", err)
	}
	h := &Hook{}
	for _, secret := range secrets {
		text, ok := strings.CutPrefix(secret, secretPrefix)
		key, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil || len(key) < minKey {
			return nil, errors.New("resend: the webhook secret is not whsec_ and base64; copy it as Resend shows it")
		}
		h.keys = append(h.keys, key)
	}
	return h, nil
}

// ParseEvents implements [providers.Hook].
func (h *Hook) ParseEvents(_ context.Context, header http.Header, body []byte, now time.Time) ([]providers.Event, error) {
	if err := h.verify(header, body, now); err != nil {
		return nil, err
	}
	return parseEvents(body)
}

// verify checks the signatures over id, timestamp and body.
func (h *Hook) verify(header http.Header, body []byte, now time.Time) error {
	id, timestamp := header.Get(idHeader), header.Get(timestampHeader)
	if err := hook.CheckSeconds(timestamp, now); err != nil {
		return err
	}
	signatures := strings.Fields(header.Get(signatureHeader))
	if len(signatures) > maxSignatures {
		return hook.Unverified("it has too many signatures")
	}
	for _, key := range h.keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		want := signatureVersion + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		for _, signature := range signatures {
			if hmac.Equal([]byte(want), []byte(signature)) {
				return nil
			}
		}
	}
	return hook.Unverified("its signature is missing or of none of the secrets")
}

// eventTypes are the events that say something about a message:
// https://resend.com/docs/webhooks/event-types
//
// A "failed" message was taken by the API and given up later, and a "scheduled"
// one was taken too. Left out are email.received, which came in, and all events
// of contacts, domains and suppression lists.
var eventTypes = map[string]providers.EventType{
	"email.scheduled":        providers.EventAccepted,
	"email.sent":             providers.EventAccepted,
	"email.delivery_delayed": providers.EventDelayed,
	"email.delivered":        providers.EventDelivered,
	"email.bounced":          providers.EventBounced,
	"email.failed":           providers.EventBounced,
	"email.suppressed":       providers.EventBounced,
	"email.complained":       providers.EventComplained,
	"email.opened":           providers.EventOpened,
	"email.clicked":          providers.EventClicked,
}

// permanentBounce is the type of a bounce that will happen again:
// https://resend.com/docs/dashboard/emails/email-bounces
const permanentBounce = "Permanent"

// payload is a webhook's body: https://resend.com/docs/webhooks/event-types
type payload struct {
	Type      string `json:"type"`
	CreatedAt string `json:"created_at"`
	Data      struct {
		EmailID string   `json:"email_id"`
		To      []string `json:"to"`
		Headers []struct {
			Name string `json:"name"`
		} `json:"headers"`
		Tags   hook.Members `json:"tags"`
		Bounce struct {
			Type    string `json:"type"`
			SubType string `json:"subType"`
			Message string `json:"message"`
		} `json:"bounce"`
		Suppressed struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"suppressed"`
		Failed struct {
			Reason string `json:"reason"`
		} `json:"failed"`
		Click struct {
			Link string `json:"link"`
		} `json:"click"`
	} `json:"data"`
}

func parseEvents(body []byte) ([]providers.Event, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(body, &kind); err != nil {
		return nil, hook.Unreadable("its body is not an event in JSON")
	}
	if _, ok := eventTypes[kind.Type]; !ok {
		return nil, nil // its data may be of any form
	}
	var p payload
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, hook.Unreadable("its body is not in the documented form of " + kind.Type)
	}
	e, ok := hook.Clean(p.event())
	if !ok {
		return nil, hook.Unreadable("its created_at is not a time")
	}
	return []providers.Event{e}, nil
}

func (p *payload) event() providers.Event {
	d := &p.Data
	return providers.Event{
		Type:              eventTypes[p.Type],
		Reference:         d.Tags.Text(ReferenceTag),
		ProviderMessageID: d.EmailID,
		Recipient:         p.recipient(),
		WholeMessage:      true, // and copies are not named: resend/resend-python#68
		OccurredAt:        hook.Time(p.CreatedAt),
		Permanent:         p.Type == "email.bounced" && d.Bounce.Type == permanentBounce,
		Detail: hook.Detail(
			d.Bounce.Type, d.Bounce.SubType, d.Bounce.Message,
			d.Suppressed.Type, d.Suppressed.Message, d.Failed.Reason, d.Click.Link,
		),
	}
}

// recipient returns the recipient of a message that has only one. An event of a
// message with several lists those in To and does not say which of them it is
// about (resend/resend-python#68). Who got a blind copy is never listed.
func (p *payload) recipient() string {
	for _, h := range p.Data.Headers {
		if strings.EqualFold(h.Name, "Cc") {
			return ""
		}
	}
	if len(p.Data.To) != 1 {
		return ""
	}
	return p.Data.To[0]
}
