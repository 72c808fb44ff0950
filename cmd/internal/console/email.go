package console

import (
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

type emailView struct {
	*outbox.Dossier
	Timeline []moment
	Actions  []offer
	// Stuck is why it waits; nil: there is nothing unusual about it.
	Stuck *outbox.StuckEmail
}

// offer is an action that the email allows.
type offer struct {
	action
	Link string
}

// email is one email's whole story.
func (h handler) email(r *http.Request) (response, error) {
	d, err := h.dossier(r)
	if err != nil {
		return nil, err
	}
	view := emailView{Dossier: d, Timeline: timelineOf(d)}
	if !d.Status.Ended() {
		if view.Stuck, err = outbox.WhyStuck(r.Context(), h.Pool, d.ID, h.Stuck); err != nil {
			return nil, err
		}
	}
	for _, a := range actions {
		if a.allowed(d) && !h.ReadOnly {
			view.Actions = append(view.Actions, offer{a, emailPath(d.ID) + "/" + a.Slug})
		}
	}
	notice := ""
	if a, ok := actionOf(r.FormValue("done")); ok {
		notice = a.Done
	}
	return page{File: "email.html", Section: "emails", Title: titleOf(d), Notice: notice, Body: view}, nil
}

// dossier reads the email that the path names.
func (h handler) dossier(r *http.Request) (*outbox.Dossier, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return nil, outbox.ErrNotFound
	}
	return h.Outbox.Dossier(r.Context(), id)
}

// titleOf names an email by its subject, or by its id where that is not kept.
func titleOf(d *outbox.Dossier) string {
	if d.Message.Subject != "" {
		return d.Message.Subject
	}
	return "Email " + d.ID.String()
}

// hostOf is what is shown of a link that a recipient followed: the rest of it may
// let its owner in somewhere.
func hostOf(link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return ""
	}
	return u.Host
}
