package providertest

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ResendWebhooks is Resend's webhooks, which Svix signs:
// https://resend.com/docs/dashboard/webhooks/event-types
// https://docs.svix.com/receiving/verifying-payloads/how-manual
type ResendWebhooks struct {
	// Secret is whsec_ and the key in base64.
	Secret string
}

// NewResendWebhooks returns webhooks with a secret of their own.
func NewResendWebhooks() ResendWebhooks {
	key := make([]byte, 24)
	_, _ = rand.Read(key) // never fails: crypto/rand
	return ResendWebhooks{Secret: "whsec_" + base64.StdEncoding.EncodeToString(key)}
}

// Post implements [Webhooks].
func (r ResendWebhooks) Post(events []Event, at time.Time) ([]Webhook, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Secret, "whsec_"))
	if err != nil {
		return nil, errors.New("the secret of Resend's webhooks is not whsec_ and base64")
	}
	timestamp := strconv.FormatInt(at.Unix(), 10)
	return each(events, resendEvent, func(e Event, body []byte) (Webhook, error) {
		id := "msg_" + e.ID
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
		w := jsonWebhook("Svix-Webhooks/1.0 (sender-fake)", body)
		w.Header.Set("Svix-Id", id)
		w.Header.Set("Svix-Timestamp", timestamp)
		w.Header.Set("Svix-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		return w, nil
	})
}

// Again implements [Webhooks].
func (ResendWebhooks) Again(e Event) Event { return e }

func resendEvent(e Event) object {
	types := map[EventKind]string{
		EventProcessed: "email.sent", EventDeferred: "email.delivery_delayed", EventDelivered: "email.delivered",
		EventBounced: "email.bounced", EventComplained: "email.complained",
	}
	data := object{
		"created_at": isoTime(e.Message.At),
		"email_id":   e.Message.ID,
		"from":       e.Message.From,
		"to":         []string{e.Recipient},
		"subject":    e.Message.Subject,
		"tags":       object{referenceName: e.Message.Reference},
	}
	if e.Kind == EventBounced {
		// https://resend.com/docs/webhooks/emails/bounced
		data["bounce"] = object{
			"type": "Permanent", "subType": "General", "message": "The recipient's server refused the message: no such user.",
		}
	}
	return object{"type": types[e.Kind], "created_at": isoTime(e.At), "data": data}
}
