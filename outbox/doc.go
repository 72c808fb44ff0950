// Package outbox is the heart of outboxd: the transactional outbox, its state
// machine, and the River workers that deliver what it holds.
//
// An application submits an email with [Client.Enqueue], or inside its own
// transaction with [Client.EnqueueTx] and [Client.EnqueueManyTx]. Idempotency
// key, email and River job commit together. A [Worker] takes each email through
// attempts:
//
//	Begin   commits an attempt with its provider key, before any byte leaves
//	Send    hands the message over; no transaction or connection is held
//	Finish  commits the outcome, if the attempt is still open
//
// An attempt whose outcome is not recorded is in doubt: the provider may have
// accepted the message. Nothing is sent again blindly; doubt.go says what is
// done instead.
//
// Who an org does not send to is looked at when an attempt begins; leaveout.go says
// what becomes of the others.
//
// A worker holds a liveness session, and sweeps up what dead workers left;
// liveness.go and sweep.go say how. [AddWorkers] makes a worker of a River
// client that the application has anyway.
//
// A provider that asks to be left alone, is down or refuses our key is taken out
// for all workers; flow.go says how emails wait and how it comes back. An org's
// flood goes behind everybody else's mail (lane.go). What providers report later
// is recorded by [Client.RecordEvents]: it raises the status, settles doubts, and
// suppresses addresses. Every change is told to the org's own webhooks, by
// triggers, so that no way of making it can forget them.
//
// A worker records in which database it is. In a restored or copied one it holds what
// was submitted before, until a person decides: installation.go and restored.go.
//
// # SQL
//
// Applications in other languages call the function outbox.enqueue_email in
// their own transaction:
//
//	SELECT outbox.enqueue_email(org => $1, message => $2, idempotency_key => $3)
//
// The message is the body of POST /emails. The function is the third way in, with
// the HTTP API and this package: it computes the same fingerprints and writes the
// same rows, so a submission replays whichever way it comes. It checks the shape
// of a message; what only Go can judge is judged before the first attempt and
// fails the email with an event. It is written in migrations 3, 4, 5, 7 and 11, and a
// change of the fingerprint, of a limit or of a column has to be made there too:
// the tests in outbox and api that are named after SQL and the three doors fail
// otherwise.
//
// # Sealed content
//
// With a [KeyRing], what senders write is sealed before it is stored, where rows
// are written (store.go), and opened where they are read (content.go). What came in
// clear, as from SQL, is sealed by a worker before its first attempt (rekey.go).
//
// # Retention
//
// Some time after an email's end its content is purged (content_purge.go): what was
// submitted, and what providers wrote. A table that holds any of it is purged there,
// and whoever writes any of it about an email that has ended locks the email's row
// before, to see whether it is purged.
//
// # Webhooks
//
// Triggers on emails and events write what an org's own endpoints are told, with
// its job, in the transaction of the change; migration 8 has them. A worker makes
// the payload of the email and posts it, at least once, under the message's id.
//
// # States
//
//	scheduled ─▶ queued ─▶ sending ─▶ sent ─▶ delivered, bounced, complained
//	    │          │  ▲       │
//	    │          │  └───────┼──▶ failed      definitely not accepted, for good
//	    │          │ not yet  │
//	    │          │          └──▶ unknown     in doubt
//	    └──────────┴─▶ canceled, expired, suppressed
//
// # Invariants
//
// Tests name the invariant that they prove.
//
//   - I1 No loss: every acknowledged submission ends, in bounded time, as sent,
//     failed, unknown, suppressed, canceled or expired.
//   - I2 No phantom: everything a provider gets belongs to a committed email.
//   - I3 No more mails than the provider's guarantees and the email's policy
//     allow.
//   - I4 Truth: sent means that a provider accepted, failed that none did, or
//     that policy ended a doubt; possible_duplicate is set exactly when a
//     resend followed a doubt.
//   - I5 Monotone: no way back from an ended status but by evidence or a
//     person; attempts only grow.
//   - I6 One email per live idempotency key.
//   - I7 No request at a provider without an attempt committed before it.
//   - I8 Requests with the same provider key are byte-identical.
//   - I9 One request on the wire per call.
//   - I10 Recovery within its bound.
//   - I11 After a drain no running job, idle transaction, leaked goroutine or
//     advisory lock is left.
package outbox
