package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// StuckReason is why an email is stuck.
type StuckReason string

// The reasons, in the order in which they are looked for.
const (
	// StuckHold: it came with a restored or copied database, and a person decides.
	StuckHold StuckReason = "hold"
	// StuckOrgPaused: its org is paused.
	StuckOrgPaused StuckReason = "org_paused"
	// StuckInDoubt: a provider may have accepted it. Its policy leaves it to a
	// person, or evidence is slow.
	StuckInDoubt StuckReason = "in_doubt"
	// StuckNoWorker: no worker is alive.
	StuckNoWorker StuckReason = "no_worker"
	// StuckKeyMissing: its content cannot be opened.
	StuckKeyMissing StuckReason = "key_missing"
	// StuckWrongKind: its River job is of a kind that does not deliver.
	StuckWrongKind StuckReason = "wrong_kind"
	// StuckJobEnded: its River job was discarded or cancelled.
	StuckJobEnded StuckReason = "job_discarded_or_cancelled"
	// StuckJobMissing: no River job comes for it.
	StuckJobMissing StuckReason = "job_missing"
	// StuckOwnerDead: the worker that was delivering it is gone.
	StuckOwnerDead StuckReason = "owner_dead"
	// StuckWrongQueue: its River job lies in a queue that nobody works on.
	StuckWrongQueue StuckReason = "wrong_queue"
	// StuckQueuePaused: the River queue of deliveries is paused.
	StuckQueuePaused StuckReason = "queue_paused"
	// StuckProviderUnavailable: the provider that it needs is out.
	StuckProviderUnavailable StuckReason = "provider_unavailable"
	// StuckRateLimited: it waits for its turn at a provider for too long.
	StuckRateLimited StuckReason = "rate_limited"
	// StuckBacklog: it waits for a worker that is free for too long.
	StuckBacklog StuckReason = "backlog"
	// StuckOverdue: nothing of all this, and it is late.
	StuckOverdue StuckReason = "overdue"
)

// StuckReasons are all reasons.
var StuckReasons = []StuckReason{
	StuckHold, StuckOrgPaused, StuckInDoubt, StuckNoWorker, StuckKeyMissing, StuckWrongKind, StuckJobEnded, StuckJobMissing,
	StuckOwnerDead, StuckWrongQueue, StuckQueuePaused, StuckProviderUnavailable, StuckRateLimited, StuckBacklog, StuckOverdue,
}

const (
	// stuckAfter is how late an email is before it is shown: longer than workers
	// take to find what is lost, and a deployment to replace them.
	stuckAfter = time.Minute

	// backlogAfter is how long an email may wait for others before it, and
	// lowBacklogAfter one of low priority, as a newsletter's.
	backlogAfter    = 5 * time.Minute
	lowBacklogAfter = time.Hour
)

// situation is what is true for all emails.
type situation struct {
	StuckFilter
	now    time.Time
	paused bool // nobody works on deliveries
	alive  map[string]bool
	// out are the providers that are taken out until they work again.
	out []ProviderState
}

const (
	sqlQueuePaused = `
SELECT now(), EXISTS (SELECT FROM outbox.river_queue WHERE name = $1 AND paused_at IS NOT NULL)`

	sqlListAlive = `SELECT DISTINCT w.id FROM ` + aliveSQL + ` WHERE w.ended_at IS NULL`
)

func readSituation(ctx context.Context, pool *pgxpool.Pool, filter StuckFilter) (*situation, error) {
	filter.UnknownWait = cmp.Or(filter.UnknownWait, DefaultUnknownWait)
	filter.OnUnknown = cmp.Or(filter.OnUnknown, DefaultOnUnknown)
	s := &situation{StuckFilter: filter, alive: map[string]bool{}}
	var alive []string
	var batch pgx.Batch
	batch.Queue(sqlQueuePaused, Queue).QueryRow(scan(&s.now, &s.paused))
	batch.Queue(sqlListAlive, lockNamespace).Query(collect(&alive, pgx.RowTo[string]))
	if err := AcrossOrgs(pool).Send(ctx, &batch); err != nil {
		return nil, err
	}
	for _, id := range alive {
		s.alive[id] = true
	}
	states, err := ProviderStates(ctx, pool)
	for _, p := range states {
		if p.Reason != "" && p.Reason != reasonRateLimited {
			s.out = append(s.out, p)
		}
	}
	return s, err
}

