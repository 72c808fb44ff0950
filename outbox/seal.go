package outbox

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// What senders wrote can be sealed, by AES-256-GCM under keys that Postgres does
// not have. A sealed part is a random nonce and the ciphertext. It is bound to its
// place, so that one that was moved or exchanged does not open. A key is good for
// four billion parts, then the chance that a nonce repeats is no longer negligible
// (NIST SP 800-38D, 8.3).

// KeySize is the length of a key, in bytes.
const KeySize = 32

// KeyRing holds the keys for content. The first one seals, all of them open. A nil
// ring seals nothing.
type KeyRing struct {
	keys []sealKey
}

// sealKey is one key of a ring. It holds nothing that may be printed but its id.
type sealKey struct {
	id    string
	aead  cipher.AEAD
	terms []byte // keys the search terms of addresses
}

var keyID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// ParseKeyRing reads keys from kid:base64,kid:base64,... An empty text is no ring.
// Its errors quote no key.
func ParseKeyRing(text string) (*KeyRing, error) {
	if text == "" {
		return nil, nil
	}
	r := new(KeyRing)
	for i, entry := range strings.Split(text, ",") {
		// What is not of this form may be a key altogether, so it has a number only.
		id, encoded, ok := strings.Cut(entry, ":")
		if !ok || !keyID.MatchString(id) {
			return nil, fmt.Errorf("key %d is not of the form kid:base64, with a kid of 1 to 32 letters, digits, _ and -", i+1)
		}
		secret, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if err != nil || len(secret) != KeySize {
			return nil, fmt.Errorf("key %d is not the base64 of %d bytes; make one with: openssl rand -base64 %d", i+1, KeySize, KeySize)
		}
		if r.find(id) != nil {
			return nil, fmt.Errorf("key %d has the same kid as one before it", i+1)
		}
		key, err := newSealKey(id, secret)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		r.keys = append(r.keys, key)
	}
	return r, nil
}

func newSealKey(id string, secret []byte) (sealKey, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return sealKey{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return sealKey{}, err
	}
	terms, err := hkdf.Key(sha256.New, secret, nil, "outbox search terms 1", sha256.Size)
	return sealKey{id, aead, terms}, err
}

// first returns the key that seals; nil: there is none.
func (r *KeyRing) first() *sealKey {
	if r == nil {
		return nil
	}
	return &r.keys[0]
}

// len returns how many keys there are.
func (r *KeyRing) len() int {
	if r == nil {
		return 0
	}
	return len(r.keys)
}

// find returns the key of that id, or nil.
func (r *KeyRing) find(id string) *sealKey {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.keys, func(k sealKey) bool { return k.id == id })
	if i < 0 {
		return nil
	}
	return &r.keys[i]
}

// SealError is why sealed content cannot be read by this process. The email is
// not harmed: with the right keys it can be.
type SealError struct {
	// KeyID is the id of the key that the content is sealed under.
	KeyID string
	// Missing means that the ring has no such key. Otherwise the content was
	// changed or moved, or the ring has another key under that id.
	Missing bool
}

func (e *SealError) Error() string {
	if e.Missing {
		return fmt.Sprintf("content is sealed under the key %q, which is not in OUTBOXD_ENCRYPTION_KEYS", e.KeyID)
	}
	return fmt.Sprintf("content does not open under the key %q: it was changed or moved, or another key has this id", e.KeyID)
}

// partKind is what a sealed part is.
type partKind string

const (
	partEnvelope   partKind = "envelope"
	partBody       partKind = "body"
	partSuppressed partKind = "suppressed"
	partAttachment partKind = "attachment"
	partSecret     partKind = "webhook secret"
)

// place is where a sealed part belongs.
type place struct {
	org      uuid.UUID
	owner    uuid.UUID // the email, or the webhook
	kind     partKind
	position int // of an attachment
}

// label is the additional data that binds a part to its place.
func (p place) label() []byte {
	label := append([]byte("outbox seal 1\n"), p.kind...)
	label = append(label, '\n')
	label = append(append(label, p.org[:]...), p.owner[:]...)
	return binary.BigEndian.AppendUint32(label, uint32(p.position))
}

func (k *sealKey) seal(p place, plain []byte) []byte { return k.aead.Seal(nil, nil, plain, p.label()) }

// open returns what was sealed, or a *[SealError].
func (r *KeyRing) open(id string, p place, sealed []byte) ([]byte, error) {
	key := r.find(id)
	if key == nil {
		return nil, &SealError{KeyID: id, Missing: true}
	}
	plain, err := key.aead.Open(nil, nil, sealed, p.label())
	if err != nil {
		return nil, &SealError{KeyID: id}
	}
	return plain, nil
}

// termHash hashes search terms; a nil key: without one.
func (k *sealKey) termHash() hash.Hash {
	if k == nil {
		return sha256.New()
	}
	return hmac.New(sha256.New, k.terms)
}

// pack joins fields, so that unpack finds them again.
func pack(fields ...[]byte) []byte {
	size := 0
	for _, field := range fields {
		size += binary.MaxVarintLen64 + len(field)
	}
	packed := make([]byte, 0, size)
	for _, field := range fields {
		packed = append(binary.AppendUvarint(packed, uint64(len(field))), field...)
	}
	return packed
}

var errPacked = errors.New("sealed content is not in a form that this version knows")

// unpack fills in the fields that pack joined.
func unpack(packed []byte, fields ...*[]byte) error {
	var err error
	for _, field := range fields {
		if *field, packed, err = unpackOne(packed); err != nil {
			return err
		}
	}
	if len(packed) > 0 {
		return errPacked
	}
	return nil
}

// unpackAll returns all fields that pack joined.
func unpackAll(packed []byte) (fields []string, err error) {
	for len(packed) > 0 {
		var field []byte
		if field, packed, err = unpackOne(packed); err != nil {
			return nil, err
		}
		fields = append(fields, string(field))
	}
	return fields, nil
}

func unpackOne(packed []byte) (field, rest []byte, err error) {
	n, size := binary.Uvarint(packed)
	if size <= 0 || n > uint64(len(packed)-size) {
		return nil, nil, errPacked
	}
	end := size + int(n)
	return packed[size:end:end], packed[end:], nil
}

// First returns the id of the key that seals.
func (r *KeyRing) First() string { return r.first().id }

// Has reports whether the ring opens what a key has sealed; a nil ring opens nothing.
func (r *KeyRing) Has(id string) bool { return r.find(id) != nil }

// storedSecret is a webhook's secret as the table has it. An empty key id: it is in
// clear.
type storedSecret struct {
	bytes []byte
	keyID string
}

// secret is what to store of a webhook's secret; a nil key leaves it in clear.
func (k *sealKey) secret(org, webhook uuid.UUID, secret []byte) storedSecret {
	if k == nil {
		return storedSecret{bytes: secret}
	}
	return storedSecret{k.seal(place{org, webhook, partSecret, 0}, secret), k.id}
}

// open returns the secret; nil: there is none.
func (s storedSecret) open(r *KeyRing, org, webhook uuid.UUID) ([]byte, error) {
	if s.keyID == "" || s.bytes == nil {
		return s.bytes, nil
	}
	return r.open(s.keyID, place{org, webhook, partSecret, 0}, s.bytes)
}
