package outbox

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/providers"
)

// The header fields of a mail that can be unsubscribed from by one request (RFC
// 8058, 3.1).
const (
	headerUnsubscribe     = "List-Unsubscribe"
	headerUnsubscribePost = "List-Unsubscribe-Post"
)

// UnsubscribePath is where the HTTP API serves links to unsubscribe; a token
// follows.
const UnsubscribePath = "/unsubscribe/"

var errNoPublicURL = &ValidationError{Fields: []FieldError{{
	Field:   "list_unsubscribe",
	Message: "needs the address at which recipients reach this installation: OUTBOXD_PUBLIC_URL is not set",
}}}

func unsubscribeHeaders(publicURL, token string) []providers.Header {
	link := strings.TrimSuffix(publicURL, "/") + UnsubscribePath + token
	return []providers.Header{
		{Name: headerUnsubscribe, Value: "<" + link + ">"},
		{Name: headerUnsubscribePost, Value: "List-Unsubscribe=One-Click"},
	}
}

// unsubscribing is what a token says: who wants no more emails, of whom, and
// because of which.
type unsubscribing struct {
	org, email uuid.UUID
	address    string
}

// A token is base64url of
//
//	the secret's id (2 bytes)
//	a nonce (12)
//	org (16), email (16) and address, sealed by AES-256-GCM with the id as
//	additional data (16 more)
//
// It is sealed and not only signed: links stand in logs of proxies and get
// forwarded, and must still work when the email's content is gone from here. The
// nonce is an HMAC of what is sealed, so that one email has one link, as a replay
// demands, and no two contents share a nonce.
const (
	secretIDSize = 2
	nonceSize    = 12
	tagSize      = 16
	tokenMin     = secretIDSize + nonceSize + 2*len(uuid.UUID{}) + 1 + tagSize
	tokenMax     = tokenMin - 1 + maxAddress
)

// longestToken stands for any in a message that is only judged.
var longestToken = strings.Repeat("x", base64.RawURLEncoding.EncodedLen(tokenMax))

// linkSecret is a secret of the installation behind its id.
type linkSecret []byte

var errNoLinkSecret = errors.New("there is no secret for links to unsubscribe: make one with `outboxctl suppressions rotate-secret`")

// keys derives one key for each purpose.
func (s linkSecret) keys() (nonces []byte, seal cipher.AEAD, err error) {
	if len(s) <= secretIDSize {
		return nil, nil, errNoLinkSecret
	}
	keys, err := hkdf.Key(sha256.New, s[secretIDSize:], nil, "outboxd unsubscribe 1", 2*sha256.Size)
	if err != nil {
		return nil, nil, fmt.Errorf("derive keys for links: %w", err)
	}
	block, err := aes.NewCipher(keys[sha256.Size:])
	if err != nil {
		return nil, nil, fmt.Errorf("derive keys for links: %w", err)
	}
	seal, err = cipher.NewGCM(block)
	return keys[:sha256.Size], seal, err
}

// seal makes a token. The same for the same, today and after a restart.
func (s linkSecret) seal(u unsubscribing) (string, error) {
	nonces, aead, err := s.keys()
	if err != nil {
		return "", err
	}
	plain := slices.Concat(u.org[:], u.email[:], []byte(u.address))
	mac := hmac.New(sha256.New, nonces)
	_, _ = mac.Write(plain)
	id, nonce := s[:secretIDSize], mac.Sum(nil)[:nonceSize]
	return base64.RawURLEncoding.EncodeToString(aead.Seal(slices.Concat(id, nonce), nonce, plain, id)), nil
}

// open reads a token that was sealed with this secret; false: it was not.
func (s linkSecret) open(token []byte) (u unsubscribing, ok bool) {
	_, aead, err := s.keys()
	if err != nil {
		return u, false
	}
	nonce, sealed := token[secretIDSize:secretIDSize+nonceSize], token[secretIDSize+nonceSize:]
	plain, err := aead.Open(nil, nonce, sealed, token[:secretIDSize])
	if err != nil {
		return u, false
	}
	rest := plain[copy(u.org[:], plain):]
	u.address = string(rest[copy(u.email[:], rest):])
	return u, true
}

const sqlFindLinkSecret = `SELECT int2send(id) || secret FROM outbox.unsubscribe_secrets WHERE id = $1`

// decodeToken returns the bytes of what may be a token, or [ErrNotFound]. There is one
// spelling of each; the decoder steps over ends of lines, strict or not.
func decodeToken(token string) ([]byte, error) {
	if len(token) > len(longestToken) || strings.ContainsAny(token, "\r\n") {
		return nil, ErrNotFound
	}
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(decoded) < tokenMin {
		return nil, ErrNotFound
	}
	return decoded, nil
}

