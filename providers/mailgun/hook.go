package mailgun

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/hook"
)

// maxToken is more than a token has, which is 50 characters:
// https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks
const maxToken = 100

// HookConfig is what verifies webhooks.
type HookConfig struct {
	// SigningKeys are HTTP webhook signing keys of the account, which are not
	// API keys. Any of them verifies, so that the key can be changed.
	SigningKeys []string
}

// Hook verifies and reads Mailgun's webhooks. Its methods may be called
// concurrently.
//
// What Mailgun signs is a timestamp and a random token, and not the event
// beside them
// (https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks).
// So whoever sees one request can put another event in its place for as long as
// its timestamp is accepted. A Hook remembers the tokens of that time and
// refuses one that comes with another body; other processes do not know of it.
type Hook struct {
	keys   []string
	tokens *tokens
}

var _ providers.Hook = (*Hook)(nil)

// NewHook returns a hook for the account that has the keys.
func NewHook(c HookConfig) (*Hook, error) {
	keys, err := hook.Secrets("webhook signing key", c.SigningKeys)
	if err != nil {
		return nil, fmt.Errorf("mailgun: %w", err)
	}
	return &Hook{keys: keys, tokens: newTokens(maxTokens)}, nil
}

// payload is a webhook's body:
// https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/webhook-payloads
type payload struct {
	Signature signature       `json:"signature"`
	EventData json.RawMessage `json:"event-data"`
}

type signature struct {
	Timestamp string `json:"timestamp"`
	Token     string `json:"token"`
	Signature string `json:"signature"`
}

// ParseEvents implements [providers.Hook].
func (h *Hook) ParseEvents(_ context.Context, _ http.Header, body []byte, now time.Time) ([]providers.Event, error) {
	var p payload
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, hook.Unverified("its body has no signature in JSON")
	}
	if err := h.verify(p.Signature, now); err != nil {
		return nil, err
	}
	if !h.tokens.see(p.Signature.Token, sha256.Sum256(body), now) {
		return nil, hook.Unverified("its signature came with another event before")
	}
	return parseEvents(p.EventData)
}

// verify checks the signature over timestamp and token. Nothing is signed between
// the two, but no digit can be moved from one to the other: a timestamp of nine
// digits or of eleven is decades or centuries from now.
func (h *Hook) verify(s signature, now time.Time) error {
	if err := hook.CheckSeconds(s.Timestamp, now); err != nil {
		return err
	}
	if s.Token == "" || len(s.Token) > maxToken {
		return hook.Unverified("its token is missing or too long")
	}
	for _, key := range h.keys {
		mac := hmac.New(sha256.New, []byte(key))
		mac.Write([]byte(s.Timestamp + s.Token))
		if hmac.Equal([]byte(hex.EncodeToString(mac.Sum(nil))), []byte(s.Signature)) {
			return nil
		}
	}
	return hook.Unverified("its signature is missing or of none of the keys")
}

// eventTypes are the events that say something about a message; a failure is
// told apart by its severity:
// https://documentation.mailgun.com/docs/mailgun/user-manual/events/event-types
//
// Left out are "rejected", of a message that Mailgun did not take, so that it is
// no evidence that it did (webhooks do not report it either), and those of
// messages that came in, lists and mailboxes.
var eventTypes = map[string]providers.EventType{
	"accepted":         providers.EventAccepted,
	"delivered":        providers.EventDelivered,
	"failed/temporary": providers.EventDelayed,
	"failed/permanent": providers.EventBounced,
	"complained":       providers.EventComplained,
	"unsubscribed":     providers.EventUnsubscribed,
	"opened":           providers.EventOpened,
	"clicked":          providers.EventClicked,
}

// permanentReasons are the reasons of a permanent failure that say that the
// address takes no mail, now or when it was put on the suppression list. The
// others are the sender's reputation, the content, a limit of retries or the
// recipient's wish:
// https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/webhook-payloads
var permanentReasons = map[string]bool{"bounce": true, "suppress-bounce": true}

// data is an event.
type data struct {
	Event     string  `json:"event"`
	Severity  string  `json:"severity"`
	Reason    string  `json:"reason"`
	Timestamp float64 `json:"timestamp"`
	Recipient string  `json:"recipient"`
	URL       string  `json:"url"`
	Message   struct {
		Headers struct {
			MessageID string `json:"message-id"`
		} `json:"headers"`
	} `json:"message"`
	DeliveryStatus struct {
		Message     string `json:"message"`
		Description string `json:"description"`
	} `json:"delivery-status"`
	UserVariables hook.Members `json:"user-variables"`
}

func parseEvents(text []byte) ([]providers.Event, error) {
	var kind struct {
		Event    string `json:"event"`
		Severity string `json:"severity"`
	}
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, hook.Unreadable("it has no event in JSON")
	}
	name := kind.Event
	if name == "failed" {
		name += "/" + kind.Severity
	}
	eventType, ok := eventTypes[name]
	if !ok {
		return nil, nil // its members may be of any form
	}
	var d data
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, hook.Unreadable("its event is not in the documented form of " + name)
	}
	e, ok := hook.Clean(providers.Event{
		Type:              eventType,
		Reference:         d.UserVariables.Text(ReferenceVariable),
		ProviderMessageID: bare(d.Message.Headers.MessageID),
		Recipient:         d.Recipient,
		OccurredAt:        eventTime(d.Timestamp),
		Permanent:         eventType == providers.EventBounced && permanentReasons[d.Reason],
		Detail:            hook.Detail(d.Reason, d.DeliveryStatus.Description, d.DeliveryStatus.Message, d.URL),
	})
	if !ok {
		return nil, hook.Unreadable("its event has no time")
	}
	return []providers.Event{e}, nil
}

// eventTime is in seconds since 1970, with a fraction, and kept to the
// microsecond: a float64 holds no more.
func eventTime(seconds float64) time.Time {
	if math.Abs(seconds) > 1<<40 {
		return time.Time{}
	}
	return time.UnixMicro(int64(math.Round(seconds * 1e6)))
}
