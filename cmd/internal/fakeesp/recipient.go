package fakeesp

import (
	"strconv"
	"strings"
	"sync"

	"github.com/outboxd/outboxd/providers/providertest"
)

// recipients decides by addresses.
type recipients struct {
	// domain is where addresses say what happens to mail for them.
	domain string

	mu    sync.Mutex
	tries map[string]int
}

// words returns what stands between the plus signs of a local part, for an
// address at the domain or below it.
func (r *recipients) words(address string) []string {
	local, domain, _ := strings.Cut(strings.ToLower(address), "@")
	if domain != r.domain && !strings.HasSuffix(domain, "."+r.domain) {
		return nil
	}
	return strings.Split(local, "+")
}

// fault returns the fault that the first of the addresses asks for. An address
// with a number asks as often as that, whichever provider it is tried with.
func (r *recipients) fault(to []string) (fault, bool) {
	for _, address := range to {
		words := r.words(address)
		for i, word := range words {
			f, err := parseFault(word)
			if err != nil {
				continue
			}
			if i+1 < len(words) && r.usedUp(address, words[i+1]) {
				break
			}
			return f, true
		}
	}
	return fault{}, false
}

// usedUp counts a try and reports whether it is beyond the limit. A word that is
// no number is no limit.
func (r *recipients) usedUp(address, limit string) bool {
	n, err := strconv.Atoi(limit)
	if err != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries[address]++
	return r.tries[address] > n
}

// forget starts the counting anew.
func (r *recipients) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries = map[string]int{}
}

// fates are what addresses can ask for after their mail was accepted.
var fates = map[string][]providertest.EventKind{
	"bounce":    {providertest.EventProcessed, providertest.EventBounced},
	"deferred":  {providertest.EventProcessed, providertest.EventDeferred, providertest.EventDelivered},
	"complaint": {providertest.EventProcessed, providertest.EventDelivered, providertest.EventComplained},
}

// fate returns what is reported about mail to an address.
func (r *recipients) fate(address string) []providertest.EventKind {
	for _, word := range r.words(address) {
		if kinds, ok := fates[word]; ok {
			return kinds
		}
	}
	return []providertest.EventKind{providertest.EventProcessed, providertest.EventDelivered}
}
