package console

import (
	"fmt"
	"strconv"
	"time"

	"github.com/outboxd/outboxd/outbox"
)

// formatAge is a duration as people say it, in two units at most.
func formatAge(d time.Duration) string {
	day := 24 * time.Hour
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d %d h", d/day, d%day/time.Hour)
}

// formatAgo is how far a time is from now, in one unit.
func formatAgo(t, now time.Time) string {
	d, form := now.Sub(t), "%s ago"
	if d < 0 {
		d, form = -d, "in %s"
	}
	unit := func(n time.Duration, name string) string {
		return fmt.Sprintf(form, fmt.Sprintf("%d %s", d/n, name))
	}
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return unit(time.Second, "s")
	case d < time.Hour:
		return unit(time.Minute, "min")
	case d < 48*time.Hour:
		return unit(time.Hour, "h")
	}
	return unit(24*time.Hour, "days")
}

// formatStamp is a time in UTC, as logs have it.
func formatStamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// formatNumber groups digits by a narrow space that does not break.
func formatNumber(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:]
	}
	return digits
}

// formatRate is emails per second, or per minute when they are few.
func formatRate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0/s"
	case perSecond < 1:
		return fmt.Sprintf("%.1f/min", perSecond*60)
	case perSecond < 100:
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return formatNumber(int(perSecond+0.5)) + "/s"
}

// status is how a status is shown. Colour only repeats what the word says.
type status struct {
	Name outbox.Status
	// Tone is good, bad, doubt or plain.
	Tone string
	// Meaning is what it says, and Advice what to do about it.
	Meaning, Advice string
}

var statuses = map[outbox.Status]status{
	outbox.StatusScheduled: {Tone: "plain", Meaning: "It waits for its time."},
	outbox.StatusQueued: {
		Tone: "plain", Meaning: "It waits for a worker, or for its next attempt.",
		Advice: "If it waits for long, look on the overview for live workers and at its provider.",
	},
	outbox.StatusSending: {Tone: "plain", Meaning: "A worker is handing it over to a provider."},
	outbox.StatusUnknown: {
		Tone: "doubt", Meaning: "A provider may have accepted it, and nobody can know yet.",
		Advice: "Look in the provider's own log for the key of the open attempt below. Then say what you found.",
	},
	outbox.StatusSent:       {Tone: "good", Meaning: "A provider accepted it."},
	outbox.StatusDelivered:  {Tone: "good", Meaning: "The provider reports that the recipient's server took it."},
	outbox.StatusBounced:    {Tone: "bad", Meaning: "The provider reports that the recipient's server refused it."},
	outbox.StatusComplained: {Tone: "bad", Meaning: "The recipient called it spam."},
	outbox.StatusFailed: {
		Tone: "bad", Meaning: "No provider accepted it, and no attempt will follow.",
		Advice: "Put the cause right, then retry it: that is one more attempt.",
	},
	outbox.StatusCanceled:   {Tone: "plain", Meaning: "It was withdrawn before any attempt."},
	outbox.StatusExpired:    {Tone: "doubt", Meaning: "Its time ran out before an attempt could begin."},
	outbox.StatusSuppressed: {Tone: "doubt", Meaning: "Its org does not send to any of its recipients."},
}

func statusOf(name outbox.Status) status {
	s := statuses[name]
	s.Name = name
	return s
}
