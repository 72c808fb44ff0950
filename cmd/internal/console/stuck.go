package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

const stuckPath = Path + "/stuck"

const (
	// stuckCounted is how many stuck emails the overview counts at most, and
	// stuckPatience how long it takes for that: it is there to be quick.
	stuckCounted  = 1000
	stuckPatience = 3 * time.Second
)

// stuckCounts is how many emails are stuck, and why.
type stuckCounts struct {
	Rows []stuckRow
	// More says that there are more than were counted.
	More bool
	// Unknown says that counting took too long.
	Unknown bool
}

type stuckRow struct {
	Reason outbox.StuckReason
	Emails int
	// Since and Advice are those of the oldest.
	Since  time.Time
	Advice string
	Link   string
}

// Total is how many were counted.
func (c stuckCounts) Total() (n int) {
	for _, row := range c.Rows {
		n += row.Emails
	}
	return n
}

func (c stuckCounts) orMore() string {
	if c.More {
		return ", or more"
	}
	return ""
}

// countStuck counts by reason, in the order in which the reasons are met.
func (h handler) countStuck(ctx context.Context) (counts stuckCounts, err error) {
	ctx, cancel := context.WithTimeout(ctx, stuckPatience)
	defer cancel()
	filter := h.Stuck
	filter.Limit = stuckCounted
	list, next, err := outbox.ListStuck(ctx, h.Pool, filter)
	if errors.Is(err, context.DeadlineExceeded) {
		return stuckCounts{Unknown: true}, nil
	}
	if err != nil {
		return counts, err
	}
	counts.More = next != uuid.Nil
	index := map[outbox.StuckReason]int{}
	for _, e := range list {
		i, known := index[e.Reason]
		if !known {
			i, index[e.Reason] = len(counts.Rows), len(counts.Rows)
			counts.Rows = append(counts.Rows, stuckRow{
				Reason: e.Reason, Since: e.Since, Advice: e.Advice, Link: stuckFilter{Reason: e.Reason}.Link(uuid.Nil),
			})
		}
		counts.Rows[i].Emails++
	}
	return counts, nil
}

// stuckFilter is the filters as the address of the page has them.
type stuckFilter struct {
	Org    string
	Reason outbox.StuckReason
}

// Link leads to the list with these filters, after an email unless it is nil.
func (f stuckFilter) Link(after uuid.UUID) string {
	query := url.Values{}
	for name, value := range map[string]string{"org": f.Org, "reason": string(f.Reason)} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if after != uuid.Nil {
		query.Set("after", after.String())
	}
	return strings.TrimSuffix(stuckPath+"?"+query.Encode(), "?")
}

type stuckView struct {
	stuckFilter
	Emails  []outbox.StuckEmail
	Next    string // where the list goes on; empty: it does not
	Orgs    []outbox.OrgInfo
	Reasons []outbox.StuckReason
}

// stuck lists the emails that need somebody, each with its reason.
func (h handler) stuck(r *http.Request) (response, error) {
	view := stuckView{
		stuckFilter: stuckFilter{r.FormValue("org"), outbox.StuckReason(r.FormValue("reason"))},
		Reasons:     outbox.StuckReasons,
	}
	var err error
	if view.Orgs, err = outbox.ListOrgs(r.Context(), h.Pool); err != nil {
		return nil, err
	}
	filter := h.Stuck
	filter.Reason, filter.Limit = view.Reason, pageSize
	filter.After, _ = uuid.Parse(r.FormValue("after")) // from a link of ours
	if filter.Org, err = orgNamed(view.Orgs, view.Org); err != nil {
		return nil, err
	}
	var next uuid.UUID
	if view.Emails, next, err = outbox.ListStuck(r.Context(), h.Pool, filter); err != nil {
		return nil, err
	}
	if next != uuid.Nil {
		view.Next = view.Link(next)
	}
	return page{File: "stuck.html", Section: "stuck", Title: "Stuck emails", Body: view}, nil
}

// fragment is a part of an advice; what is to be typed is code.
type fragment struct {
	Text string
	Code bool
}

// proseOf reads an advice, which has commands between backquotes.
func proseOf(advice string) (list []fragment) {
	for i, text := range strings.Split(advice, "`") {
		list = append(list, fragment{text, i%2 == 1})
	}
	return list
}
