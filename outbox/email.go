package outbox

import (
	"time"

	"github.com/google/uuid"
)

// Message is one email as an application submits it.
type Message struct {
	// From, To, Cc, Bcc and ReplyTo hold addresses as addr or Name <addr>.
	// To, Cc and Bcc have 1 to 50 addresses together.
	From    string
	To      []string
	Cc      []string
	Bcc     []string
	ReplyTo []string

	Subject string
	// HTML and Text are the bodies; at least one is not empty.
	HTML string
	Text string

	// Headers are header fields of the sender's own. Names that outboxd or
	// the provider writes are refused.
	Headers     map[string]string
	Attachments []Attachment
	Tags        []Tag
	// Metadata is not sent; it comes back in reads and webhooks.
	Metadata map[string]string

	// ScheduledAt is when to send, at most 90 days ahead. Zero: now.
	ScheduledAt time.Time
	// ExpiresAt is when the email becomes worthless: no attempt begins after
	// it. Zero: never.
	ExpiresAt time.Time
	// OnUnknown is what to do when it cannot be known whether a provider
	// accepted the email. Empty: the org's default.
	OnUnknown Policy
	// Priority orders due emails. Empty: normal.
	Priority Priority
	// Provider pins the email to one configured provider. Empty: any.
	Provider string
	// ListUnsubscribe adds the header fields List-Unsubscribe and
	// List-Unsubscribe-Post (RFC 8058) with a link of ours, which suppresses the
	// recipient. The message has exactly one, and no such fields of its own.
	ListUnsubscribe bool
}

// Attachment is a file, or an inline part when ContentID is set.
type Attachment struct {
	Filename    string
	ContentType string
	ContentID   string
	Content     []byte
}

// Tag is a label that comes back in the provider's events.
type Tag struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Policy says what to do with an email in doubt once evidence did not settle
// it in time.
type Policy string

// The policies.
const (
	// PolicyRetry sends again and marks the email as a possible duplicate.
	PolicyRetry Policy = "retry"
	// PolicyHold waits for evidence or for a person.
	PolicyHold Policy = "hold"
	// PolicyDrop fails the email and never sends twice.
	PolicyDrop Policy = "drop"
)

// Priority orders emails that are due.
type Priority string

// The priorities.
const (
	PriorityHigh   Priority = "high"
	PriorityNormal Priority = "normal"
	PriorityLow    Priority = "low"
)

// rank is the priority as the tables and River store it: 1 goes first.
func (p Priority) rank() int16 {
	switch p {
	case PriorityHigh:
		return 1
	case PriorityLow:
		return 3
	}
	return 2
}

// Status is the public state of an email.
type Status string

// The statuses. Sent and what follows it come from providers; an email ends
// in one of the others by our own decision.
const (
	// StatusScheduled waits for its time.
	StatusScheduled Status = "scheduled"
	// StatusQueued waits for a worker or for its next attempt.
	StatusQueued Status = "queued"
	// StatusSending has an open attempt.
	StatusSending Status = "sending"
	// StatusUnknown is in doubt: nobody can know yet whether it was accepted.
	StatusUnknown Status = "unknown"
	// StatusSent was accepted by a provider.
	StatusSent Status = "sent"
	// StatusDelivered, StatusBounced and StatusComplained are what the
	// provider reported later.
	StatusDelivered  Status = "delivered"
	StatusBounced    Status = "bounced"
	StatusComplained Status = "complained"
	// StatusFailed was accepted by no provider, or doubt was ended by the
	// policy drop (reason outcome_unknown).
	StatusFailed Status = "failed"
	// StatusCanceled was withdrawn by the sender before any attempt.
	StatusCanceled Status = "canceled"
	// StatusExpired passed its ExpiresAt before an attempt could begin.
	StatusExpired Status = "expired"
	// StatusSuppressed has only recipients that are not sent to.
	StatusSuppressed Status = "suppressed"
)

// Statuses are all statuses, in the order of an email's life.
var Statuses = []Status{
	StatusScheduled, StatusQueued, StatusSending, StatusUnknown,
	StatusSent, StatusDelivered, StatusBounced, StatusComplained,
	StatusFailed, StatusCanceled, StatusExpired, StatusSuppressed,
}

// Ended reports whether delivery is over: no attempt will begin without
// evidence or a person.
func (s Status) Ended() bool {
	switch s {
	case StatusScheduled, StatusQueued, StatusSending, StatusUnknown:
		return false
	}
	return true
}

// phase is the status as the column phase has it, which is what emails are looked up by:
// each attempt changes the status, and an index that had it would change with it.
func (s Status) phase() Status {
	if s == StatusSending {
		return StatusQueued
	}
	return s
}

// Email is a stored email with its attempts.
type Email struct {
	ID                uuid.UUID
	Org               uuid.UUID
	Status            Status
	Reason            string
	ReasonDetail      string
	PossibleDuplicate bool
	// SuppressedRecipients are the bare addresses that the newest attempt was
	// begun without, because the org does not send to them; of an email that
	// ended as suppressed those that it ended for.
	SuppressedRecipients []string
	CreatedAt            time.Time
	NextAttemptAt        time.Time
	EndedAt              time.Time
	// ContentPurgedAt is when the content was removed, with the recipients of events
	// and what providers said. Zero: it is there.
	ContentPurgedAt time.Time
	// Message is what was submitted. Its content is empty once it is purged;
	// attachments are not loaded.
	Message  Message
	Attempts []Attempt
	Events   []Event
}

// Stage is the state of an attempt.
type Stage string

// The stages. Sending is open; the others have ended.
const (
	StageSending  Stage = "sending"
	StageAccepted Stage = "accepted"
	StageRejected Stage = "rejected"
	StageDeferred Stage = "deferred"
	StageUnknown  Stage = "unknown"
)

// Attempt is one logical hand-over of an email to a provider.
type Attempt struct {
	Number      int
	Provider    string
	ProviderKey uuid.UUID
	Stage       Stage
	Worker      string
	BeganAt     time.Time
	// InDoubtAt is when it was found to be in doubt; zero: it is not known to be.
	InDoubtAt         time.Time
	EndedAt           time.Time
	StatusCode        int
	Code              string
	Detail            string
	ProviderMessageID string
	PossibleDuplicate bool
	Evidence          Evidence
	TraceID           string
}

// Evidence says how the outcome of an attempt became known.
type Evidence string

// The kinds of evidence.
const (
	EvidenceResponse Evidence = "response"
	EvidenceReplay   Evidence = "replay"
	EvidenceWebhook  Evidence = "webhook"
	EvidenceSearch   Evidence = "search"
	EvidencePerson   Evidence = "person"
	EvidencePolicy   Evidence = "policy"
)
