// Package providertest checks adapters against the contract of package
// providers, and stands in for the services they talk to.
//
//   - [HTTP] and [SMTP] are programmable providers on real sockets. They
//     record what they accepted and do to a hand-over what the network and
//     other people's servers do: refuse, reset, hang, answer late, answer
//     nonsense. They run inside a test ([NewHTTP], [NewSMTP]) and in a process
//     of their own ([StartHTTP], [StartSMTP]).
//   - [Run] is the conformance suite. An adapter that passes it may be trusted
//     with the outbox's promise.
//
// A programmable provider does what the function given to its Respond returns:
//
//	p := providertest.NewHTTP(t, providertest.SendGrid)
//	p.Respond(func(r providertest.Seen) providertest.Reaction {
//		if r.Number == 1 {
//			return providertest.Accept().Then(providertest.Reset())
//		}
//		return providertest.Accept()
//	})
package providertest
