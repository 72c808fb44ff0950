package fakeesp

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

const (
	// defaultDelay is how late a slow answer is.
	defaultDelay = 5 * time.Second
	// defaultRetryAfter is what a 429 asks for.
	defaultRetryAfter = time.Second

	// acceptedSuffix makes a refusal a lie: the message is accepted.
	acceptedSuffix = "-accepted"
)

// fault is something that goes wrong with a hand-over.
type fault struct {
	name string
	// status is set for faults that are an answer, and accepted when the
	// message is taken all the same.
	status   int
	accepted bool
	delay    time.Duration
	// retryAfter is in the answer unless it is zero.
	retryAfter time.Duration
}

// namedFaults are those that are no mere status, with what they do.
var namedFaults = map[string]string{
	"timeout":  "accepted, and no answer until the client gives up",
	"lost":     "accepted, and the connection reset without an answer",
	"reset":    "not accepted: the connection is reset behind the whole request",
	"slow":     "accepted, and answered late: after 5s, or after the delay of the rule",
	"garbage":  "accepted, with an answer whose text is garbage",
	"nonsense": "accepted, and answered with what is not the protocol",
}

// Faults lists the faults and what they do, for the help.
func Faults() string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(namedFaults)) {
		fmt.Fprintf(&text, "%-13s %s\n", name, namedFaults[name])
	}
	fmt.Fprintf(&text, "%-13s %s\n", "400 to 599", "refused with this status; over SMTP with the reply that says the same")
	fmt.Fprintf(&text, "%-13s %s", "500-accepted", "the same for any status, but the message is accepted")
	return text.String()
}

// parseFault reads the name of a fault: one of namedFaults, a status from 400 to
// 599, or such a status with -accepted behind it.
func parseFault(name string) (fault, error) {
	if _, ok := namedFaults[name]; ok {
		return fault{name: name, delay: defaultDelay}, nil
	}
	digits, accepted := strings.CutSuffix(name, acceptedSuffix)
	status, err := strconv.Atoi(digits)
	if err != nil || len(digits) != 3 || status < 400 || status > 599 {
		return fault{}, fmt.Errorf("there is no fault %q: see outboxctl fake-esp --help", name)
	}
	f := fault{name: name, status: status, accepted: accepted}
	if status == http.StatusTooManyRequests {
		f.retryAfter = defaultRetryAfter
	}
	return f, nil
}

// http returns what a service behind HTTP does. Refuse is its own form of an
// answer with a status.
func (f fault) http(refuse func(status int) providertest.Reaction) providertest.Reaction {
	if f.status == 0 {
		return f.end(providertest.Reply(http.StatusOK, "\x00<garbage"), "this is not HTTP\r\n")
	}
	answer := providertest.Reply(f.status, "")
	if refuse != nil {
		answer = refuse(f.status)
	}
	if f.retryAfter > 0 {
		seconds := int((f.retryAfter + time.Second - 1) / time.Second)
		answer = answer.With("Retry-After", strconv.Itoa(seconds))
	}
	return f.answer(answer)
}

// smtp returns what a relay does at the final dot.
func (f fault) smtp() providertest.Reaction {
	if f.status == 0 {
		return f.end(providertest.Reply(250, "\x00<garbage"), "this is not SMTP\r\n")
	}
	code, text := smtpReply(f.status)
	return f.answer(providertest.Reply(code, text))
}

// end returns what f does when it is no answer with a status.
func (f fault) end(garbage providertest.Reaction, nonsense string) providertest.Reaction {
	accept := providertest.Accept()
	switch f.name {
	case "timeout":
		accept = accept.Then(providertest.Hang())
	case "lost":
		accept = accept.Then(providertest.Reset())
	case "reset":
		accept = providertest.Reset()
	case "slow":
		accept = accept.Late(f.delay)
	case "garbage":
		accept = accept.Then(garbage)
	case "nonsense":
		accept = accept.Then(providertest.Raw(nonsense))
	}
	return accept.Named(f.name)
}

// answer returns a refusal, or the lie.
func (f fault) answer(reply providertest.Reaction) providertest.Reaction {
	if f.accepted {
		reply = providertest.Accept().Then(reply)
	}
	return reply.Named(f.name)
}

// smtpReplies are the replies that say what HTTP statuses say. Any other status
// is a reply code itself.
var smtpReplies = map[int]struct {
	code int
	text string
}{
	http.StatusBadRequest:            {554, "5.6.0 message refused"},
	http.StatusUnauthorized:          {535, "5.7.8 authentication credentials invalid"},
	http.StatusForbidden:             {535, "5.7.8 account suspended"},
	http.StatusRequestEntityTooLarge: {552, "5.3.4 message too big"},
	http.StatusUnprocessableEntity:   {554, "5.6.0 message refused"},
	http.StatusTooManyRequests:       {451, "4.7.1 too many messages, slow down"},
	http.StatusInternalServerError:   {451, "4.3.0 internal error"},
	http.StatusBadGateway:            {451, "4.3.0 internal error"},
	http.StatusServiceUnavailable:    {451, "4.3.2 not now"},
	http.StatusGatewayTimeout:        {451, "4.3.0 internal error"},
}

func smtpReply(status int) (code int, text string) {
	if reply, ok := smtpReplies[status]; ok {
		return reply.code, reply.text
	}
	class := status / 100
	return status, fmt.Sprintf("%d.0.0 scripted", class)
}
