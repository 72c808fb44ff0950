package console

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// pageSize is how many emails or addresses a page has.
const pageSize = 50

// period is how far back a list goes.
type period struct {
	Value, Label string
	length       time.Duration // 0: all
}

var periods = []period{
	{"1h", "last hour", time.Hour},
	{"24h", "last 24 hours", 24 * time.Hour},
	{"7d", "last 7 days", 7 * 24 * time.Hour},
	{"30d", "last 30 days", 30 * 24 * time.Hour},
	{"all", "all that is stored", 0},
}

// defaultPeriod keeps an ordinary look at the list cheap.
const defaultPeriod = "24h"

func periodOf(value string) period {
	for _, p := range periods {
		if p.Value == value {
			return p
		}
	}
	return periodOf(defaultPeriod)
}

// emailFilter is the filters as the address of the page has them.
type emailFilter struct {
	Org      string
	Status   outbox.Status
	Provider string
	Since    period
	After    uuid.UUID
}

func emailFilterOf(query url.Values) emailFilter {
	after, _ := uuid.Parse(query.Get("after")) // from a link of ours
	return emailFilter{
		Org: query.Get("org"), Status: outbox.Status(query.Get("status")), Provider: query.Get("provider"),
		Since: periodOf(query.Get("since")), After: after,
	}
}

// Link leads to the list with these filters, after an email unless it is nil.
func (f emailFilter) Link(after uuid.UUID) string {
	query := url.Values{"since": {f.Since.Value}}
	for name, value := range map[string]string{"org": f.Org, "status": string(f.Status), "provider": f.Provider} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if after != uuid.Nil {
		query.Set("after", after.String())
	}
	return Path + "/emails?" + query.Encode()
}

// Everything is the same without a bound in time.
func (f emailFilter) Everything() string {
	f.Since = periodOf("all")
	return f.Link(uuid.Nil)
}

type emailsView struct {
	Filter emailFilter
	Emails []outbox.Listing
	// Older leads to the next page; empty: there is none.
	Older string
	// Search is what was searched for; empty: it is a list.
	Search string

	Orgs      []outbox.OrgInfo
	Providers []outbox.ProviderState
	Statuses  []outbox.Status
	Periods   []period
}

// emails is the list, or what a search has found.
func (h handler) emails(r *http.Request) (response, error) {
	if search := strings.TrimSpace(r.FormValue("q")); search != "" {
		return h.found(r, search)
	}
	view := emailsView{Filter: emailFilterOf(r.URL.Query()), Statuses: outbox.Statuses, Periods: periods}
	filter := outbox.Filter{Status: view.Filter.Status, Provider: view.Filter.Provider, After: view.Filter.After, Limit: pageSize}
	if length := view.Filter.Since.length; length > 0 {
		filter.Since = time.Now().Add(-length)
	}
	var err error
	if view.Orgs, err = outbox.ListOrgs(r.Context(), h.Pool); err != nil {
		return nil, err
	}
	if filter.Org, err = orgNamed(view.Orgs, view.Filter.Org); err != nil {
		return nil, err
	}
	if view.Providers, err = outbox.ProviderStates(r.Context(), h.Pool); err != nil {
		return nil, err
	}
	var more bool
	if view.Emails, more, err = h.Outbox.Browse(r.Context(), filter); err != nil {
		return nil, err
	}
	if more {
		view.Older = view.Filter.Link(view.Emails[len(view.Emails)-1].ID)
	}
	return page{File: "emails.html", Section: "emails", Title: "Emails", Body: view}, nil
}

// orgNamed returns the id of an org; nil for no name.
func orgNamed(orgs []outbox.OrgInfo, name string) (uuid.UUID, error) {
	if name == "" {
		return uuid.Nil, nil
	}
	for _, org := range orgs {
		if org.Name == name {
			return org.ID, nil
		}
	}
	return uuid.Nil, errNoPage
}

// found shows what a search has found, at once if it is one email.
func (h handler) found(r *http.Request, search string) (response, error) {
	list, err := h.Outbox.Find(r.Context(), search)
	if err != nil {
		return nil, err
	}
	if len(list) == 1 {
		return redirect(emailPath(list[0].ID)), nil
	}
	return page{
		File: "found.html", Section: "emails", Title: "Search", Search: search,
		Body: emailsView{Emails: list, Search: search},
	}, nil
}

func emailPath(id uuid.UUID) string { return Path + "/emails/" + id.String() }

// First leads to the newest emails with these filters.
func (f emailFilter) First() string { return f.Link(uuid.Nil) }

// Paged reports whether these are not the newest.
func (f emailFilter) Paged() bool { return f.After != uuid.Nil }

// Any reports whether something but the time narrows the list.
func (f emailFilter) Any() bool {
	return f.Org != "" || f.Status != "" || f.Provider != "" || f.Paged()
}
