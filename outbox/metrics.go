package outbox

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxd/outboxd/providers"
)

// Metrics counts what a process decides, for Prometheus. A nil *Metrics counts
// nothing. No label holds an address, a key, an org or the id of an email; each
// has a few known values. docs/metrics.md explains every name.
type Metrics struct {
	submissions        *prometheus.CounterVec
	withoutKey         prometheus.Counter
	attempts           *prometheus.CounterVec
	requestSeconds     *prometheus.HistogramVec
	doubtsResolved     *prometheus.CounterVec
	possibleDuplicates prometheus.Counter
	recoveries         *prometheus.CounterVec
	recoveryDelay      prometheus.Histogram
	orphans            prometheus.Counter
	contentsPurged     prometheus.Counter
	events             *prometheus.CounterVec
	webhookAttempts    *prometheus.CounterVec
}

// The values of labels. Those that are known beforehand are shown with zero from
// the start, so that the first increase of each is seen as one.
var (
	submissionOutcomes = []string{
		"accepted", "replayed", "invalid", "key_reused", "in_progress", "org_paused", "over_quota", "unknown", "unavailable", "failed",
	}
	attemptOutcomes = []string{"accepted", "rejected", "deferred", "unknown"}
	doubtEvidence   = []Evidence{
		EvidenceResponse, EvidenceReplay, EvidenceSearch, EvidenceWebhook, EvidencePerson, EvidencePolicy,
	}
	recoveryReasons = []string{recoveredFromDead, recoveredFromSlow}
	webhookOutcomes = []string{"delivered", "refused", "unreachable"}
)

// Why jobs were taken from a worker.
const (
	recoveredFromDead = "worker_died"
	recoveredFromSlow = "overdue"
)

// NewMetrics registers the metrics of a process. It panics if they are
// registered there already: one process has one.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	r := registrar{registerer}
	m := &Metrics{
		submissions: r.counters("outboxd_submissions_total",
			"Submissions by what became of them, one for a batch too.", "outcome"),
		withoutKey: r.counter("outboxd_submissions_without_key_total",
			"Submissions accepted without an idempotency key: nothing protects a retry of them."),
		attempts: r.counters("outboxd_attempts_total",
			"Calls that hand an email over to a provider, by what came of them.", "provider", "outcome"),
		requestSeconds: r.histograms("outboxd_provider_request_seconds",
			"Time that a provider took to answer a call that hands an email over.",
			[]float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 600}, "provider"),
		doubtsResolved: r.counters("outboxd_doubts_resolved_total",
			"Attempts in doubt that were settled, by the evidence.", "evidence"),
		possibleDuplicates: r.counter("outboxd_possible_duplicates_total",
			"Attempts begun after one whose outcome stayed unknown: the email may arrive twice."),
		recoveries: r.counters("outboxd_recoveries_total",
			"Jobs taken from a worker that died or lets its time pass, and given back to the queue.", "reason"),
		recoveryDelay: r.histogram("outboxd_recovery_delay_seconds",
			"Time from when a dead worker was last seen alive to its jobs being available again.",
			[]float64{.25, .5, 1, 1.5, 2, 3, 5, 10, 30, 60}),
		orphans: r.counter("outboxd_orphans_total",
			"Emails that had not ended, that no job would come for, and that were given one."),
		contentsPurged: r.counter("outboxd_contents_purged_total",
			"Emails whose content was removed at the end of its retention."),
		events: r.counters("outboxd_events_total",
			"Events of providers that were received and stored, copies included.", "provider", "type"),
		webhookAttempts: r.counters("outboxd_webhook_attempts_total",
			"Requests to webhooks of orgs, by what came of them.", "outcome"),
	}
	start(m.submissions, submissionOutcomes)
	start(m.doubtsResolved, doubtEvidence)
	start(m.recoveries, recoveryReasons)
	start(m.webhookAttempts, webhookOutcomes)
	return m
}

func start[T ~string](c *prometheus.CounterVec, values []T) {
	for _, v := range values {
		c.WithLabelValues(string(v))
	}
}

// expect shows the series of providers before their first call.
func (m *Metrics) expect(list []providers.Provider) {
	if m == nil {
		return
	}
	for _, p := range list {
		m.requestSeconds.WithLabelValues(p.Name())
		for _, outcome := range attemptOutcomes {
			m.attempts.WithLabelValues(p.Name(), outcome)
		}
	}
}

