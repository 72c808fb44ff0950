package outbox_test

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// FuzzUnsubscribeToken: what was sealed is opened again, and nothing else is, not
// even a sealed token with one bit changed.
func FuzzUnsubscribeToken(f *testing.F) {
	secret := append([]byte{0, 1}, make([]byte, sha256.Size)...)
	// The same in every process that fuzzes.
	org, email := uuid.MustParse("0198c0de-0000-7000-8000-000000000001"), uuid.MustParse("0198c0de-0000-7000-8000-000000000002")
	sealed, err := outbox.SealToken(secret, org, email, "jane@example.org")
	if err != nil {
		f.Fatal(err)
	}
	for _, forged := range []string{"", "AA", sealed, sealed[1:], sealed + "A", sealed + "="} {
		f.Add(forged, "jane@example.org", uint16(0))
	}
	f.Add("", "ü@example.org\x00", uint16(999))
	f.Fuzz(func(t *testing.T, forged, address string, bit uint16) {
		if _, _, _, ok := outbox.OpenToken(secret, forged); ok && forged != sealed {
			t.Fatalf("%q was opened", forged)
		}
		if len(address) == 0 || len(address) > 254 {
			return
		}
		token, err := outbox.SealToken(secret, org, email, address)
		if err != nil {
			t.Fatal(err)
		}
		gotOrg, gotEmail, gotAddress, ok := outbox.OpenToken(secret, token)
		if !ok || gotOrg != org || gotEmail != email || gotAddress != address {
			t.Fatalf("sealed %s %s %q, opened %s %s %q (%v)", org, email, address, gotOrg, gotEmail, gotAddress, ok)
		}
		changed := bytes.Clone([]byte(token))
		changed[int(bit)%len(changed)] ^= 1
		if _, _, _, ok := outbox.OpenToken(secret, string(changed)); ok {
			t.Fatalf("%q was opened after a change at %d", changed, bit)
		}
	})
}
