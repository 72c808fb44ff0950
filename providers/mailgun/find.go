package mailgun

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/outboxd/outboxd/providers"
)

const (
	// clockMargin is how far Mailgun's clock may be behind ours.
	clockMargin = time.Hour

	// maxEvents is how many events are looked at. One would do: each of a
	// message has its id.
	maxEvents = 25
)

// events are the kinds of events that a message has only after it was accepted
// (github.com/mailgun/documentation, source/api-events.rst, Filter Event).
//
// "rejected" is not one of them, and neither is "stored", which is for messages
// that came in.
var events = map[string]bool{
	"accepted": true, "delivered": true, "failed": true, "opened": true,
	"clicked": true, "unsubscribed": true, "complained": true,
}

// found is the answer to a search:
// https://documentation.mailgun.com/docs/mailgun/api-reference/send/mailgun/events/get-v3-domain_name-events
type found struct {
	Items []struct {
		Event   string `json:"event"`
		Message struct {
			Headers struct {
				MessageID string `json:"message-id"`
			} `json:"headers"`
		} `json:"message"`
	} `json:"items"`
}

// Find implements [providers.Finder]: it searches the domain's events by the
// Message-ID. Mailgun recommends its newer API for logs and says nowhere by
// which fields that can be searched; here message-id is documented. A message
// counts if an event has its id, whatever the service searched for.
//
// That nothing is found proves nothing. Mailgun publishes no time within which
// an event can be found, and keeps events for three days or more.
func (p *Provider) Find(ctx context.Context, key string, since time.Time) (providers.Receipt, providers.Found, error) {
	if !reference.MatchString(key) {
		return providers.Receipt{}, providers.FoundNothing, nil
	}
	id := p.messageID(key)
	query := url.Values{
		// Without brackets: with them the filter lets everything through
		// (mailgun/mailgun.js#296).
		"message-id": {id},
		"begin":      {strconv.FormatInt(since.Add(-clockMargin).Unix(), 10)},
		"ascending":  {"yes"},
		"limit":      {strconv.Itoa(maxEvents)},
	}
	var answer found
	search := providers.Query{Client: p.client, URL: p.searchURL + "?" + query.Encode(), Header: p.header()}
	if err := search.JSON(ctx, &answer); err != nil {
		return providers.Receipt{}, providers.FoundNothing, err
	}
	for _, item := range answer.Items {
		if events[item.Event] && bare(item.Message.Headers.MessageID) == id {
			return providers.Receipt{ProviderMessageID: id, Status: http.StatusOK}, providers.FoundAccepted, nil
		}
	}
	return providers.Receipt{}, providers.FoundNothing, nil
}
