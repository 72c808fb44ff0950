package providertest

import (
	"encoding/json"
	"net/http"
	"time"
)

// EventKind is what a service reports about a message.
type EventKind string

// The kinds that every service has a word for, or none.
const (
	// EventProcessed: the service has taken the message up.
	EventProcessed EventKind = "processed"
	// EventDeferred: the recipient's server asked to come back later.
	EventDeferred EventKind = "deferred"
	// EventDelivered: the recipient's server has taken the message.
	EventDelivered EventKind = "delivered"
	// EventBounced: the recipient's server refused the message for good.
	EventBounced EventKind = "bounced"
	// EventComplained: the recipient called the message spam.
	EventComplained EventKind = "complained"
)

// Event is what became of an accepted message at one recipient, before it is
// put into a service's words.
type Event struct {
	Kind EventKind
	// ID is unique among events; it becomes the service's own name for the
	// event, where there is one.
	ID        string
	At        time.Time
	Recipient string
	// Message is the accepted message: its ID, Reference, From and Subject
	// are reported.
	Message Accepted
}

// Webhook is a request that a service posts to its customer.
type Webhook struct {
	Header http.Header
	Body   []byte
}

// Webhooks puts events into the form of one service, signed as it signs.
// Values are safe for concurrent use.
type Webhooks interface {
	// Post returns the requests that report the events, as posted at the given
	// time. Kinds that the service does not report are left out.
	Post(events []Event, at time.Time) ([]Webhook, error)
	// Again returns e as the service reports it when it does so once more. An
	// event comes under the same id again, except from SendGrid.
	Again(e Event) Event
}

var (
	_ Webhooks = SendGridWebhooks{}
	_ Webhooks = ResendWebhooks{}
	_ Webhooks = PostmarkWebhooks{}
	_ Webhooks = MailgunWebhooks{}
	_ Webhooks = SESWebhooks{}
)

// referenceName is under what name adapters hand the attempt's key to services
// that report it back.
const referenceName = "outboxd_attempt"

// object is a JSON object; its members are encoded in the order of their names.
type object map[string]any

// each returns one request per event, for services that post events singly.
// The body of a kind that the service does not report is nil.
func each(events []Event, body func(Event) object, sign func(Event, []byte) (Webhook, error)) ([]Webhook, error) {
	var list []Webhook
	for _, e := range events {
		members := body(e)
		if members == nil {
			continue
		}
		encoded, err := json.Marshal(members)
		if err != nil {
			return nil, err
		}
		w, err := sign(e, encoded)
		if err != nil {
			return nil, err
		}
		list = append(list, w)
	}
	return list, nil
}

// jsonWebhook is a request with a JSON body.
func jsonWebhook(userAgent string, body []byte) Webhook {
	return Webhook{Body: body, Header: http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {userAgent},
	}}
}

// isoTime is how most services write a time.
func isoTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
