package outbox_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxd/outboxd/outbox"
)

// ringKey is a key for OUTBOXD_ENCRYPTION_KEYS, the same for the same id.
func ringKey(id string) string {
	return id + ":" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte(id), outbox.KeySize)[:outbox.KeySize])
}

// ring holds keys of those ids, the first one to seal with.
func ring(t fataler, ids ...string) *outbox.KeyRing {
	t.Helper()
	entries := make([]string, len(ids))
	for i, id := range ids {
		entries[i] = ringKey(id)
	}
	keys, err := outbox.ParseKeyRing(strings.Join(entries, ","))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestParseKeyRing(t *testing.T) {
	t.Parallel()
	if keys, err := outbox.ParseKeyRing(""); keys != nil || err != nil {
		t.Errorf("an empty text is the ring %v, error %v; want none", keys, err)
	}
	if keys, err := outbox.ParseKeyRing(ringKey("new") + "," + ringKey("old_2-x")); err != nil || keys.First() != "new" {
		t.Errorf("ring %v, error %v", keys, err)
	}
	secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("hunter2!"), 4))
	for text, want := range map[string]string{
		secret:                                 "key 1 is not of the form kid:base64",
		ringKey("a") + "," + secret:            "key 2 is not of the form",
		":" + secret:                           "key 1 is not of the form",
		strings.Repeat("k", 33) + ":" + secret: "key 1 is not of the form",
		"a b:" + secret:                        "key 1 is not of the form",
		ringKey("a") + ",":                     "key 2 is not of the form",
		"a:" + secret[:40]:                     "key 1 is not the base64 of 32 bytes",
		"a:" + secret + "A":                    "key 1 is not the base64 of 32 bytes",
		"a:" + secret + ",a:" + secret:         "key 2 has the same kid",
	} {
		_, err := outbox.ParseKeyRing(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %s", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), secret[:8]) {
			t.Errorf("the error shows a key: %v", err)
		}
	}
}

// What was sealed comes back, and only in its place, only unchanged, and only with
// its key. No two sealings are alike.
func TestSealOpens(t *testing.T) {
	t.Parallel()
	keys := ring(t, "new", "old")
	rapid.Check(t, func(t *rapid.T) {
		plain := rapid.SliceOf(rapid.Byte()).Draw(t, "plain")
		here := outbox.Place{Org: uuid.New(), Owner: uuid.New(), Kind: "attachment", Position: rapid.IntRange(0, 99).Draw(t, "position")}
		sealed := keys.Seal(here, plain)
		if got, err := ring(t, "other", "new").Open("new", here, sealed); err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("opened %x, error %v; want %x", got, err, plain)
		}
		if bytes.Equal(sealed, keys.Seal(here, plain)) {
			t.Fatal("sealed twice, it is the same")
		}
		if len(plain) > 3 && bytes.Contains(sealed, plain) {
			t.Fatal("it is not sealed")
		}
		org, owner, kind, position := here, here, here, here
		org.Org, owner.Owner, kind.Kind, position.Position = uuid.New(), uuid.New(), "body", here.Position+1
		for name, place := range map[string]outbox.Place{"org": org, "email": owner, "kind": kind, "position": position} {
			refuse(t, "moved to another "+name, false)(keys.Open("new", place, sealed))
		}
		flipped := bytes.Clone(sealed)
		flipped[rapid.IntRange(0, len(sealed)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		refuse(t, "a bit flipped", false)(keys.Open("new", here, flipped))
		refuse(t, "cut", false)(keys.Open("new", here, sealed[:rapid.IntRange(0, len(sealed)-1).Draw(t, "length")]))
		refuse(t, "under another key", false)(keys.Open("old", here, sealed))
		refuse(t, "key not in the ring", true)(ring(t, "old").Open("new", here, sealed))
		refuse(t, "no ring", true)((*outbox.KeyRing)(nil).Open("new", here, sealed))
	})
}

// refuse wants the error to name the key.
func refuse(t *rapid.T, why string, missing bool) func([]byte, error) {
	return func(plain []byte, err error) {
		t.Helper()
		sealErr, ok := errors.AsType[*outbox.SealError](err)
		if !ok || plain != nil || sealErr.Missing != missing || !strings.Contains(err.Error(), `"`+sealErr.KeyID+`"`) {
			t.Fatalf("%s: opened %x, error %v", why, plain, err)
		}
	}
}

func TestPackedFieldsComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		fields := rapid.SliceOf(rapid.String()).Draw(t, "fields")
		packed := outbox.Pack(fields)
		got, err := outbox.Unpack(packed)
		if err != nil || len(got) != len(fields) || len(fields) > 0 && !cmp.Equal(got, fields) {
			t.Fatalf("%q, error %v; want %q", got, err, fields)
		}
		// Whatever it is, it ends in fields or in an error.
		_, _ = outbox.Unpack(rapid.SliceOf(rapid.Byte()).Draw(t, "garbage"))
	})
}
