package api_test

import (
	"hash/crc32"
	"math/big"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/internal/testdb"
)

// base62 writes a checksum as docs/security.md says, by other means than the code.
func base62(sum uint32) string {
	text := new(big.Int).SetUint64(uint64(sum)).Text(62) // 0-9, a-z, A-Z
	swapped := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return r
	}, text)
	return strings.Repeat("0", 6-len(swapped)) + swapped
}

// A key that we make is recognized without asking anybody: by the expression and
// the checksum that docs/security.md tells secret scanners.
func TestKeyFormIsTheDocumentedOne(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?m)^\\bob_.*$`).FindString(string(doc))
	form, err := regexp.Compile(block)
	if err != nil || block == "" {
		t.Fatalf("docs/security.md has no expression for keys: %v", err)
	}
	example := regexp.MustCompile("(?m)^ob_.*$").FindString(string(doc))
	pool := testdb.New(t)
	s := &service{t: t, pool: pool}
	s.exec("INSERT INTO outbox.orgs (id, name) VALUES (gen_random_uuid(), 'acme')")
	for _, token := range []string{example, s.newKey("a"), s.newKey("b")} {
		rest := max(len(token)-6, 0)
		if form.FindString("key="+token+" ") != token || base62(crc32.ChecksumIEEE([]byte(token[:rest]))) != token[rest:] {
			t.Errorf("%q is not of the documented form", token)
		}
		if api.LooksDamaged(token) {
			t.Errorf("%q looks damaged", token)
		}
	}
}

// One wrong character, or some that are missing, is noticed without a look into
// the database.
func TestDamagedKeysLookIt(t *testing.T) {
	t.Parallel()
	const token = "ob_7Hq2mPzX9aLc_Zk3vN8sQwE5rT1yU0iOp4LaJhGf6DbVx4U4faI"
	if api.LooksDamaged(token) {
		t.Fatalf("%q looks damaged: is its checksum %s?", token, base62(crc32.ChecksumIEEE([]byte(token[:len(token)-6]))))
	}
	for i := range token {
		other := byte('a')
		if token[i] == other {
			other = 'b'
		}
		if changed := token[:i] + string(other) + token[i+1:]; i > 2 && !api.LooksDamaged(changed) {
			t.Errorf("%q does not look damaged", changed)
		}
	}
	for cut := 1; cut < 20; cut++ {
		// With the whole checksum missing it could be a key that somebody set.
		if short := token[:len(token)-cut]; cut != 6 && !api.LooksDamaged(short) {
			t.Errorf("%q does not look damaged", short)
		}
	}
	// Keys that an installation sets itself have no checksum.
	for _, own := range []string{"ob_dev_" + strings.Repeat("a", 32), "ob_dev_" + strings.Repeat("a", 37), "ob_dev_" + strings.Repeat("a", 64), "re_123"} {
		if api.LooksDamaged(own) {
			t.Errorf("%q looks damaged", own)
		}
	}
}

// The comparison that is made where there is no such key fails.
func TestNobodyHasASecret(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"", strings.Repeat("a", 32), string(make([]byte, 32))} {
		if api.NobodyHasSecret(secret) {
			t.Errorf("a key that does not exist has the secret %q", secret)
		}
	}
}
