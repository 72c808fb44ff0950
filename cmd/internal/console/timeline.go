package console

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// moment is a point of an email's timeline.
type moment struct {
	At    time.Time
	Title string
	// Tone is as in status.
	Tone  string
	Facts []fact
}

// fact is something to know about it. Code is shown as it is written.
type fact struct {
	Name, Value string
	Code        bool
}

// add adds what is not empty.
func (m *moment) add(name, value string) {
	if value != "" {
		m.Facts = append(m.Facts, fact{Name: name, Value: value})
	}
}

func (m *moment) addCode(name, value string) {
	if value != "" {
		m.Facts = append(m.Facts, fact{name, value, true})
	}
}

// timelineOf is all that happened to an email, the oldest first.
func timelineOf(d *outbox.Dossier) []moment {
	list := []moment{{At: d.CreatedAt, Title: "Submitted", Tone: "plain"}}
	list[0].add("by", d.OrgName)
	for _, a := range d.Attempts {
		list = append(list, attemptMoment(a))
	}
	for _, e := range d.Events {
		list = append(list, eventMoment(e))
	}
	if !d.EndedAt.IsZero() {
		end := moment{At: d.EndedAt, Title: "Ended as " + endedAs(d.Status), Tone: statusOf(d.Status).Tone}
		end.add("reason", d.Reason)
		end.add("detail", d.ReasonDetail)
		list = append(list, end)
	}
	slices.SortStableFunc(list, func(a, b moment) int { return a.At.Compare(b.At) })
	return list
}

// endedAs is what an email had ended as before events came in about it.
func endedAs(s outbox.Status) string {
	switch s {
	case outbox.StatusDelivered, outbox.StatusBounced, outbox.StatusComplained:
		return string(outbox.StatusSent)
	}
	return string(s)
}

var stageTones = map[outbox.Stage]string{
	outbox.StageSending: "plain", outbox.StageAccepted: "good", outbox.StageRejected: "bad",
	outbox.StageDeferred: "plain", outbox.StageUnknown: "doubt",
}

func attemptMoment(a outbox.Attempt) moment {
	m := moment{At: a.BeganAt, Tone: stageTones[a.Stage]}
	outcome := string(a.Stage)
	if a.Stage == outbox.StageSending && !a.InDoubtAt.IsZero() {
		outcome, m.Tone = "in doubt", "doubt"
	}
	m.Title = fmt.Sprintf("Attempt %d at %s: %s", a.Number, a.Provider, outcome)
	m.add("took", latencyOf(a))
	m.add("evidence", evidenceNames[a.Evidence])
	if a.StatusCode != 0 {
		m.add("status code", strconv.Itoa(a.StatusCode))
	}
	m.add("code", a.Code)
	m.add("detail", a.Detail)
	if a.PossibleDuplicate {
		m.add("possible duplicate", "yes: the attempt before it may have arrived")
	}
	if a.ProviderKey != uuid.Nil {
		m.addCode("provider key", a.ProviderKey.String())
	}
	m.addCode("provider message id", a.ProviderMessageID)
	m.addCode("worker", a.Worker)
	m.addCode("trace", a.TraceID)
	return m
}

// latencyOf is how long an attempt took until its outcome, or until it was found to
// be in doubt.
func latencyOf(a outbox.Attempt) string {
	switch {
	case !a.InDoubtAt.IsZero():
		return formatAge(a.InDoubtAt.Sub(a.BeganAt)) + " until it was in doubt"
	case !a.EndedAt.IsZero():
		return formatAge(a.EndedAt.Sub(a.BeganAt))
	}
	return ""
}

var evidenceNames = map[outbox.Evidence]string{
	outbox.EvidenceResponse: "the provider's answer",
	outbox.EvidenceReplay:   "the answer to the same bytes under the same key",
	outbox.EvidenceWebhook:  "an event of the provider",
	outbox.EvidenceSearch:   "a search at the provider",
	outbox.EvidencePerson:   "a person",
	outbox.EvidencePolicy:   "none: the email's policy",
}

var eventTones = map[string]string{
	"delivered": "good", "bounced": "bad", "complained": "bad", "failed": "bad", "resolved": "plain", "retried": "plain",
}

func eventMoment(e outbox.Event) moment {
	m := moment{At: e.OccurredAt, Title: "Event: " + e.Type, Tone: eventTones[e.Type]}
	if m.Tone == "" {
		m.Tone = "plain"
	}
	m.add("reported by", e.Provider)
	m.add("recipient", e.Recipient)
	if e.Type == "clicked" {
		m.add("link to", hostOf(e.Detail))
	} else {
		m.add("detail", e.Detail)
	}
	if e.Provider != "" {
		if late := e.ReceivedAt.Sub(e.OccurredAt); late > time.Minute {
			m.add("received", formatAge(late)+" later")
		}
	}
	return m
}
