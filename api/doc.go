// Package api is outboxd's HTTP API: routes, wire types, authentication and
// errors. It decodes and checks, calls package outbox, and answers; it makes
// no decision about emails of its own.
//
// The wire format of /emails is the one of the Resend API, so that Resend's
// official SDKs work unchanged against it.
package api
