// Package providers is the contract between outboxd and the services that
// carry email: HTTP APIs such as SendGrid's and SMTP relays alike.
//
// An adapter implements [Provider] and nothing else is asked of it. The
// package needs the standard library only, so a third party writes an adapter
// without pulling in a database driver or a job queue, and checks it with the
// conformance suite in package providertest.
//
// Two rules make delivery correct across crashes, and every adapter keeps
// them:
//
//   - Render is pure: the same [Request] gives the same bytes, today and after
//     a restart. A provider that honours keys refuses, or silently ignores, a
//     key that comes back with other bytes.
//   - Send makes at most one attempt on the wire and reports honestly. Only
//     what the provider documents as "not accepted", or what cannot have
//     reached it, is a definite failure. All else is in doubt, which is why
//     [InDoubt] is the zero value of [Outcome].
package providers
