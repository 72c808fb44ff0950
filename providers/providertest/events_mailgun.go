package providertest

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// MailgunWebhooks is Mailgun's webhooks. The signature is in the body and does
// not cover the event:
// https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks
type MailgunWebhooks struct {
	// SigningKey is the account's HTTP webhook signing key.
	SigningKey string
}

// Post implements [Webhooks].
func (m MailgunWebhooks) Post(events []Event, at time.Time) ([]Webhook, error) {
	return each(events, mailgunEvent, func(_ Event, event []byte) (Webhook, error) {
		body, err := json.Marshal(object{"signature": m.signature(at), "event-data": json.RawMessage(event)})
		return jsonWebhook("mailgun/treq-fake", body), err
	})
}

// Again implements [Webhooks].
func (MailgunWebhooks) Again(e Event) Event { return e }

func (m MailgunWebhooks) signature(at time.Time) object {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	token := strings.ToLower(rand.Text() + rand.Text())[:50]
	mac := hmac.New(sha256.New, []byte(m.SigningKey))
	_, _ = mac.Write([]byte(timestamp + token))
	return object{"timestamp": timestamp, "token": token, "signature": hex.EncodeToString(mac.Sum(nil))}
}

// mailgunEvent is what is in event-data:
// https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/webhook-payloads
func mailgunEvent(e Event) object {
	_, domain, _ := strings.Cut(e.Recipient, "@")
	members := object{
		"id":               e.ID,
		"timestamp":        float64(e.At.UnixMicro()) / 1e6,
		"log-level":        "info",
		"recipient":        e.Recipient,
		"recipient-domain": domain,
		"message": object{"headers": object{
			"message-id": strings.Trim(e.Message.ID, "<>"),
			"from":       e.Message.From, "to": strings.Join(e.Message.To, ", "), "subject": e.Message.Subject,
		}},
		"flags":          object{"is-authenticated": true, "is-test-mode": false, "is-routed": false},
		"tags":           []string{},
		"user-variables": object{referenceName: e.Message.Reference},
	}
	switch e.Kind {
	case EventProcessed:
		members["event"], members["method"] = "accepted", "HTTP"
	case EventDeferred:
		mailgunFailure(members, "temporary", "warn", "generic", 451, "4.7.1 try again later")
	case EventDelivered:
		members["event"] = "delivered"
		members["delivery-status"] = object{"code": 250, "message": "OK", "attempt-no": 1}
	case EventBounced:
		mailgunFailure(members, "permanent", "error", "bounce", 550, "5.1.1 no such user")
	case EventComplained:
		members["event"] = "complained"
	}
	return members
}

func mailgunFailure(members object, severity, level, reason string, code int, message string) {
	members["event"], members["severity"] = "failed", severity
	members["log-level"], members["reason"] = level, reason
	members["delivery-status"] = object{"code": code, "message": message, "description": "", "attempt-no": 1}
}