// openToken finds out what a token says, or returns [ErrNotFound].
func (c *Client) openToken(ctx context.Context, token string) (unsubscribing, error) {
	decoded, err := decodeToken(token)
	if err != nil {
		return unsubscribing{}, err
	}
	var secret linkSecret
	// The wall is lowered: the secrets are the installation's, and the token does
	// not say whose it is before it is opened.
	err = AcrossOrgs(c.pool).QueryRow(ctx, scan(&secret), sqlFindLinkSecret, int16(binary.BigEndian.Uint16(decoded)))
	if errors.Is(err, pgx.ErrNoRows) {
		return unsubscribing{}, ErrNotFound
	}
	if err != nil {
		return unsubscribing{}, fmt.Errorf("read secret of a link: %w", err)
	}
	u, ok := secret.open(decoded)
	if !ok {
		return unsubscribing{}, ErrNotFound
	}
	return u, nil
}

const sqlGetSender = `
SELECT coalesce(c.from_address, ''), ` + sealedColumnsSQL + `
FROM outbox.email_contents c WHERE c.email_id = $1 AND c.org_id = $2`

// UnsubscribeSender returns the sender of the email that a link to unsubscribe
// was in, empty if that is no longer known, and changes nothing. It returns
// [ErrNotFound] for a token that is not ours.
func (c *Client) UnsubscribeSender(ctx context.Context, token string) (from string, err error) {
	u, err := c.openToken(ctx, token)
	if err != nil {
		return "", err
	}
	var sealed sealedEmail
	err = c.as(u.org).QueryRow(ctx, scan(append([]any{&from}, sealed.columns()...)...), sqlGetSender, u.email, u.org)
	if err == nil && sealed.keyID != "" {
		var content envelope
		content, err = sealed.openEnvelope(c.cfg.Keys, u.org, u.email)
		from = content.From
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("read sender: %w", err)
	}
	return from, nil
}

const (
	// sqlLockPurge keeps the content of an email from being purged, as its events do.
	sqlLockPurge = `
SELECT e.content_purged_at IS NOT NULL FROM outbox.emails e WHERE e.id = $1 FOR KEY SHARE`

	// sqlInsertUnsubscribed says so once, if the email is still there, and without
	// the address if its content is not.
	sqlInsertUnsubscribed = `
INSERT INTO outbox.events (id, email_id, type, recipient, detail, occurred_at)
SELECT $1, e.id, 'unsubscribed', nullif($3, ''), $4, now()
FROM outbox.emails e
WHERE e.id = $2 AND NOT EXISTS (
    SELECT FROM outbox.events known
    WHERE known.email_id = e.id AND known.type = 'unsubscribed' AND coalesce(known.recipient, '') = $3)`
)

// Unsubscribe suppresses the recipient of the email that a link was in. Doing it
// again changes nothing. It returns [ErrNotFound] for a token that is not ours.
func (c *Client) Unsubscribe(ctx context.Context, token string) error {
	u, err := c.openToken(ctx, token)
	if err != nil {
		return err
	}
	const detail = "by the link in the email"
	err = c.as(u.org).Begin(ctx, func(tx pgx.Tx) error {
		var purged bool
		err := tx.QueryRow(ctx, sqlLockPurge, u.email).Scan(&purged)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		// Before the event, because two of them at once wait here for each other.
		err = suppressTx(ctx, tx, []suppression{{u.org, Suppression{
			Address: u.address, Reason: SuppressionUnsubscribe, Detail: detail, EmailID: u.email,
		}}})
		if err != nil {
			return err
		}
		recipient := u.address
		if purged {
			recipient = ""
		}
		_, err = tx.Exec(ctx, sqlInsertUnsubscribed, newID(), u.email, recipient, detail)
		return err
	})
	if err != nil {
		return fmt.Errorf("unsubscribe: %w", err)
	}
	return nil
}

// sqlRotateLinkSecret adds a secret. It counts from a moment ahead, so that no
// attempt that began before the commit is replayed with it.
const sqlRotateLinkSecret = `
INSERT INTO outbox.unsubscribe_secrets (secret, used_from) VALUES ($1, now() + interval '1 minute') RETURNING id`

// RotateUnsubscribeSecret makes a new secret for links to unsubscribe, used a
// minute from now on, and returns its id. Older links work as long as the rows
// of their secrets in outbox.unsubscribe_secrets are there.
func RotateUnsubscribeSecret(ctx context.Context, pool *pgxpool.Pool) (id int16, err error) {
	secret := make([]byte, sha256.Size)
	_, _ = rand.Read(secret) // never fails
	if err := pool.QueryRow(ctx, sqlRotateLinkSecret, secret).Scan(&id); err != nil {
		return 0, fmt.Errorf("store secret for links: %w", err)
	}
	return id, nil
}
