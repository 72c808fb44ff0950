package postmark

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// found is the answer to a search:
// https://postmarkapp.com/developer/api/messages-api#outbound-message-search
type found struct {
	Messages []struct {
		MessageID string
		Metadata  map[string]string
	}
}

// Find implements [providers.Finder]: it searches the messages of the stream
// by their metadata
// (https://postmarkapp.com/support/article/1125-custom-metadata-faq). A message
// counts if it has the key in its metadata, whatever the service searched for.
//
// That nothing is found proves nothing. Postmark publishes no time within which
// a message can be found, and keeps messages for 45 days or as long as the
// server is set to. The time since is not used: Postmark reads times as those
// of the US east coast, and keys do not repeat.
func (p *Provider) Find(ctx context.Context, key string, _ time.Time) (providers.Receipt, providers.Found, error) {
	if p.sandbox || !reference.MatchString(key) {
		return providers.Receipt{}, providers.FoundNothing, ctx.Err()
	}
	query := url.Values{
		"count": {"50"}, "offset": {"0"}, "messagestream": {p.stream},
		"metadata_" + ReferenceField: {key},
	}
	var answer found
	search := providers.Query{Client: p.client, URL: p.searchURL + "?" + query.Encode(), Header: p.header()}
	if err := search.JSON(ctx, &answer); err != nil {
		return providers.Receipt{}, providers.FoundNothing, err
	}
	for _, m := range answer.Messages {
		if m.Metadata[ReferenceField] == key {
			return providers.Receipt{
				ProviderMessageID: providers.MessageID(m.MessageID), Status: http.StatusOK,
			}, providers.FoundAccepted, nil
		}
	}
	return providers.Receipt{}, providers.FoundNothing, nil
}
