// Package model is the delivery protocol of package outbox, small enough to
// visit every state that it can get into, in any order of events. Its tests
// show that what can happen to an email is what section 7 of the design
// promises: nothing else, and nothing less.
//
// There is one email, with at most two attempts; two worker processes, of
// which one may run the job twice at a time; a provider; and at most two
// faults. A step is one statement in Postgres or one action at the provider.
// Between any two steps anything else may happen:
//
//	load ─▶ begin ─▶ confirm ─▶ last byte ─▶ accepted ─▶ reply ─▶ finish
//	  └─▶ look at the open attempt ─▶ leave it · replay · search · wait, decide
//
//	worker    is killed, stands still and wakes, loses its session and notices
//	provider  accepts, refuses, forgets a key; finds, or does not find yet
//	network   loses a request or a reply; delivers what a dead worker sent
//	time      ends deadlines, key windows, the wait for evidence
//	evidence  arrives at any time, or never
//
// What the model leaves to chance on purpose: which worker looks at the email,
// and when. Jobs are not in it, so nothing that River or a person does with
// them can matter. Time is not counted either: a deadline may pass at any
// moment at which nobody awake is in the middle of something, since to stand
// still is a fault. Replies that Postgres loses are not in it: Begin and Finish
// ask again until they know. Nor are persons, cancellation and expiry.
//
// # Reading it
//
//	contract.go    the table: what is promised, as data
//	state.go       everything there is
//	protocol.go    what a worker does, in the words of package outbox
//	world.go       what happens to it
//	invariants.go  what holds in every state
//	mutants.go     rules to break, and assumptions to drop
//	explore.go     breadth-first search, so that each trace is a shortest one
//	symmetry.go    A and B are alike, which halves the work
//
// `go test -v ./crash/model` prints the table with the number of states behind
// each cell, and for each rule of the protocol what happens without it.
//
// # Assumptions
//
// No protocol that ends with a byte on a wire can do without them. The tests
// show what happens without each, and that a provider with neither keys nor
// search needs none, since nothing is promised there that they would protect.
//
//   - [PromptProvider]: "not found" is proof only if nothing is on its way any
//     more. By the attempt's deadline and margin, the provider has accepted or
//     lost what reached it.
//   - [ShortGap]: between the last look and the provider's decision, no request
//     is held up until the key window ends; and no process stands still beyond
//     its deadline and margin there and is also killed or loses its session.
//
// # The protocol and the code
//
// The model is the protocol as designed. Where the code in package outbox
// does something else, the difference is a [Mutant] that the kill table in the
// tests marks with the place in the code: mend the code, then remove the mark.
package model
