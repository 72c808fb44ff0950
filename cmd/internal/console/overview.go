package console

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/outboxd/outboxd/outbox"
)

// refreshes are how often the overview may be asked to load itself again: with no
// script that is up to the address, and to whoever opens it.
var refreshes = map[string]int{"10": 10, "60": 60}

// recoveriesShown is how many of the last recoveries there are to see.
const recoveriesShown = 5

type overviewView struct {
	State      *outbox.State
	Pace       outbox.Pace
	Providers  []providerRow
	Pauses     []outbox.Pause
	Recoveries []outbox.Recovery
	Workers    []outbox.WorkerInfo
	Stuck      stuckCounts
	Rows       []waitingRow
	Alarms     []alarm
}

// waitingRow is the emails of a status that has not ended.
type waitingRow struct {
	Status                   outbox.Status
	High, Normal, Low, Total int
	// Oldest is zero when none is due.
	Oldest time.Duration
	Link   string
}

// providerRow is a provider's health, and how it has done lately.
type providerRow struct {
	outbox.ProviderState
	outbox.ProviderPace
}

// Provider is its name, which both parts have.
func (r providerRow) Provider() string { return r.ProviderState.Name }

// alarm is something that a person should look at.
type alarm struct{ Text, Link, LinkText string }

// overview answers in one look whether mail goes out, and what is in its way.
func (h handler) overview(r *http.Request) (response, error) {
	view, err := h.readOverview(r.Context())
	if err != nil {
		return nil, err
	}
	view.Rows = rowsOf(view.State)
	view.Alarms = alarmsOf(view)
	return page{
		File: "overview.html", Section: "overview", Title: "Overview",
		Every: refreshes[r.FormValue("every")], Body: view,
	}, nil
}

func (h handler) readOverview(ctx context.Context) (view *overviewView, err error) {
	view = new(overviewView)
	if view.State, err = outbox.ReadState(ctx, h.Pool); err != nil {
		return nil, err
	}
	if view.Pace, err = outbox.ReadPace(ctx, h.Pool); err != nil {
		return nil, err
	}
	if view.Providers, err = h.providers(ctx); err != nil {
		return nil, err
	}
	if view.Pauses, err = outbox.ListPauses(ctx, h.Pool); err != nil {
		return nil, err
	}
	if view.Recoveries, err = outbox.ListRecoveries(ctx, h.Pool, recoveriesShown); err != nil {
		return nil, err
	}
	if view.Workers, err = h.aliveWorkers(ctx); err != nil {
		return nil, err
	}
	view.Stuck, err = h.countStuck(ctx)
	return view, err
}

func (h handler) providers(ctx context.Context) (rows []providerRow, err error) {
	states, err := outbox.ProviderStates(ctx, h.Pool)
	if err != nil {
		return nil, err
	}
	paces, err := outbox.ReadProviderPaces(ctx, h.Pool)
	if err != nil {
		return nil, err
	}
	for _, state := range states {
		row := providerRow{ProviderState: state}
		for _, pace := range paces {
			if pace.Name == state.Name {
				row.ProviderPace = pace
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// rowsOf groups what waits by status.
func rowsOf(s *outbox.State) (rows []waitingRow) {
	index := map[outbox.Status]int{}
	for _, w := range s.Waiting {
		i, known := index[w.Status]
		if !known {
			i, index[w.Status] = len(rows), len(rows)
			link := emailFilter{Status: w.Status}.Everything()
			rows = append(rows, waitingRow{Status: w.Status, Link: link})
		}
		row := &rows[i]
		switch w.Priority {
		case outbox.PriorityHigh:
			row.High = w.Emails
		case outbox.PriorityLow:
			row.Low = w.Emails
		default:
			row.Normal = w.Emails
		}
		row.Total, row.Oldest = row.Total+w.Emails, max(row.Oldest, w.Oldest)
	}
	return rows
}

// row returns the emails of a status.
func (v *overviewView) row(s outbox.Status) waitingRow {
	for _, row := range v.Rows {
		if row.Status == s {
			return row
		}
	}
	return waitingRow{}
}

// Queued and InDoubt are the two figures to look at first.
func (v *overviewView) Queued() waitingRow { return v.row(outbox.StatusQueued) }

// InDoubt are the emails of which nobody knows.
func (v *overviewView) InDoubt() waitingRow { return v.row(outbox.StatusUnknown) }

// alarmsOf is what is in the way of mail, the worst first.
func alarmsOf(v *overviewView) (list []alarm) {
	add := func(link, linkText, format string, args ...any) {
		list = append(list, alarm{fmt.Sprintf(format, args...), link, linkText})
	}
	if v.State.Workers == 0 {
		add("", "", "No worker is alive: nothing is sent. What is accepted waits in Postgres.")
	}
	for _, p := range v.Pauses {
		switch p.Kind {
		case outbox.PauseOfInstallation:
			add("", "", "This database was restored or copied: its mail is held until somebody decides. See outboxctl restored.")
		case outbox.PauseOfQueue:
			add("", "", "The queue %s is paused in River UI: nothing in it is worked on.", p.Name)
		}
	}
	for _, p := range v.Providers {
		if p.Reason != "" {
			add("#providers", "Providers", "The provider %s is taken out: %s.", p.Provider(), p.Reason)
		}
	}
	if v.Stuck.Unknown {
		add(stuckPath, "The oldest", "So much waits that it took too long to count what is stuck.")
	}
	if n := v.Stuck.Total(); n > 0 {
		add(stuckPath, "Stuck emails", "%s stuck%s.", counted(n), v.Stuck.orMore())
	}
	if n := v.InDoubt(); n.Total > 0 {
		add(n.Link, "Emails in doubt", "%s in doubt: nobody knows what the provider did.", counted(n.Total))
	}
	return list
}

func counted(n int) string {
	if n == 1 {
		return "1 email is"
	}
	return formatNumber(n) + " emails are"
}
