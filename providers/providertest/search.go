package providertest

import (
	"net/http"
	"path"
	"slices"
	"time"
)

// Search is how a service answers the question what became of a message.
// Searches are no hand-overs: [HTTP.Requests], [HTTP.Seen] and what is set with
// [HTTP.Respond] know nothing of them.
type Search struct {
	// Path is the pattern of [path.Match] of a GET that searches.
	Path string
	// Answer is the service's answer, with what it can find by now.
	Answer func(r Seen, findable []Accepted) Reaction
}

// searches is what a provider knows of searches; the fields are under HTTP.mu.
type searches struct {
	seen    []Seen
	lag     time.Duration
	respond func(Seen) Reaction
}

// SetSearchLag keeps accepted messages from being found before they are d old,
// those accepted before included. At first there is no lag.
func (p *HTTP) SetSearchLag(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.searches.lag = d
}

// RespondSearch sets what happens to searches, like [HTTP.Respond]: an ordinary
// Reaction gets the service's answer. Nil means the ordinary course.
func (p *HTTP) RespondSearch(f func(Seen) Reaction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.searches.respond = f
}

// Searches returns the searches that were made, in their order.
func (p *HTTP) Searches() []Seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.searches.seen)
}

// searched returns the service whose messages a request asks for, or nil.
func (p *HTTP) searched(req *http.Request) *service {
	if req.Method != http.MethodGet {
		return nil
	}
	for _, s := range p.services {
		if s.Search == nil {
			continue
		}
		if matched, _ := path.Match(s.Search.Path, req.URL.Path); matched {
			return s
		}
	}
	return nil
}

// hasSearch reports whether any of the services has a search.
func (p *HTTP) hasSearch() bool {
	return slices.ContainsFunc(p.services, func(s *service) bool { return s.Search != nil })
}

// serveSearch answers a search.
func (p *HTTP) serveSearch(w http.ResponseWriter, req *http.Request, s *service) {
	r := newSeen(req)
	r.Provider = s.Name
	p.mu.Lock()
	r.Number = len(p.searches.seen) + 1
	p.searches.seen = append(p.searches.seen, r)
	respond, lag := p.searches.respond, p.searches.lag
	p.mu.Unlock()

	var do Reaction
	if respond != nil {
		do = respond(r)
	}
	if !do.answer && do.end == keep {
		do = do.Then(s.Search.Answer(r, p.findable(s.Name, r.At.Add(-lag))))
	}
	p.react(w, do)
}

// findable returns the messages that a service accepted at the given time at
// the latest.
func (p *HTTP) findable(service string, latest time.Time) []Accepted {
	return slices.DeleteFunc(p.Accepted(), func(a Accepted) bool {
		return a.Provider != service || a.At.After(latest)
	})
}
