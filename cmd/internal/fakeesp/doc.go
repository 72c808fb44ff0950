// Package fakeesp is `outboxctl fake-esp`: the services that outboxd delivers
// through, in one process, for tests of whoever uses outboxd. It accepts mail in
// every vendor's wire format and over SMTP, delivers none of it, and does on
// request what networks and services do on a bad day.
//
// What goes wrong with a hand-over is decided in this order:
//
//   - by a recipient at fake.test or below, whose local part names a fault
//     anywhere between its plus signs, with how many tries it is good for:
//     timeout@fake.test, jane+503+2@shop.fake.test;
//   - by the script, whose rules go by time and by count;
//   - else nothing goes wrong, except what the service itself refuses.
//
// The wire formats, and what the services refuse, are those of package
// providertest.
package fakeesp
