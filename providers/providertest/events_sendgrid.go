package providertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"
)

// SendGridWebhooks is SendGrid's Event Webhook with signatures on:
// https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/event
// https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/getting-started-event-webhook-security-features
type SendGridWebhooks struct {
	// Key signs. It is on the curve P-256.
	Key *ecdsa.PrivateKey
}

// NewSendGridWebhooks returns webhooks with a key pair of their own.
func NewSendGridWebhooks() (SendGridWebhooks, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return SendGridWebhooks{Key: key}, err
}

// PublicKey returns the verification key the way SendGrid shows it: DER in
// base64.
func (s SendGridWebhooks) PublicKey() (string, error) {
	der, err := x509.MarshalPKIXPublicKey(&s.Key.PublicKey)
	return base64.StdEncoding.EncodeToString(der), err
}

// Post implements [Webhooks]: all events come in one request.
func (s SendGridWebhooks) Post(events []Event, at time.Time) ([]Webhook, error) {
	batch := make([]object, 0, len(events))
	for _, e := range events {
		batch = append(batch, sendGridEvent(e))
	}
	body, err := json.Marshal(batch)
	if err != nil {
		return nil, err
	}
	timestamp := strconv.FormatInt(at.Unix(), 10)
	digest := sha256.Sum256(append([]byte(timestamp), body...))
	signature, err := ecdsa.SignASN1(rand.Reader, s.Key, digest[:])
	if err != nil {
		return nil, err
	}
	w := jsonWebhook("SendGrid Event API", body)
	w.Header.Set("X-Twilio-Email-Event-Webhook-Signature", base64.StdEncoding.EncodeToString(signature))
	w.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", timestamp)
	return []Webhook{w}, nil
}

// Again implements [Webhooks]. SendGrid gives the same event another id:
// sendgrid/sendgrid-nodejs#1435.
func (SendGridWebhooks) Again(e Event) Event {
	e.ID = rand.Text()
	return e
}

// sendGridEvent has the custom arguments as members of its own.
func sendGridEvent(e Event) object {
	members := object{
		"email":         e.Recipient,
		"timestamp":     e.At.Unix(),
		"event":         string(e.Kind),
		"smtp-id":       "<" + e.Message.ID + "@geopod-ismtpd-fake>",
		"sg_event_id":   e.ID,
		"sg_message_id": e.Message.ID + ".recvd-fake-1-0.0",
		referenceName:   e.Message.Reference,
	}
	switch e.Kind {
	case EventDeferred:
		members["response"], members["attempt"] = "451 4.7.1 try again later", "1"
	case EventDelivered:
		members["response"] = "250 2.0.0 OK"
	case EventBounced:
		members["event"], members["type"] = "bounce", "bounce"
		members["status"], members["reason"] = "5.1.1", "550 5.1.1 no such user"
		members["bounce_classification"] = "Invalid Address"
	case EventComplained:
		members["event"] = "spamreport"
	}
	return members
}
