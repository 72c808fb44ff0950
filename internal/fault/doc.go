// Package fault marks the places in the program at which the crash matrix
// (package crash) stops it: between what it has done and what it is about to
// do.
//
// In a release build a point is an empty function, and nothing of this package
// is left in the program. With the build tag "faults" a point that the
// environment names tells the harness that it is reached, and waits for what
// the harness says. Meanwhile the harness kills, pauses or cuts off the process,
// which so is hit exactly there, by an event and not by a sleep.
package fault
