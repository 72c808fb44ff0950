package console

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// action is something that a person may do about an email, after a page that asks.
type action struct {
	// Slug is its place in the path, and Label its button.
	Slug, Label string
	// Question asks for confirmation, and Consequences say what follows.
	Question     string
	Consequences []string
	// Done is said when it is done.
	Done string
	// Careful marks what cannot be taken back.
	Careful bool

	allowed func(*outbox.Dossier) bool
	do      func(ctx context.Context, c *outbox.Client, org, id uuid.UUID, who string) error
}

var actions = []action{
	{
		Slug: "accepted", Label: "The provider has it",
		Question: "Did the provider accept this email?",
		Consequences: []string{
			"The open attempt ends as accepted, with a person as its evidence, and the email as sent.",
			"It is not sent again. If the provider does not have it after all, nobody gets it.",
		},
		Done:    "Resolved: the email counts as sent.",
		Careful: true,
		allowed: inDoubt,
		do:      resolve(outbox.OutcomeAccepted),
	},
	{
		Slug: "not-accepted", Label: "The provider does not have it",
		Question: "Is it certain that the provider does not have this email?",
		Consequences: []string{
			"The open attempt ends as not accepted, and the email is sent again, once, unmarked: you vouch for it.",
			"If the provider has it after all, its recipients get it twice.",
		},
		Done:    "Resolved: the email is sent again.",
		Careful: true,
		allowed: inDoubt,
		do:      resolve(outbox.OutcomeNotAccepted),
	},
	{
		Slug: "retry", Label: "Retry",
		Question: "Send this email again?",
		Consequences: []string{
			"It gets one more attempt, at the providers that are configured now.",
			"What made it fail before fails it again if it was not put right.",
		},
		Done:    "The email is queued for one more attempt.",
		allowed: func(d *outbox.Dossier) bool { return d.Status == outbox.StatusFailed && !d.Purged },
		do: func(ctx context.Context, c *outbox.Client, org, id uuid.UUID, who string) error {
			return c.Retry(ctx, org, id, who)
		},
	},
	{
		Slug: "cancel", Label: "Cancel",
		Question:     "Withdraw this email?",
		Consequences: []string{"No attempt begins, and it is never sent. This cannot be taken back."},
		Done:         "The email is canceled.",
		Careful:      true,
		allowed: func(d *outbox.Dossier) bool {
			return d.Begun == 0 && (d.Status == outbox.StatusQueued || d.Status == outbox.StatusScheduled)
		},
		do: func(ctx context.Context, c *outbox.Client, org, id uuid.UUID, who string) error {
			return c.CancelBy(ctx, org, id, who)
		},
	},
}

func inDoubt(d *outbox.Dossier) bool { return d.Status == outbox.StatusUnknown }

func resolve(outcome outbox.Outcome) func(context.Context, *outbox.Client, uuid.UUID, uuid.UUID, string) error {
	return func(ctx context.Context, c *outbox.Client, org, id uuid.UUID, who string) error {
		return c.Resolve(ctx, org, id, outcome, who)
	}
}

func actionOf(slug string) (action, bool) {
	for _, a := range actions {
		if a.Slug == slug {
			return a, true
		}
	}
	return action{}, false
}

// confirmView asks before something is changed.
type confirmView struct {
	Question     string
	Consequences []string
	Careful      bool
	// About are facts to recognise what it is about by.
	About []fact
	// Label is the button's, Post where it leads, with these fields, and Back the
	// way out.
	Label, Post, Back string
	Fields            []fact
}

// askEmailAction shows what an action would do. It changes nothing.
func (h handler) askEmailAction(r *http.Request) (response, error) {
	a, d, err := h.emailAction(r)
	if err != nil {
		return nil, err
	}
	about := []fact{{Name: "Email", Value: titleOf(d)}, {Name: "Status", Value: string(d.Status)}, {Name: "Org", Value: d.OrgName}}
	if len(d.Message.To) > 0 {
		about = append(about, fact{Name: "To", Value: shortList(d.Message.To)})
	}
	if n := len(d.Attempts); n > 0 {
		last := d.Attempts[n-1]
		about = append(about, fact{Name: "Provider", Value: last.Provider}, fact{"Provider key", last.ProviderKey.String(), true})
	}
	return page{File: "confirm.html", Section: "emails", Title: a.Label, Body: confirmView{
		Question: a.Question, Consequences: a.Consequences, Careful: a.Careful, About: about,
		Label: a.Label, Post: emailPath(d.ID) + "/" + a.Slug, Back: emailPath(d.ID),
	}}, nil
}

// doEmailAction does it. The email itself decides whether it still may be done.
func (h handler) doEmailAction(r *http.Request) (response, error) {
	a, d, err := h.emailAction(r)
	if err != nil {
		return nil, err
	}
	user := userOf(r)
	if err := a.do(r.Context(), h.Outbox, d.Org, d.ID, "console, user "+user); err != nil {
		return nil, err
	}
	h.Logger.InfoContext(r.Context(), "an operator changed an email",
		"action", a.Slug, "user", user, "org", d.Org, "email", d.ID, "was", d.Status)
	return redirect(emailPath(d.ID) + "?done=" + a.Slug), nil
}

// emailAction reads what the path names: an action that there is and may be used
// here, and an email.
func (h handler) emailAction(r *http.Request) (a action, d *outbox.Dossier, err error) {
	a, ok := actionOf(r.PathValue("action"))
	if !ok {
		return a, nil, errNoPage
	}
	if h.ReadOnly {
		return a, nil, errReadOnly
	}
	d, err = h.dossier(r)
	return a, d, err
}

// userOf is who is logged in.
func userOf(r *http.Request) string {
	user, _, _ := r.BasicAuth()
	return user
}
