package ses_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/ses"
)

// noon is when requests are signed.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	origin         = "https://sns.us-east-1.amazonaws.com"
	certificateURL = origin + "/SimpleNotificationService-0123456789abcdef.pem"
)

// sns stands in for SNS' own server. Whatever host is dialled, it is this one.
type sns struct {
	providertest.SESWebhooks
	client *http.Client

	mu    sync.Mutex
	gets  []string
	dials []string
	// answer replaces the one to a GET.
	answer http.HandlerFunc
}

// usual are webhooks whose key all tests share: to make one takes long.
var usual = sync.OnceValues(func() (providertest.SESWebhooks, error) {
	return providertest.NewSESWebhooks(certificateURL)
})

func newSNS(t testing.TB) *sns {
	t.Helper()
	webhooks, err := usual()
	if err != nil {
		t.Fatal(err)
	}
	return newSNSOf(t, webhooks)
}

// newForger returns an SNS with a key of its own.
func newForger(t testing.TB) *sns {
	t.Helper()
	webhooks, err := providertest.NewSESWebhooks(certificateURL)
	if err != nil {
		t.Fatal(err)
	}
	return newSNSOf(t, webhooks)
}

func newSNSOf(t testing.TB, webhooks providertest.SESWebhooks) *sns {
	t.Helper()
	s := &sns{SESWebhooks: webhooks}
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	s.client = server.Client()
	transport := s.client.Transport.(*http.Transport)
	transport.TLSClientConfig.ServerName = "example.com" // the test server's name
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		s.mu.Lock()
		s.dials = append(s.dials, address)
		s.mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
	}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

// ServeHTTP implements [http.Handler].
func (s *sns) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets = append(s.gets, r.Method+" https://"+r.Host+r.RequestURI)
	switch {
	case s.answer != nil:
		s.answer(w, r)
	case "https://"+r.Host+r.URL.Path == certificateURL:
		_, _ = w.Write(s.Certificate)
	case r.URL.Query().Get("Action") == "ConfirmSubscription":
	default:
		http.NotFound(w, r)
	}
}

func (s *sns) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.gets)
}

// checkDials checks that nobody but SNS was called, and only with TLS.
func (s *sns) checkDials(t *testing.T, name string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, address := range s.dials {
		if address != "sns.us-east-1.amazonaws.com:443" {
			t.Errorf("%s: called %s", name, address)
		}
	}
}

func (s *sns) hook(t testing.TB) *ses.Hook {
	t.Helper()
	h, err := ses.NewHook(ses.HookConfig{TopicARNs: []string{s.TopicARN}, HTTPClient: s.client})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// envelope is a message of SNS; what is not changed is that of a notification.
func (s *sns) envelope(changes map[string]string) map[string]string {
	m := map[string]string{
		"Type": "Notification", "MessageId": "da41e39f-ea4d-435a-b922-c6aae3915ebe", "TopicArn": s.TopicARN,
		"Subject": "Amazon SES Email Event Notification", "Message": `{"eventType":"Unknown"}`,
		"Timestamp": noon.Format("2006-01-02T15:04:05.000Z"), "SignatureVersion": "2", "SigningCertURL": certificateURL,
		"UnsubscribeURL": origin + "/?Action=Unsubscribe",
	}
	maps.Copy(m, changes)
	return m
}

// sign signs a message the way AWS describes it, apart from the builder:
// https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message-verify-message-signature.html
func (s *sns) sign(t testing.TB, m map[string]string) []byte {
	t.Helper()
	fields := []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"}
	if m["Type"] != "Notification" {
		fields = []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
		delete(m, "Subject")
	}
	var text bytes.Buffer
	for _, name := range fields {
		if value, ok := m[name]; ok {
			text.WriteString(name + "\n" + value + "\n")
		}
	}
	hash, digest := crypto.SHA256, sha256.Sum256(text.Bytes())
	sum := digest[:]
	if m["SignatureVersion"] == "1" {
		old := sha1.Sum(text.Bytes())
		hash, sum = crypto.SHA1, old[:]
	}
	signature, err := rsa.SignPKCS1v15(rand.Reader, s.Key, hash, sum)
	if err != nil {
		t.Fatal(err)
	}
	m["Signature"] = base64.StdEncoding.EncodeToString(signature)
	body, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// redirectTo answers with a redirect.
func redirectTo(url string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, url, http.StatusFound) }
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// certificate returns one in PEM, by default for the key that s signs with.
func (s *sns) certificate(t *testing.T, change func(*x509.Certificate), key crypto.PublicKey) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sns.amazonaws.com"},
		NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour),
	}
	if change != nil {
		change(template)
	}
	if key == nil {
		key = &s.Key.PublicKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key, s.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
