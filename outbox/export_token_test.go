package outbox

import "github.com/google/uuid"

// SealToken makes a token of a link to unsubscribe.
func SealToken(secret []byte, org, email uuid.UUID, address string) (string, error) {
	return linkSecret(secret).seal(unsubscribing{org: org, email: email, address: address})
}

// OpenToken reads a token, with the secret that its id leads to.
func OpenToken(secret []byte, token string) (org, email uuid.UUID, address string, ok bool) {
	decoded, err := decodeToken(token)
	if err != nil {
		return org, email, "", false
	}
	u, ok := linkSecret(secret).open(decoded)
	return u.org, u.email, u.address, ok
}
