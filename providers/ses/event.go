package ses

import (
	"encoding/json"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/hook"
)

// record is an event record:
// https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html
type record struct {
	EventType string `json:"eventType"`
	// NotificationType is in place of EventType when an identity and not a
	// configuration set publishes. Such records have no tags.
	NotificationType string `json:"notificationType"`

	Mail struct {
		Timestamp   string              `json:"timestamp"`
		MessageID   string              `json:"messageId"`
		Destination []string            `json:"destination"`
		Tags        map[string][]string `json:"tags"`
	} `json:"mail"`
	Bounce struct {
		Type       string      `json:"bounceType"`
		SubType    string      `json:"bounceSubType"`
		Recipients []recipient `json:"bouncedRecipients"`
		Timestamp  string      `json:"timestamp"`
	} `json:"bounce"`
	Complaint struct {
		Recipients   []recipient `json:"complainedRecipients"`
		Timestamp    string      `json:"timestamp"`
		SubType      string      `json:"complaintSubType"`
		FeedbackType string      `json:"complaintFeedbackType"`
	} `json:"complaint"`
	Delivery struct {
		Timestamp  string   `json:"timestamp"`
		Recipients []string `json:"recipients"`
		Response   string   `json:"smtpResponse"`
	} `json:"delivery"`
	Delay struct {
		Type       string      `json:"delayType"`
		Recipients []recipient `json:"delayedRecipients"`
		Timestamp  string      `json:"timestamp"`
	} `json:"deliveryDelay"`
	Reject struct {
		Reason string `json:"reason"`
	} `json:"reject"`
	Failure struct {
		Message string `json:"errorMessage"`
	} `json:"failure"`
	Open struct {
		Timestamp string `json:"timestamp"`
	} `json:"open"`
	Click struct {
		Timestamp string `json:"timestamp"`
		Link      string `json:"link"`
	} `json:"click"`
	Subscription struct {
		Timestamp string `json:"timestamp"`
		Source    string `json:"source"`
		Now       struct {
			UnsubscribeAll bool `json:"unsubscribeAll"`
		} `json:"newTopicPreferences"`
	} `json:"subscription"`
}

type recipient struct {
	Address    string `json:"emailAddress"`
	Status     string `json:"status"`
	Diagnostic string `json:"diagnosticCode"`
}

// report is what a record comes to: one event for each recipient.
type report struct {
	event      providers.EventType // none: it is left out
	at         string
	recipients []recipient
	permanent  bool
	detail     string
}

// reports read the records that say something about a message, by their type:
// https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html
var reports = map[string]func(*record) report{
	"Send": func(r *record) report {
		return report{event: providers.EventAccepted, at: r.Mail.Timestamp}
	},
	"Delivery": func(r *record) report {
		return report{
			event: providers.EventDelivered, at: r.Delivery.Timestamp,
			recipients: addresses(r.Delivery.Recipients), detail: r.Delivery.Response,
		}
	},
	"DeliveryDelay": func(r *record) report {
		return report{event: providers.EventDelayed, at: r.Delay.Timestamp, recipients: r.Delay.Recipients, detail: r.Delay.Type}
	},
	"Bounce": func(r *record) report {
		return report{
			event: providers.EventBounced, at: r.Bounce.Timestamp, recipients: r.Bounce.Recipients,
			permanent: r.Bounce.Type == permanentBounce, detail: hook.Detail(r.Bounce.Type, r.Bounce.SubType),
		}
	},
	"Complaint": complaint,
	// A virus: SES took the message and did not try to deliver it.
	"Reject": func(r *record) report {
		return report{event: providers.EventBounced, at: r.Mail.Timestamp, detail: r.Reject.Reason}
	},
	"Rendering Failure": func(r *record) report {
		return report{event: providers.EventBounced, at: r.Mail.Timestamp, detail: r.Failure.Message}
	},
	"Open": func(r *record) report {
		return report{event: providers.EventOpened, at: r.Open.Timestamp, recipients: r.only()}
	},
	"Click": func(r *record) report {
		return report{event: providers.EventClicked, at: r.Click.Timestamp, recipients: r.only(), detail: r.Click.Link}
	},
	"Subscription": func(r *record) report {
		if !r.Subscription.Now.UnsubscribeAll {
			return report{} // of one topic, or a new subscription
		}
		return report{
			event: providers.EventUnsubscribed, at: r.Subscription.Timestamp, recipients: r.only(), detail: r.Subscription.Source,
		}
	},
}

const (
	permanentBounce = "Permanent"
	// onSuppressionList is the subtype of a complaint that nobody made: SES
	// took the message and did not try to deliver it, because of an older one.
	onSuppressionList = "OnAccountSuppressionList"
	// notSpam is the type of feedback of somebody who takes a complaint back.
	notSpam = "not-spam"
)

func complaint(r *record) report {
	c := &r.Complaint
	out := report{
		event: providers.EventComplained, at: c.Timestamp, recipients: c.Recipients,
		detail: hook.Detail(c.SubType, c.FeedbackType),
	}
	switch {
	case c.FeedbackType == notSpam:
		return report{}
	case c.SubType == onSuppressionList:
		out.event = providers.EventBounced
	}
	return out
}

// only returns the recipient of a message that has only one. Of several it is
// not said who opened it.
func (r *record) only() []recipient {
	if len(r.Mail.Destination) != 1 {
		return nil
	}
	return addresses(r.Mail.Destination)
}

func addresses(list []string) []recipient {
	var out []recipient
	for _, a := range list {
		out = append(out, recipient{Address: a})
	}
	return out
}

// validated is all that SES publishes when a topic becomes the destination of
// its events (anymail/django-anymail, anymail/webhooks/amazon_ses.py).
const validated = "Successfully validated SNS topic for Amazon SES event publishing."

// parseEvents reads what was published.
func parseEvents(text string) ([]providers.Event, error) {
	if text == validated {
		return nil, nil
	}
	var kind struct {
		EventType        string `json:"eventType"`
		NotificationType string `json:"notificationType"`
	}
	if err := json.Unmarshal([]byte(text), &kind); err != nil {
		return nil, hook.Unreadable("its message is not an event of SES in JSON")
	}
	name := kind.EventType
	if name == "" {
		name = kind.NotificationType
	}
	read, ok := reports[name]
	if !ok {
		return nil, nil // its other members may be of any form
	}
	var r record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, hook.Unreadable("its message is not in the documented form of a " + name)
	}
	return r.events(read(&r), name)
}

// events returns one event for each recipient, and one without any when they
// are not told apart.
func (r *record) events(found report, name string) ([]providers.Event, error) {
	if found.event == "" {
		return nil, nil
	}
	if len(found.recipients) == 0 {
		found.recipients = []recipient{{}}
	}
	if len(found.recipients) > hook.MaxEvents {
		return nil, hook.Unreadable("its " + name + " has too many recipients")
	}
	reference := ""
	if values := r.Mail.Tags[ReferenceTag]; len(values) == 1 {
		reference = values[0]
	}
	var list []providers.Event
	for _, to := range found.recipients {
		e, ok := hook.Clean(providers.Event{
			Type:              found.event,
			Reference:         reference,
			ProviderMessageID: r.Mail.MessageID,
			Recipient:         to.Address,
			OccurredAt:        hook.Time(found.at),
			Permanent:         found.permanent,
			Detail:            hook.Detail(found.detail, to.Status, to.Diagnostic),
		})
		if !ok {
			return nil, hook.Unreadable("its " + name + " has no time")
		}
		list = append(list, e)
	}
	return list, nil
}
