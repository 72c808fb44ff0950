package outbox

import "github.com/outboxd/outboxd/providers"

// FingerprintVersion is the version that new keys are stored with.
const FingerprintVersion = fingerprintVersion

// Fingerprint identifies a submission in the given version of the canonical
// form.
func Fingerprint(version int16, s Submission) ([]byte, error) {
	endpoint := EndpointEmails
	if s.Batch {
		endpoint = EndpointBatch
	}
	return fingerprint(version, endpoint, &s)
}

// ParseAddress reads addr or Name <addr>.
func ParseAddress(s string) (providers.Address, error) { return parseAddress(s) }
