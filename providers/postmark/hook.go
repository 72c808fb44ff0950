package postmark

import (
	"context"
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

// minPassword is the least length of a password, in bytes. It is all that
// proves a request, and whoever knows the address can guess at leisure.
const minPassword = 16

// HookConfig is what verifies webhooks.
type HookConfig struct {
	// Credentials are those in the webhook's settings or URL. Any of them
	// verifies, so that they can be changed.
	Credentials []Credentials
}

// Credentials are a user and a password of HTTP's Basic authentication.
type Credentials struct{ User, Password string }

// Hook verifies and reads Postmark's webhooks. Its methods may be called
// concurrently.
//
// Postmark signs nothing
// (https://postmarkapp.com/developer/webhooks/webhooks-overview#protecting-your-webhook):
// it shows a password. So nothing says when a request was made, and whoever
// learns the password can make others; the URL has to be https.
type Hook struct{ authorizations []string }

var _ providers.Hook = (*Hook)(nil)

// NewHook returns a hook for the webhooks that have the credentials. Passwords
// have at least 16 characters.
func NewHook(c HookConfig) (*Hook, error) {
	if len(c.Credentials) == 0 {
		return nil, errors.New("postmark: the webhook's user and password are missing")
	}
	h := &Hook{}
	for _, credentials := range c.Credentials {
		if err := credentials.check(); err != nil {
			return nil, fmt.Errorf("postmark: %w", err)
		}
		plain := credentials.User + ":" + credentials.Password
		h.authorizations = append(h.authorizations, "Basic "+base64.StdEncoding.EncodeToString([]byte(plain)))
	}
	return h, nil
}

func (c Credentials) check() error {
	if err := providers.CheckSecret("webhook's user", c.User); err != nil {
		return err
	}
	if strings.Contains(c.User, ":") {
		return errors.New("the webhook's user has a colon, which ends it")
	}
	if err := providers.CheckSecret("webhook's password", c.Password); err != nil {
		return err
	}
	if len(c.Password) < minPassword {
		return fmt.Errorf("the webhook's password is shorter than %d characters; make one with `openssl rand -hex 24`", minPassword)
	}
	return nil
}

// ParseEvents implements [providers.Hook].
func (h *Hook) ParseEvents(_ context.Context, header http.Header, body []byte, _ time.Time) ([]providers.Event, error) {
	given := header.Get("Authorization")
	for _, want := range h.authorizations {
		if hook.Equal(given, want) {
			return parseEvents(body)
		}
	}
	return nil, hook.Unverified("its user and password are missing or wrong")
}

// bounce is what a type of bounce comes to.
type bounce struct {
	event     providers.EventType
	permanent bool
}

// bounceTypes are the bounces that say something about a message:
// https://postmarkapp.com/developer/api/bounce-api#bounce-types
//
// Left out are answers by machines and confirmations (Subscribe, AutoResponder,
// AddressChange, OpenRelayTest, ChallengeVerification, Unconfirmed) and
// InboundError, which is about a message that came in.
var bounceTypes = map[string]bounce{
	"HardBounce":              {providers.EventBounced, true},
	"BadEmailAddress":         {providers.EventBounced, true},
	"SoftBounce":              {providers.EventBounced, false},
	"SpamNotification":        {providers.EventBounced, false}, // a filter's verdict, not the recipient's
	"VirusNotification":       {providers.EventBounced, false},
	"Blocked":                 {providers.EventBounced, false},
	"DMARCPolicy":             {providers.EventBounced, false},
	"Unknown":                 {providers.EventBounced, false},
	"ManuallyDeactivated":     {providers.EventBounced, false},
	"SMTPApiError":            {providers.EventBounced, false},
	"TemplateRenderingFailed": {providers.EventBounced, false},
	"Transient":               {providers.EventDelayed, false},
	"DnsError":                {providers.EventDelayed, false},
	"Unsubscribe":             {providers.EventUnsubscribed, false},
	"SpamComplaint":           {providers.EventComplained, false},
}

// payload is a webhook's body. The kinds of records have a page each:
//
//   - https://postmarkapp.com/developer/webhooks/delivery-webhook
//   - https://postmarkapp.com/developer/webhooks/bounce-webhook
//   - https://postmarkapp.com/developer/webhooks/spam-complaint-webhook
//   - https://postmarkapp.com/developer/webhooks/open-tracking-webhook
//   - https://postmarkapp.com/developer/webhooks/click-webhook
//   - https://postmarkapp.com/developer/webhooks/subscription-change-webhook
type payload struct {
	RecordType string
	MessageID  string
	Metadata   hook.Members
	Recipient  string // of a bounce and a complaint: Email
	Email      string

	DeliveredAt, BouncedAt, ReceivedAt, ChangedAt string

	// A bounce.
	Type        string
	Description string
	Details     string // of a delivery: the reply of the server
	// A click.
	OriginalLink string
	// A change of a suppression list.
	SuppressSending   bool
	SuppressionReason string
	Origin            string
}

func parseEvents(body []byte) ([]providers.Event, error) {
	var kind struct{ RecordType string }
	if err := json.Unmarshal(body, &kind); err != nil {
		return nil, hook.Unreadable("its body is not a record in JSON")
	}
	read, ok := records[kind.RecordType]
	if !ok {
		return nil, nil // a record of another kind, such as a message that came in
	}
	var p payload
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, hook.Unreadable("its body is not in the documented form of a " + kind.RecordType)
	}
	e, ok := read(&p)
	if !ok {
		return nil, nil
	}
	e.Reference, e.ProviderMessageID = p.Metadata.Text(ReferenceField), p.MessageID
	if e, ok = hook.Clean(e); !ok {
		return nil, hook.Unreadable("its " + kind.RecordType + " has no time")
	}
	return []providers.Event{e}, nil
}

