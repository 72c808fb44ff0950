//go:build faults

package app

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/sendgrid"
)

// searchable is a provider without keys that can be asked what became of a
// message, and whose search is complete: it also knows that there is no such
// message. No real service says that; the crash matrix needs one that does, to
// show what it is worth.
type searchable struct {
	*sendgrid.Provider
	baseURL string
}

var _ providers.Finder = searchable{}

// The registry is filled before main by this declaration, so that the file of a
// release build needs to know nothing of this one.
var _ = func() bool {
	factories["search"] = newSearchable
	return true
}()

func newSearchable(c *Config) (providers.Provider, error) {
	p, err := sendgrid.New(sendgrid.Config{APIKey: c.SendGrid.APIKey, BaseURL: c.SendGrid.BaseURL})
	return searchable{Provider: p, baseURL: c.SendGrid.BaseURL}, err
}

// Name implements [providers.Provider].
func (searchable) Name() string { return "search" }

// Find implements [providers.Finder].
func (s searchable) Find(ctx context.Context, key string, _ time.Time) (providers.Receipt, providers.Found, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.baseURL+"/search/"+key, nil)
	if err != nil {
		return providers.Receipt{}, providers.FoundNothing, err
	}
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return providers.Receipt{}, providers.FoundNothing, err
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct{ Found string }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return providers.Receipt{}, providers.FoundNothing, err
	}
	switch answer.Found {
	case "accepted":
		return providers.Receipt{Status: http.StatusAccepted}, providers.FoundAccepted, nil
	case "absent":
		return providers.Receipt{}, providers.FoundNotAccepted, nil
	case "nothing":
		return providers.Receipt{}, providers.FoundNothing, nil
	}
	return providers.Receipt{}, providers.FoundNothing, errors.New("the search answered nonsense")
}