// submitted counts a submission by what its caller is told.
func (m *Metrics) submitted(s Submission, replayed bool, err error) {
	if m == nil {
		return
	}
	outcome := submissionOutcome(replayed, err)
	m.submissions.WithLabelValues(outcome).Inc()
	if outcome == "accepted" && s.IdempotencyKey == "" {
		m.withoutKey.Inc()
	}
}

// submittedMany counts submissions that are stored together or not at all. Of
// those that failed together, nobody can say which one it was about.
func (m *Metrics) submittedMany(list []Submission, receipts []Receipt, err error) {
	for i, s := range list {
		m.submitted(s, err == nil && receipts[i].Replayed, err)
	}
}

func submissionOutcome(replayed bool, err error) string {
	_, invalid := errors.AsType[*ValidationError](err)
	switch {
	case replayed:
		return "replayed"
	case err == nil:
		return "accepted"
	case invalid:
		return "invalid"
	case errors.Is(err, ErrIdempotencyKeyReused):
		return "key_reused"
	case errors.Is(err, ErrSubmissionInProgress):
		return "in_progress"
	case errors.Is(err, ErrOrgPaused):
		return "org_paused"
	case errors.Is(err, ErrQueueQuota):
		return "over_quota"
	case errors.Is(err, ErrOutcomeUnknown):
		return "unknown"
	case IsUnavailable(err):
		return "unavailable"
	}
	return "failed"
}

// answered counts what came of a call to a provider, and how long it took.
func (m *Metrics) answered(provider string, stage Stage, took time.Duration) {
	if m == nil {
		return
	}
	outcome := string(stage)
	if stage == StageSending {
		outcome = "unknown"
	}
	m.attempts.WithLabelValues(provider, outcome).Inc()
	m.requestSeconds.WithLabelValues(provider).Observe(took.Seconds())
}

// settled counts doubts that evidence has ended.
func (m *Metrics) settled(evidence Evidence, n int) {
	if m != nil && n > 0 {
		m.doubtsResolved.WithLabelValues(string(evidence)).Add(float64(n))
	}
}

// finished counts a recorded ending if it settles a doubt: the answer to the
// first call does not, since there was none.
func (m *Metrics) finished(e ending) {
	if e.stage != StageSending && e.evidence != EvidenceResponse {
		m.settled(e.evidence, 1)
	}
}

// mayDuplicate counts attempts that may make their email arrive twice.
func (m *Metrics) mayDuplicate(n int) {
	if m != nil {
		m.possibleDuplicates.Add(float64(n))
	}
}

// recovered counts jobs taken from a worker. A zero delay is not known.
func (m *Metrics) recovered(reason string, jobs int, delay time.Duration) {
	if m == nil || jobs == 0 {
		return
	}
	m.recoveries.WithLabelValues(reason).Add(float64(jobs))
	if delay > 0 {
		m.recoveryDelay.Observe(delay.Seconds())
	}
}

// adopted counts forgotten emails that were given a job.
func (m *Metrics) adopted(n int) {
	if m != nil {
		m.orphans.Add(float64(n))
	}
}

// purged counts emails whose content was removed.
func (m *Metrics) purged(n int) {
	if m != nil {
		m.contentsPurged.Add(float64(n))
	}
}

// received counts events of a provider that are stored.
func (m *Metrics) received(provider string, events []providers.Event) {
	if m == nil {
		return
	}
	for _, e := range events {
		m.events.WithLabelValues(provider, string(e.Type)).Inc()
	}
}

// told counts a request to a webhook.
func (m *Metrics) told(o webhookOutcome) {
	if m == nil {
		return
	}
	outcome := "refused"
	switch {
	case o.delivered():
		outcome = "delivered"
	case o.status == 0:
		outcome = "unreachable"
	}
	m.webhookAttempts.WithLabelValues(outcome).Inc()
}

// registrar makes metrics and registers them.
type registrar struct{ prometheus.Registerer }

func (r registrar) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	r.MustRegister(c)
	return c
}

func (r registrar) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.MustRegister(c)
	return c
}

func (r registrar) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	r.MustRegister(h)
	return h
}

func (r registrar) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.MustRegister(h)
	return h
}
