package ses

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/outboxd/outboxd/providers/internal/hook"
)

const (
	// certificateAge is how long a certificate is kept before it is fetched
	// again.
	certificateAge = 24 * time.Hour

	// maxCertificates bounds those that are kept. SNS has one in a region, and
	// two while it changes.
	maxCertificates = 8

	// maxFetches bounds the requests in fetchPeriod: anybody can post a message
	// with an address that has to be looked at.
	maxFetches  = 10
	fetchPeriod = time.Minute

	minKeyBits = 2048
)

// certificatePath is where SNS has its certificates. Other addresses on the
// same host are the API's, and their answers can be made to hold what a caller
// has put there.
var certificatePath = regexp.MustCompile(`^/SimpleNotificationService-[0-9A-Za-z]+\.pem$`)

// certificateName is what SNS' certificates are made out to: sns.amazonaws.com
// in most regions, with a region or a prefix in others:
// https://github.com/aws/aws-sdk-java-v2 (services-custom/sns-message-manager)
var certificateName = regexp.MustCompile(`^sns([.-][a-z0-9-]+)*\.amazonaws\.com(\.cn)?$`)

// certificates fetches SNS' certificates and keeps them.
type certificates struct {
	endpoint endpoint
	// fetching has room for one: others wait for what it finds.
	fetching chan struct{}

	mu      sync.Mutex
	known   map[string]certificate
	fetches int
	period  time.Time // when counting fetches began
}

type certificate struct {
	key   *rsa.PublicKey
	until time.Time
}

func newCertificates(e endpoint) *certificates {
	return &certificates{endpoint: e, fetching: make(chan struct{}, 1), known: map[string]certificate{}}
}

// key returns the key of the certificate at a URL.
func (c *certificates) key(ctx context.Context, rawURL string, now time.Time) (*rsa.PublicKey, error) {
	u, ok := c.endpoint.parse(rawURL)
	if !ok || !certificatePath.MatchString(u.EscapedPath()) || u.RawQuery != "" || u.ForceQuery {
		return nil, hook.Unverified("the URL of its certificate is not SNS'")
	}
	if key := c.kept(rawURL, now); key != nil {
		return key, nil
	}
	select {
	case c.fetching <- struct{}{}:
		defer func() { <-c.fetching }()
	case <-ctx.Done():
		return nil, unavailable("the certificate was not fetched in time")
	}
	if key := c.kept(rawURL, now); key != nil {
		return key, nil
	}
	if !c.mayFetch(now) {
		return nil, unavailable("too many certificates were asked for")
	}
	status, body, err := c.endpoint.get(ctx, u)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, hook.Unverified("SNS has no certificate at its URL")
	}
	found, err := parseCertificate(body, now)
	if err != nil {
		return nil, err
	}
	c.keep(rawURL, found)
	return found.key, nil
}

func (c *certificates) kept(rawURL string, now time.Time) *rsa.PublicKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.known[rawURL]; ok && now.Before(found.until) {
		return found.key
	}
	return nil
}

func (c *certificates) keep(rawURL string, found certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxCertificates {
		clear(c.known)
	}
	c.known[rawURL] = found
}

func (c *certificates) mayFetch(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.period).Abs() >= fetchPeriod {
		c.period, c.fetches = now, 0
	}
	c.fetches++
	return c.fetches <= maxFetches
}

// parseCertificate reads a file that begins with SNS' certificate. Nothing
// between the certificates is skipped, as PEM would allow.
//
// SNS serves its own certificate alone, so there is no chain to a root that
// could be checked. That it is SNS' is known from the server that it was read
// from, which has shown a chain of its own. Issuers are checked where they are
// in the file.
func parseCertificate(text []byte, now time.Time) (certificate, error) {
	chain, ok := decodeChain(text)
	if !ok {
		return certificate{}, hook.Unverified("its certificate cannot be read")
	}
	leaf := chain[0]
	key, ok := leaf.PublicKey.(*rsa.PublicKey)
	switch {
	case !ok || key.N.BitLen() < minKeyBits:
		return certificate{}, hook.Unverified("its certificate's key is not of RSA or too short")
	case now.Before(leaf.NotBefore) || now.After(leaf.NotAfter):
		return certificate{}, hook.Unverified("its certificate has expired or is not valid yet")
	case !isSNS(leaf):
		return certificate{}, hook.Unverified("its certificate is not made out to SNS")
	}
	for i, issuer := range chain[1:] {
		if chain[i].CheckSignatureFrom(issuer) != nil {
			return certificate{}, hook.Unverified("its certificate is not of the issuer beside it")
		}
	}
	until := now.Add(certificateAge)
	if leaf.NotAfter.Before(until) {
		until = leaf.NotAfter
	}
	return certificate{key, until}, nil
}

func decodeChain(text []byte) (chain []*x509.Certificate, ok bool) {
	for rest := bytes.TrimSpace(text); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		if !bytes.HasPrefix(rest, []byte("-----BEGIN CERTIFICATE-----")) {
			return nil, false
		}
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, false
		}
		parsed, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, false
		}
		chain = append(chain, parsed)
	}
	return chain, len(chain) > 0
}

func isSNS(c *x509.Certificate) bool {
	return slices.ContainsFunc(append([]string{c.Subject.CommonName}, c.DNSNames...), certificateName.MatchString)
}
