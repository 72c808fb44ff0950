package fakeesp

import (
	"encoding/json"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

// Outcomes of a request, see [Request].
const (
	Accepted = "accepted"
	Replayed = "replayed"
	Refused  = "refused"
	Dropped  = "dropped"
)

// outcomes are in the order of the page.
var outcomes = []string{Accepted, Replayed, Refused, Dropped}

// Request is a line of the log about a request, or about an SMTP conversation
// that came to MAIL.
type Request struct {
	Time       time.Time `json:"time"`
	Number     int       `json:"number"`
	Provider   string    `json:"provider"`
	Reference  string    `json:"reference,omitempty"`
	Recipients int       `json:"recipients"`
	// Fault is what was asked for, if anything was.
	Fault string `json:"fault,omitempty"`
	// Outcome is the truth about the message: accepted now, replayed (accepted
	// before under the same key), refused with an answer, or dropped without.
	Outcome string `json:"outcome"`
	// Status is what the client was told; it is missing where there was no
	// answer.
	Status int    `json:"status,omitempty"`
	ID     string `json:"id,omitempty"`
}

// posted is a line of the log about a request to the webhook's receiver.
type posted struct {
	Time    time.Time `json:"time"`
	Webhook string    `json:"webhook"`
	Status  int       `json:"status,omitempty"`
	Error   string    `json:"error,omitempty"`
}

func newRequest(h providertest.Handover) Request {
	r := Request{
		Time: h.At.UTC(), Number: h.Number, Provider: h.Provider, Reference: h.Reference,
		Recipients: len(h.To), Fault: h.Reaction, Status: h.Status, ID: h.ID, Outcome: Dropped,
	}
	switch {
	case h.Accepted:
		r.Outcome = Accepted
	case h.Replayed:
		r.Outcome = Replayed
	case h.Status != 0:
		r.Outcome = Refused
	}
	return r
}

// maxRecent bounds what the page shows.
const maxRecent = 200

// journal writes the log and keeps the end of it.
type journal struct {
	mu     sync.Mutex
	out    *json.Encoder
	recent []Request
	counts map[string]int
}

func newJournal(out io.Writer) *journal {
	return &journal{out: json.NewEncoder(out), counts: map[string]int{}}
}

func (j *journal) request(h providertest.Handover) {
	r := newRequest(h)
	j.mu.Lock()
	defer j.mu.Unlock()
	_ = j.out.Encode(r) // a full disk does not stop the fake
	j.counts[r.Outcome]++
	if len(j.recent) == maxRecent {
		j.recent = slices.Delete(j.recent, 0, 1)
	}
	j.recent = append(j.recent, r)
}

func (j *journal) posted(p posted) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_ = j.out.Encode(p)
}

// state returns the last requests, the newest first, and how many there were of
// each outcome.
func (j *journal) state() (recent []Request, counts map[string]int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	recent = slices.Clone(j.recent)
	slices.Reverse(recent)
	return recent, maps.Clone(j.counts)
}

func (j *journal) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.recent, j.counts = nil, map[string]int{}
}
