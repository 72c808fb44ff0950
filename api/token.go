package api

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"hash/crc32"
	"math/big"
	"regexp"
	"strings"
)

// An API key is ob_<id>_<secret>, both of letters and digits. The id is looked
// up; of the secret only a hash is stored. A fast hash does: the secret is
// random and has 190 bits, which no dictionary helps to guess.
var keyPattern = regexp.MustCompile(`^ob_([A-Za-z0-9]{1,32})_([A-Za-z0-9]{32,128})$`)

// A secret that we make is 32 random characters and a checksum of all before it,
// by which people and secret scanners tell a key from noise, without asking
// anybody. The checksum proves nothing: keys that an installation sets itself
// have none.
const (
	keyAlphabet    = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	keyIDLength    = 12
	keyRandom      = 32
	checksumLength = 6 // enough for 32 bits in base 62
)

func newToken() string {
	token := "ob_" + randomText(keyIDLength) + "_" + randomText(keyRandom)
	return token + checksum(token)
}

// checksum is the CRC-32 (IEEE) of a text in base 62, the digits of which are
// 0-9, A-Z, a-z, with zeros in front.
func checksum(text string) string {
	sum := crc32.ChecksumIEEE([]byte(text))
	var digits [checksumLength]byte
	for i := checksumLength - 1; i >= 0; i-- {
		digits[i] = keyAlphabet[sum%uint32(len(keyAlphabet))]
		sum /= uint32(len(keyAlphabet))
	}
	return string(digits[:])
}

// looksDamaged reports whether a token that is not known looks like one of ours
// that lost or changed a character. It never decides whether a key works.
func looksDamaged(token string) bool {
	id, secret, ok := splitKey(token)
	if !ok {
		return strings.HasPrefix(token, "ob_")
	}
	switch end := len(token) - checksumLength; {
	case len(secret) == keyRandom+checksumLength:
		return checksum(token[:end]) != token[end:]
	case len(id) == keyIDLength:
		return len(secret) > keyRandom && len(secret) < keyRandom+checksumLength
	}
	return false
}

func splitKey(token string) (id, secret string, ok bool) {
	parts := keyPattern.FindStringSubmatch(token)
	if parts == nil {
		return "", "", false
	}
	return parts[1], parts[2], true
}

func hashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// nobodysHash is compared with where there is no such key, so that the time that
// an answer takes does not say which ids there are.
var nobodysHash = make([]byte, sha256.Size)

// hasSecret compares in constant time. A nil key has no secret.
func (k *apiKey) hasSecret(secret string) bool {
	want := nobodysHash
	if k != nil {
		want = k.secretHash
	}
	return subtle.ConstantTimeCompare(want, hashSecret(secret)) == 1 && k != nil
}

func randomText(length int) string {
	text := make([]byte, length)
	size := big.NewInt(int64(len(keyAlphabet)))
	for i := range text {
		n, err := rand.Int(rand.Reader, size)
		if err != nil {
			// The reader never fails; the program crashes before it does.
			panic(err)
		}
		text[i] = keyAlphabet[n.Int64()]
	}
	return string(text)
}