// records read the records that may say something about a message; they report
// false when it does not.
var records = map[string]func(*payload) (providers.Event, bool){
	"Delivery":           delivery,
	"Bounce":             bounced,
	"SpamComplaint":      bounced, // its Type is SpamComplaint
	"Open":               opened,
	"Click":              clicked,
	"SubscriptionChange": changed,
}

func delivery(p *payload) (providers.Event, bool) {
	return providers.Event{
		Type: providers.EventDelivered, Recipient: p.Recipient, OccurredAt: hook.Time(p.DeliveredAt), Detail: p.Details,
	}, true
}

func bounced(p *payload) (providers.Event, bool) {
	b, ok := bounceTypes[p.Type]
	return providers.Event{
		Type: b.event, Permanent: b.permanent, Recipient: p.Email, OccurredAt: hook.Time(p.BouncedAt),
		Detail: hook.Detail(p.Type, p.Description, p.Details),
	}, ok
}

func opened(p *payload) (providers.Event, bool) {
	return providers.Event{Type: providers.EventOpened, Recipient: p.Recipient, OccurredAt: hook.Time(p.ReceivedAt)}, true
}

func clicked(p *payload) (providers.Event, bool) {
	return providers.Event{
		Type: providers.EventClicked, Recipient: p.Recipient, OccurredAt: hook.Time(p.ReceivedAt), Detail: p.OriginalLink,
	}, true
}

// changed is the recipient's own unsubscribing. Changes because of a bounce or
// a complaint are reported as such too, and those that the sender makes are not
// about a message.
func changed(p *payload) (providers.Event, bool) {
	wish := p.SuppressSending && p.Origin == "Recipient" && p.SuppressionReason == "ManualSuppression"
	return providers.Event{
		Type: providers.EventUnsubscribed, Recipient: p.Recipient, OccurredAt: hook.Time(p.ChangedAt), Detail: p.SuppressionReason,
	}, wish
}
