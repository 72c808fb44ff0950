package outbox

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/outboxd/outboxd/providers"
)

// Reasons of a status, as the emails table and the API show them.
const (
	reasonInDoubt  = "in_doubt"
	reasonUnknown  = "outcome_unknown"
	reasonRejected = "rejected"
	reasonGaveUp   = "gave_up"
)

// outcome turns what a call to a provider said into what is recorded.
func (d *deliverer) outcome(a *attempt, receipt providers.Receipt, err error) ending {
	e := ending{email: a.email, number: a.number, key: a.key, worker: a.worker, evidence: a.evidence}
	if err == nil {
		e.stage, e.status = StageAccepted, StatusSent
		e.statusCode, e.providerMessageID = receipt.Status, plain(receipt.ProviderMessageID, maxName)
		return e
	}
	failure := providers.AsError(err)
	e.statusCode, e.code, e.detail = failure.Status, plain(failure.Code, maxName), detailOf(failure)
	outcome := failure.Outcome
	if a.evidence == EvidenceReplay {
		// That this call was refused says nothing about the one before, whose
		// reply was lost.
		outcome = providers.InDoubt
	}
	switch outcome {
	case providers.Rejected:
		e.stage, e.status = StageRejected, StatusFailed
		e.reason, e.reasonDetail = reasonRejected, e.detail
	case providers.Deferred:
		e.stage, e.status = StageDeferred, StatusQueued
		e.nextAttempt = max(backoff(int(a.number)), failure.RetryAfter)
		if a.now.Add(e.nextAttempt).After(a.giveUpAt(d.cfg.GiveUpAfter)) {
			e.status, e.nextAttempt = StatusFailed, 0
			e.reason, e.reasonDetail = reasonGaveUp, e.detail
		}
	case providers.Misconfigured:
		// Our fault, not the message's: it waits, however long that takes.
		e.stage, e.status = StageDeferred, StatusQueued
		e.nextAttempt = backoff(int(a.number))
	default:
		e.stage, e.status, e.evidence = StageSending, StatusUnknown, ""
		e.reason = reasonInDoubt
		e.lookAgain = max(backoff(1), failure.RetryAfter)
	}
	return e
}

const (
	backoffBase = 5 * time.Second
	backoffMax  = 15 * time.Minute
)

// backoff spaces attempts: doubling, with full jitter, so that the emails of
// an outage do not come back all at once.
func backoff(attempt int) time.Duration {
	ceiling := backoffMax
	if shift := max(attempt, 1) - 1; shift < 8 { // 5 s << 8 is above the maximum
		ceiling = min(backoffBase<<shift, backoffMax)
	}
	return rand.N(ceiling) + time.Millisecond
}

// deadline is a point in time on both clocks. The monotonic one stops while a
// machine is suspended, and the wall clock may be set.
type deadline struct {
	start time.Time
	limit time.Duration
}

var errTooLate = errors.New("the time for this attempt is over")

func deadlineIn(limit time.Duration) deadline { return deadline{time.Now(), limit} }

// check compares the clocks themselves: after a pause of the process a
// context's timer may not have fired yet.
func (d deadline) check() error {
	now := time.Now()
	if now.Sub(d.start) > d.limit || now.Round(0).Sub(d.start.Round(0)) > d.limit {
		return errTooLate
	}
	return nil
}

const maxDetail = 500

var addressPattern = regexp.MustCompile(`[^\s<>"'(),:;=\[\]]+@[^\s<>"'(),:;=\[\]]+`)

// detailOf is a failure in words that may be stored and logged.
func detailOf(e *providers.Error) string {
	text := e.Detail
	if e.Err != nil {
		text = cmp.Or(text, e.Err.Error())
	}
	return scrub(text)
}

// scrub takes addresses out of a provider's text, which tends to quote them,
// and bounds it: job errors, logs and attempts outlive the email's content.
func scrub(text string) string {
	return plain(addressPattern.ReplaceAllString(text, "(address)"), maxDetail)
}

// plain makes a provider's text one that the tables take, whatever it is: an
// outcome that could not be recorded would become a doubt.
func plain(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
