package e2e_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"
)

// The model of "one email per key", for Porcupine: a history is right if all
// its operations can be put in one order in which each answer is what the
// contract's table says, and in which an operation comes between its call and
// its return.
//
// An operation whose answer was lost may have happened at any time since, or
// never. So its return is the end of time: put after all others, it is as good
// as never.

// submitted is the input of a submission; a look is what is in the database.
type submitted struct {
	key     string
	request string
	look    bool
}

type verdict int

const (
	lost     verdict = iota // no answer, or one that says nothing
	declined                // an answer that says: nothing has happened
	created
	replayed
	refused // the key is another request's
	looked
)

func (v verdict) String() string {
	return [...]string{"lost", "declined", "created", "replayed", "refused", "looked"}[v]
}

// outcome is the output of an operation. A submission has the email's id; a
// look has all emails that were ever made for the key.
type outcome struct {
	verdict verdict
	id      string
	emails  []stored
}

type stored struct{ request, id string }

// keyState is the state of one key. The id of an email that a lost operation
// made is unknown until somebody is told.
type keyState struct {
	taken       bool
	request, id string
}

const neverReturned = math.MaxInt64

var oneEmailPerKey = porcupine.Model{
	Partition: byKey,
	Init:      func() any { return keyState{} },
	Step: func(state, input, output any) (bool, any) {
		return state.(keyState).step(input.(submitted), output.(outcome))
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(submitted), output.(outcome)
		return fmt.Sprintf("%s %s: %s %s%v", in.key, in.request, out.verdict, out.id, out.emails)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}

func byKey(history []porcupine.Operation) [][]porcupine.Operation {
	keys := map[string][]porcupine.Operation{}
	for _, op := range history {
		key := op.Input.(submitted).key
		keys[key] = append(keys[key], op)
	}
	var parts [][]porcupine.Operation
	for _, ops := range keys {
		parts = append(parts, ops)
	}
	return parts
}

// step is the contract's table: may this answer come now, and what then?
func (s keyState) step(in submitted, out outcome) (bool, keyState) {
	first := keyState{taken: true, request: in.request, id: out.id}
	switch out.verdict {
	case declined:
		return true, s
	case lost:
		if !s.taken {
			return true, first
		}
		return true, s
	case created:
		return !s.taken, first
	case replayed:
		return s.isEmail(stored{in.request, out.id}), first
	case refused:
		return s.taken && s.request != in.request, s
	case looked:
		if !s.taken || len(out.emails) != 1 {
			return !s.taken && len(out.emails) == 0, s
		}
		return s.isEmail(out.emails[0]), keyState{true, s.request, out.emails[0].id}
	}
	return false, s
}

func (s keyState) isEmail(e stored) bool {
	return s.taken && s.request == e.request && (s.id == e.id || s.id == "")
}

// op is an operation from call to return.
func op(call, ret int64, in submitted, out outcome) porcupine.Operation {
	return porcupine.Operation{Input: in, Call: call, Output: out, Return: ret}
}

// The checker itself: what it must accept and what it must not.
func TestCheckerKnowsGoodFromBad(t *testing.T) {
	t.Parallel()
	a, b := submitted{key: "k", request: "a"}, submitted{key: "k", request: "b"}
	look := submitted{key: "k", look: true}
	made := func(id string) outcome { return outcome{verdict: created, id: id} }
	again := func(id string) outcome { return outcome{verdict: replayed, id: id} }
	found := func(emails ...stored) outcome { return outcome{verdict: looked, emails: emails} }
	gone := outcome{verdict: lost}
	tests := []struct {
		name    string
		good    bool
		history []porcupine.Operation
	}{
		{"first, replay, look", true, []porcupine.Operation{
			op(0, 1, a, made("1")), op(2, 3, a, again("1")), op(4, 5, look, found(stored{"a", "1"})),
		}},
		{"a replay answered before the first", true, []porcupine.Operation{op(0, 9, a, made("1")), op(1, 2, a, again("1"))}},
		{"a lost one that happened", true, []porcupine.Operation{
			op(0, neverReturned, a, gone), op(1, 2, a, again("1")), op(3, 4, b, outcome{verdict: refused}),
		}},
		{"a lost one that never happened", true, []porcupine.Operation{
			op(0, neverReturned, a, gone), op(1, 2, b, made("1")), op(3, 4, look, found(stored{"b", "1"})),
		}},
		{"a lost one that happened, untold", true, []porcupine.Operation{
			op(0, neverReturned, a, gone), op(3, 4, look, found(stored{"a", "1"})),
		}},
		{"nothing", true, []porcupine.Operation{op(0, 1, a, outcome{verdict: declined}), op(2, 3, look, found())}},
		{"two keys", true, []porcupine.Operation{op(0, 1, a, made("1")), op(0, 1, submitted{key: "l", request: "a"}, made("2"))}},

		{"two first", false, []porcupine.Operation{op(0, 9, a, made("1")), op(0, 9, a, made("2"))}},
		{"first after a replay", false, []porcupine.Operation{op(0, 1, a, again("1")), op(2, 3, a, made("1"))}},
		{"replay of another email", false, []porcupine.Operation{op(0, 1, a, made("1")), op(2, 3, a, again("2"))}},
		{"replay of another request", false, []porcupine.Operation{op(0, 1, a, made("1")), op(2, 3, b, again("1"))}},
		{"refused before anybody came", false, []porcupine.Operation{op(0, 1, a, outcome{verdict: refused}), op(2, 3, b, made("1"))}},
		{"refused although the same", false, []porcupine.Operation{op(0, 1, a, made("1")), op(2, 3, a, outcome{verdict: refused})}},
		{"acknowledged and lost", false, []porcupine.Operation{op(0, 1, a, made("1")), op(2, 3, look, found())}},
		{"two emails, one of them untold", false, []porcupine.Operation{
			op(0, neverReturned, a, gone), op(0, 1, a, made("1")), op(2, 3, look, found(stored{"a", "1"}, stored{"a", "2"})),
		}},
		{"an email that nobody asked for", false, []porcupine.Operation{op(0, 1, look, found(stored{"a", "1"}))}},
		{"a lost one, then two answers", false, []porcupine.Operation{
			op(0, neverReturned, a, gone), op(1, 2, a, again("1")), op(3, 4, a, again("2")),
		}},
	}
	for _, test := range tests {
		if got := porcupine.CheckOperations(oneEmailPerKey, slices.Clone(test.history)); got != test.good {
			t.Errorf("%s: linearizable %v, want %v", test.name, got, test.good)
		}
	}
}
