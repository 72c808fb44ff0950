package smtp_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// flaky is a relay's mind: it breaks 35 % of the conversations at a stage that
// it draws for each, by a reset or by a 421.
type flaky struct {
	mu       sync.Mutex
	random   *rand.Rand
	sessions map[int]flaw
	hit      map[string]int
	mails    map[int]int // commands MAIL in each conversation
}

// flaw is what is wrong with one conversation.
type flaw struct {
	stage    providertest.Stage
	name     string
	reaction providertest.Reaction
}

// flaws are the ways to break a conversation. Those after the dot come in three
// kinds: the message was taken and the reply is lost, it was not, and it was
// taken with a reply.
func flaws() []flaw {
	accept, reset := providertest.Accept(), providertest.Reset()
	closing := providertest.Reply(421, "4.3.2 closing").Then(reset)
	all := []flaw{
		{providertest.AtBody, "reset in the content", reset},
		{providertest.AtDot, "reset, taken", accept.Then(reset)},
		{providertest.AtDot, "reset, not taken", reset},
		{providertest.AtDot, "250 and reset", accept.Then(providertest.Reply(250, "2.0.0 ok")).Then(reset)},
		{providertest.AtDot, "421 at the dot", closing},
	}
	for _, stage := range []providertest.Stage{
		providertest.AtGreeting, providertest.AtEHLO, providertest.AtAUTH,
		providertest.AtMAIL, providertest.AtRCPT, providertest.AtDATA,
	} {
		all = append(all, flaw{stage, "reset at " + string(stage), reset}, flaw{stage, "421 at " + string(stage), closing})
	}
	return all
}

func (f *flaky) respond(e providertest.SMTPEvent) providertest.Reaction {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch e.Stage {
	case providertest.AtGreeting:
		if all := flaws(); f.random.Float64() < 0.35 {
			f.sessions[e.Session] = all[f.random.IntN(len(all))]
		}
	case providertest.AtMAIL:
		f.mails[e.Session]++
	case providertest.AtRCPT:
		if e.Line == "RCPT TO:<nobody@example.org>" {
			return providertest.Reply(550, "5.1.1 unknown")
		}
	}
	broken, ok := f.sessions[e.Session]
	if !ok || broken.stage != e.Stage {
		return providertest.Reaction{}
	}
	f.hit[broken.name]++
	return broken.reaction
}

// F35: a relay that drops 35 % of the connections. Every mail is delivered, once
// or in doubt; a definite failure is one, so that trying again makes no copy;
// each attempt is a new connection (421); MAIL is never nested, and what is
// refused for good is not tried again.
func TestFlakyRelay(t *testing.T) {
	t.Parallel()
	const mails, permanent = 400, 10 // every tenth has a recipient that is refused
	mind := &flaky{
		random:   rand.New(rand.NewPCG(35, 2249)),
		sessions: map[int]flaw{}, hit: map[string]int{}, mails: map[int]int{},
	}
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{Username: "user", Password: secret})
	relay.Respond(mind.respond)
	p := newProvider(t, relay.URL())

	ends := map[string]int{}
	sends := 0
	for n := range mails {
		r := providertest.Request(n)
		if n%permanent == 0 {
			r.Message.To[0].Email = "nobody@example.org"
		}
		payload, err := p.Render(r)
		if err != nil {
			t.Fatal(err)
		}
		end, tries := deliver(t, p, relay, providers.Sending{Request: r, Payload: payload})
		sends += tries
		ends[end]++
		if want := n%permanent == 0; want != (end == "rejected") {
			t.Errorf("mail %d: %s after %d sends", n, end, tries)
		}
	}
	relay.Close()

	copies := map[string]int{}
	for _, a := range relay.Accepted() {
		if copies[a.Reference]++; copies[a.Reference] > 1 {
			t.Errorf("%s was delivered %d times", a.Reference, copies[a.Reference])
		}
	}
	if ends["rejected"] != mails/permanent || ends["in_doubt"] == 0 || ends["accepted"] < mails/2 {
		t.Errorf("ends %v", ends)
	}
	for _, f := range flaws() {
		if mind.hit[f.name] == 0 {
			t.Errorf("%q did not happen: the case is not covered", f.name)
		}
	}
	for session, n := range mind.mails {
		if n > 1 {
			t.Errorf("%d commands MAIL in conversation %d", n, session)
		}
	}
	if sends < mails+mails/10 || len(mind.mails) > sends {
		t.Errorf("%d conversations for %d sends of %d mails", len(mind.mails), sends, mails)
	}
}

// deliver sends as a worker does: again after a definite temporary failure,
// never after anything else. It returns how it ended and after how many sends.
func deliver(t *testing.T, p providers.Provider, relay *providertest.SMTP, s providers.Sending) (end string, sends int) {
	t.Helper()
	for sends < 50 {
		sends++
		_, err := p.Send(t.Context(), s)
		arrived := 0
		for _, a := range relay.Accepted() {
			if a.Reference == s.Key {
				arrived++
			}
		}
		switch outcome := providers.AsError(err).Outcome; {
		case err == nil && arrived == 1:
			return "accepted", sends
		case err == nil:
			return fmt.Sprintf("accepted, and %d arrived", arrived), sends
		case outcome == providers.InDoubt:
			return "in_doubt", sends
		case arrived != 0:
			return fmt.Sprintf("%v, and %d arrived", outcome, arrived), sends
		case outcome != providers.Deferred:
			return outcome.String(), sends
		}
	}
	return "never", sends
}
