package console

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

type suppressionsView struct {
	Orgs []outbox.OrgInfo
	// Org is whose list it is; empty: no org is chosen.
	Org string
	// Address is what is looked for, in all orgs if none is chosen.
	Address string
	List    []outbox.OrgSuppression
	// Next leads to the next page; empty: there is none.
	Next string
}

// Asked reports whether there is something to show, or to say that there is not.
func (v suppressionsView) Asked() bool { return v.Org != "" || v.Address != "" }

// RemoveLink leads to the page that asks.
func (v suppressionsView) RemoveLink(s outbox.OrgSuppression) string {
	return removePath + "?" + url.Values{"org": {s.OrgName}, "address": {s.Address}}.Encode()
}

const (
	suppressionsPath = Path + "/suppressions"
	removePath       = suppressionsPath + "/remove"
)

// suppressions looks an address up in all orgs, or lists those of one.
func (h handler) suppressions(r *http.Request) (response, error) {
	view := suppressionsView{Org: r.FormValue("org"), Address: r.FormValue("address")}
	var err error
	if view.Orgs, err = outbox.ListOrgs(r.Context(), h.Pool); err != nil {
		return nil, err
	}
	switch {
	case view.Org != "":
		err = h.listSuppressions(r, &view)
	case view.Address != "":
		view.List, err = h.Outbox.FindSuppressions(r.Context(), view.Address)
	}
	if err != nil {
		return nil, err
	}
	notice := ""
	if r.FormValue("done") == "removed" {
		notice = "The address is removed: the org sends to it again."
	}
	return page{File: "suppressions.html", Section: "suppressions", Title: "Suppressions", Notice: notice, Body: view}, nil
}

func (h handler) listSuppressions(r *http.Request, view *suppressionsView) error {
	org, err := orgNamed(view.Orgs, view.Org)
	if err != nil {
		return err
	}
	list, more, err := h.Outbox.Suppressions(r.Context(), outbox.SuppressionQuery{
		Org: org, Limit: pageSize, After: r.FormValue("after"), Address: view.Address,
	})
	if err != nil {
		return err
	}
	for _, s := range list {
		view.List = append(view.List, outbox.OrgSuppression{Org: org, OrgName: view.Org, Suppression: s})
	}
	if more {
		view.Next = suppressionsPath + "?" + url.Values{"org": {view.Org}, "after": {list[len(list)-1].Address}}.Encode()
	}
	return nil
}

// askUnsuppress shows what a removal would do. It changes nothing.
func (h handler) askUnsuppress(r *http.Request) (response, error) {
	s, err := h.suppression(r)
	if err != nil {
		return nil, err
	}
	consequences := []string{"The org sends to the address again, also emails that wait already. What has ended stays as it is."}
	if s.Reason == outbox.SuppressionComplaint || s.Reason == outbox.SuppressionUnsubscribe {
		consequences = append(consequences, "The recipient asked for no more mail. Remove it only if they asked for it.")
	}
	about := []fact{
		{Name: "Org", Value: s.OrgName},
		{Name: "Address", Value: s.Address},
		{Name: "Reason", Value: string(s.Reason)},
		{Name: "Since", Value: formatStamp(s.CreatedAt)},
	}
	return page{File: "confirm.html", Section: "suppressions", Title: "Remove a suppression", Body: confirmView{
		Question: fmt.Sprintf("Let %s send to %s again?", s.OrgName, s.Address), Consequences: consequences, Careful: true,
		About: about, Label: "Remove", Post: removePath,
		Fields: []fact{{Name: "org", Value: s.OrgName}, {Name: "address", Value: s.Address}},
		Back:   suppressionsPath + "?" + url.Values{"address": {s.Address}}.Encode(),
	}}, nil
}

// doUnsuppress removes a suppression. The log says whose and which email had led
// to it, and no address.
func (h handler) doUnsuppress(r *http.Request) (response, error) {
	s, err := h.suppression(r)
	if err != nil {
		return nil, err
	}
	if err := h.Outbox.Unsuppress(r.Context(), s.Org, s.Address); err != nil {
		return nil, err
	}
	log := h.Logger.With("user", userOf(r), "org", s.Org, "reason", s.Reason)
	if s.EmailID != uuid.Nil {
		log = log.With("email", s.EmailID)
	}
	log.InfoContext(r.Context(), "an operator removed a suppression")
	return redirect(suppressionsPath + "?" + url.Values{"address": {s.Address}, "done": {"removed"}}.Encode()), nil
}

// suppression reads the one that a form names.
func (h handler) suppression(r *http.Request) (s outbox.OrgSuppression, err error) {
	if h.ReadOnly {
		return s, errReadOnly
	}
	list, err := h.Outbox.FindSuppressions(r.Context(), r.FormValue("address"))
	if err != nil {
		return s, err
	}
	for _, s := range list {
		if s.OrgName == r.FormValue("org") {
			return s, nil
		}
	}
	return s, outbox.ErrNotSuppressed
}
