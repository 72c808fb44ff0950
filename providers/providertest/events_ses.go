package providertest

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"time"
)

// SESWebhooks is Amazon SES' event publishing by way of an SNS topic with an
// HTTP subscription:
// https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html
// https://docs.aws.amazon.com/sns/latest/dg/sns-message-and-json-formats.html
type SESWebhooks struct {
	// Key signs; Certificate, in PEM, is served at CertificateURL.
	Key            *rsa.PrivateKey
	Certificate    []byte
	CertificateURL string
	TopicARN       string
}

// NewSESWebhooks returns webhooks with a certificate of their own, which the
// caller serves at certificateURL.
func NewSESWebhooks(certificateURL string) (SESWebhooks, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return SESWebhooks{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sns.amazonaws.com"},
		// Whatever the clock of a test says.
		NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2049, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: []string{"sns.amazonaws.com"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return SESWebhooks{}, err
	}
	return SESWebhooks{
		Key:            key,
		Certificate:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		CertificateURL: certificateURL,
		TopicARN:       "arn:aws:sns:us-east-1:123456789012:outboxd-fake",
	}, nil
}

// Post implements [Webhooks].
func (s SESWebhooks) Post(events []Event, at time.Time) ([]Webhook, error) {
	return each(events, sesEvent, func(e Event, body []byte) (Webhook, error) {
		return s.sign([]field{
			{"Message", string(body)},
			{"MessageId", uuidFrom(e.ID)},
			{"Timestamp", isoTime(at)},
			{"TopicArn", s.TopicARN},
			{"Type", "Notification"},
		})
	})
}

// Confirm returns the request that SNS posts before all others: whoever reads
// subscribeURL has subscribed.
func (s SESWebhooks) Confirm(subscribeURL string, at time.Time) (Webhook, error) {
	return s.sign([]field{
		{"Message", "You have chosen to subscribe to the topic " + s.TopicARN + "."},
		{"MessageId", uuidFrom("confirm " + s.TopicARN)},
		{"SubscribeURL", subscribeURL},
		{"Timestamp", isoTime(at)},
		{"Token", rand.Text()},
		{"TopicArn", s.TopicARN},
		{"Type", "SubscriptionConfirmation"},
	})
}

// Again implements [Webhooks].
func (SESWebhooks) Again(e Event) Event { return e }

// field is a member of an SNS message that is signed.
type field struct{ name, value string }

// sign signs the fields, which are in the order of their names: version 2, over
// names and values, each on a line of its own.
// https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message-verify-message-signature.html
func (s SESWebhooks) sign(fields []field) (Webhook, error) {
	var signed bytes.Buffer
	envelope := object{"SignatureVersion": "2", "SigningCertURL": s.CertificateURL}
	for _, f := range fields {
		envelope[f.name] = f.value
		signed.WriteString(f.name + "\n" + f.value + "\n")
	}
	digest := sha256.Sum256(signed.Bytes())
	signature, err := rsa.SignPKCS1v15(rand.Reader, s.Key, crypto.SHA256, digest[:])
	if err != nil {
		return Webhook{}, err
	}
	envelope["Signature"] = base64.StdEncoding.EncodeToString(signature)
	body, err := json.Marshal(envelope)
	header := http.Header{}
	for name, member := range map[string]string{
		"X-Amz-Sns-Message-Type": "Type", "X-Amz-Sns-Message-Id": "MessageId", "X-Amz-Sns-Topic-Arn": "TopicArn",
	} {
		value, _ := envelope[member].(string)
		header.Set(name, value)
	}
	header.Set("Content-Type", "text/plain; charset=UTF-8")
	header.Set("User-Agent", "Amazon Simple Notification Service Agent")
	return Webhook{Header: header, Body: body}, err
}

// uuidFrom returns a UUID that follows from id.
func uuidFrom(id string) string {
	sum := sha256.Sum256([]byte(id))
	h := hex.EncodeToString(sum[:16])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// sesEvent is an event record:
// https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-examples.html
func sesEvent(e Event) object {
	at, feedback := isoTime(e.At), e.ID+"-000000"
	record := object{"mail": sesEventMail(e)}
	switch e.Kind {
	case EventProcessed:
		record["eventType"], record["send"] = "Send", object{}
	case EventDeferred:
		record["eventType"] = "DeliveryDelay"
		record["deliveryDelay"] = object{
			"timestamp": at, "delayType": "TransientCommunicationFailure", "expirationTime": isoTime(e.At.Add(14 * time.Hour)),
			"delayedRecipients": []object{{"emailAddress": e.Recipient, "status": "4.7.1", "diagnosticCode": "smtp; 451 4.7.1 try again later"}},
		}
	case EventDelivered:
		record["eventType"] = "Delivery"
		record["delivery"] = object{
			"timestamp": at, "processingTimeMillis": 42, "recipients": []string{e.Recipient},
			"smtpResponse": "250 2.0.0 OK", "reportingMTA": "mta.fake.test",
		}
	case EventBounced:
		record["eventType"] = "Bounce"
		record["bounce"] = object{
			"timestamp": at, "feedbackId": feedback, "bounceType": "Permanent", "bounceSubType": "General", "reportingMTA": "dsn; mta.fake.test",
			"bouncedRecipients": []object{{
				"emailAddress": e.Recipient, "action": "failed", "status": "5.1.1", "diagnosticCode": "smtp; 550 5.1.1 no such user",
			}},
		}
	case EventComplained:
		record["eventType"] = "Complaint"
		record["complaint"] = object{
			"timestamp": at, "feedbackId": feedback, "complaintFeedbackType": "abuse",
			"complainedRecipients": []object{{"emailAddress": e.Recipient}},
		}
	}
	return record
}

// sesEventMail is the same in all records of a message. Tags have several values.
func sesEventMail(e Event) object {
	return object{
		"timestamp":        isoTime(e.Message.At),
		"source":           e.Message.From,
		"sendingAccountId": "123456789012",
		"messageId":        e.Message.ID,
		"destination":      e.Message.To,
		"headersTruncated": false,
		"headers":          []object{},
		"commonHeaders":    object{"from": []string{e.Message.From}, "to": e.Message.To, "subject": e.Message.Subject},
		"tags":             object{referenceName: []string{e.Message.Reference}},
	}
}
