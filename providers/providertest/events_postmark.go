package providertest

import (
	"encoding/base64"
	"hash/fnv"
	"time"
)

// PostmarkWebhooks is Postmark's webhooks, which are not signed: the credentials
// are in their URL.
// https://postmarkapp.com/developer/webhooks/webhooks-overview
type PostmarkWebhooks struct{ Username, Password string }

// Post implements [Webhooks].
func (p PostmarkWebhooks) Post(events []Event, _ time.Time) ([]Webhook, error) {
	return each(events, postmarkEvent, func(_ Event, body []byte) (Webhook, error) {
		w := jsonWebhook("Postmark", body)
		credentials := base64.StdEncoding.EncodeToString([]byte(p.Username + ":" + p.Password))
		w.Header.Set("Authorization", "Basic "+credentials)
		return w, nil
	})
}

// Again implements [Webhooks].
func (PostmarkWebhooks) Again(e Event) Event { return e }

// postmarkEvent has no word for a message that was taken up.
func postmarkEvent(e Event) object {
	switch e.Kind {
	case EventDelivered:
		// https://postmarkapp.com/developer/webhooks/delivery-webhook
		members := postmarkMessage(e)
		members["RecordType"] = "Delivery"
		members["Recipient"] = e.Recipient
		members["DeliveredAt"] = e.At.UTC().Format(time.RFC3339Nano)
		members["Details"] = "250 2.0.0 OK"
		return members
	case EventBounced:
		// https://postmarkapp.com/developer/webhooks/bounce-webhook
		return postmarkBounce(e, "Bounce", "HardBounce", 1, "Hard bounce", true)
	case EventDeferred:
		// https://postmarkapp.com/developer/api/bounce-api#bounce-types
		return postmarkBounce(e, "Bounce", "Transient", 2, "Message delayed", false)
	case EventComplained:
		// https://postmarkapp.com/developer/webhooks/spam-complaint-webhook
		return postmarkBounce(e, "SpamComplaint", "SpamComplaint", 512, "Spam complaint", true)
	}
	return nil
}

func postmarkMessage(e Event) object {
	return object{
		"MessageStream": "outbound",
		"ServerID":      23,
		"MessageID":     e.Message.ID,
		"Tag":           "",
		"Metadata":      object{referenceName: e.Message.Reference},
	}
}

func postmarkBounce(e Event, record, kind string, code int, name string, inactive bool) object {
	number := fnv.New32a()
	_, _ = number.Write([]byte(e.ID))
	members := postmarkMessage(e)
	members["RecordType"] = record
	members["ID"] = number.Sum32()
	members["Type"], members["TypeCode"], members["Name"] = kind, code, name
	members["Description"], members["Details"] = "Made by a fake of the service.", "550 5.1.1 no such user"
	members["Email"], members["From"], members["Subject"] = e.Recipient, e.Message.From, e.Message.Subject
	members["BouncedAt"] = e.At.UTC().Format(time.RFC3339Nano)
	members["DumpAvailable"], members["Inactive"], members["CanActivate"] = false, inactive, record == "Bounce"
	return members
}