// judge returns why an email is stuck; empty: it is not.
func (s *situation) judge(f *stuckFacts) StuckReason {
	late := s.now.Sub(s.expected(f))
	switch {
	case f.Skipped, f.Open && f.InDoubtAt == nil && s.alive[f.Worker] && late < 0:
		return ""
	case f.Held:
		return StuckHold
	case f.PausedAt != nil:
		return StuckOrgPaused
	case f.Open && f.InDoubtAt != nil && late >= 0 && cmp.Or(f.OnUnknown, s.OnUnknown) == PolicyHold:
		return StuckInDoubt
	case late < stuckAfter:
		return ""
	case len(s.alive) == 0:
		return StuckNoWorker
	case s.lacksKey(f):
		return StuckKeyMissing
	}
	return cmp.Or(s.judgeJob(f), s.judgeWait(f, late))
}

// expected is when something should have become of the email: its attempt ends by
// its deadline, or at once if its worker is dead, a doubt by its policy.
func (s *situation) expected(f *stuckFacts) time.Time {
	switch deadline := f.Deadline.Add(attemptMargin); {
	case f.Open && f.InDoubtAt != nil:
		return latest(f.InDoubtAt.Add(s.UnknownWait), deadline)
	case f.Open && s.alive[f.Worker]:
		return deadline
	case f.Open:
		return f.BeganAt
	case f.JobState == "running" && s.alive[f.JobOwner]:
		return latest(f.DueAt, f.JobAttemptedAt)
	}
	return f.DueAt
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// lacksKey goes by what a worker has found out, and by the keys at hand.
func (s *situation) lacksKey(f *stuckFacts) bool {
	return f.Reason == reasonKeyMissing || f.Reason == reasonUnreadable ||
		f.KeyID != "" && s.Keys != nil && s.Keys.find(f.KeyID) == nil
}

// judgeJob looks for what is wrong with the email's job.
func (s *situation) judgeJob(f *stuckFacts) StuckReason {
	switch {
	case f.StrangeKind != "":
		return StuckWrongKind
	case f.JobState == "discarded", f.JobState == "cancelled":
		return StuckJobEnded
	case !f.JobComes:
		return StuckJobMissing
	case f.JobState == "running" && !s.alive[f.JobOwner]:
		return StuckOwnerDead
	case f.JobState != "running" && !slices.Contains(Queues(), f.JobQueue):
		return StuckWrongQueue
	case f.JobState != "running" && f.JobQueue == Queue && s.paused:
		return StuckQueuePaused
	}
	return ""
}

// judgeWait looks for what an email waits for that has a job which comes.
func (s *situation) judgeWait(f *stuckFacts, late time.Duration) StuckReason {
	patience := backlogAfter
	if priorityOf(f.Priority) == PriorityLow {
		patience = lowBacklogAfter
	}
	switch {
	case s.outage(f) != nil:
		return StuckProviderUnavailable
	case f.Open && f.InDoubtAt != nil:
		return StuckInDoubt
	case f.Open && !s.alive[f.Worker]:
		return StuckOwnerDead
	case late < patience:
		return ""
	case strings.HasPrefix(f.Reason, reasonProvider):
		return StuckRateLimited
	case f.JobState == "available":
		return StuckBacklog
	}
	return StuckOverdue
}

// outage returns the provider that the email waits for because it is out; nil: none.
// One that may go to any waits for the reason that its worker has written down.
func (s *situation) outage(f *stuckFacts) *ProviderState {
	for i := range s.out {
		p := &s.out[i]
		waits := f.Reason == reasonProvider+p.Reason && (f.Pinned == "" || f.Pinned == p.Name)
		if f.Open && f.Provider == p.Name || !f.Open && waits {
			return p
		}
	}
	return nil
}

// advise says what is the matter, and what to do.
func (s *situation) advise(f *stuckFacts, reason StuckReason) string {
	switch reason {
	case StuckHold:
		return "It came with a restored or copied database, whose original may have sent it. See `outboxctl restored`, " +
			"then release or cancel what is held."
	case StuckOrgPaused:
		return fmt.Sprintf("Its org is paused%s. `outboxctl org resume %s` lets its emails go on.", said(f.PausedReason), f.OrgName)
	case StuckInDoubt:
		return fmt.Sprintf("%s may have accepted it, and nobody knows. Look for the key %s in its log, then type "+
			"`outboxctl emails resolve %s --outcome accepted`, or not_accepted if it is certain.", f.Provider, f.ProviderKey, f.ID)
	case StuckNoWorker:
		return "No worker is alive. Start one; `outboxctl workers` shows those that were."
	case StuckKeyMissing:
		return f.adviseKey()
	case StuckProviderUnavailable:
		return adviseProvider(s.outage(f))
	case StuckRateLimited:
		return "It waits for its turn at a provider. If the queue grows, raise OUTBOXD_<PROVIDER>_RATE, ask the provider for " +
			"a higher limit, or add another provider."
	case StuckBacklog:
		return "No worker is free for it. If the queue grows, start workers or raise OUTBOXD_CONCURRENCY."
	case StuckOverdue:
		return fmt.Sprintf("Nothing explains why it waits%s. See `outboxctl emails show %s` and the workers' logs.", said(f.JobError), f.ID)
	}
	return f.adviseJob(reason)
}

// said adds what somebody wrote, if there is something.
func said(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

func (f *stuckFacts) adviseKey() string {
	if f.Reason == reasonUnreadable {
		return fmt.Sprintf("Its content does not open under the key %s: another key has this id, or the content was changed. "+
			"Give the workers the right key in OUTBOXD_ENCRYPTION_KEYS.", f.KeyID)
	}
	return fmt.Sprintf("Its content is sealed under the key %s, which is missing. Add it to OUTBOXD_ENCRYPTION_KEYS of the "+
		"workers, and start them anew.", f.KeyID)
}

func adviseProvider(p *ProviderState) string {
	if p.Reason == reasonMisconfigured {
		return fmt.Sprintf("%s refuses us%s. Correct its key, and start the workers anew.", p.Name, said(p.Detail))
	}
	return fmt.Sprintf("%s is out%s. See `outboxctl providers` and its status page; add another provider to OUTBOXD_PROVIDERS "+
		"if mail has to go on.", p.Name, said(p.Detail))
}

// adoption is what becomes of an email without a job.
const adoption = "a worker gives the email another within seconds. If not, look for `sweep failed` in the workers' logs."

func (f *stuckFacts) adviseJob(reason StuckReason) string {
	switch reason {
	case StuckWrongKind:
		return fmt.Sprintf("Its job is of the kind %s, which delivers nothing, and none that delivers is there: %s", f.StrangeKind, adoption)
	case StuckJobEnded:
		return fmt.Sprintf("Its job %d was %s: %s To withdraw the email, type `outboxctl emails cancel %s`.", f.JobID, f.JobState, adoption, f.ID)
	case StuckOwnerDead:
		return fmt.Sprintf("Worker %s, which was delivering it, is gone, and another takes over within seconds. If not, look for "+
			"`sweep failed` in the workers' logs.", cmp.Or(f.JobOwner, f.Worker))
	case StuckWrongQueue:
		return fmt.Sprintf("Its job %d lies in the queue %s, which no worker works on. Delete the job in River UI: %s", f.JobID, f.JobQueue, adoption)
	case StuckQueuePaused:
		return fmt.Sprintf("The River queue %s is paused. Resume it in River UI, under Queues.", Queue)
	}
	return "No job comes for it: " + adoption
}
