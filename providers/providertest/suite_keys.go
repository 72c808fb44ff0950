package providertest

import "testing"

// testKeys checks a provider that honours keys: after a lost reply, the same
// sending again gets the reply that was lost and makes no second message. The
// provider's dialect needs its [KeyRules] for it.
func testKeys(t *testing.T, s Suite) {
	b := newBench(t, s)
	if b.provider.Capabilities().KeyWindow == 0 {
		t.Skip("the provider honours no keys")
	}
	sending := b.sending(t, 1, false)
	b.server.Break(LoseReply)
	if _, e := b.send(patient(t), t, sending); outcome(e) != "in_doubt" {
		t.Fatalf("outcome %v, want in doubt", e)
	}
	b.server.Break(NoFault)
	for range 2 {
		receipt, e := b.send(patient(t), t, sending)
		accepted := b.server.Accepted()
		if len(accepted) != 1 {
			t.Fatalf("%d messages accepted under one key, want 1", len(accepted))
		}
		if e != nil || receipt.ProviderMessageID != accepted[0].ID {
			t.Errorf("replay: %+v, %v, want the id %s", receipt, e, accepted[0].ID)
		}
	}
	if _, e := b.send(patient(t), t, b.sending(t, 2, false)); e != nil {
		t.Errorf("another key: %v", e)
	}
	if n := len(b.server.Accepted()); n != 2 {
		t.Errorf("%d messages accepted under two keys, want 2", n)
	}
}
