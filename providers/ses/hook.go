package ses

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/internal/hook"
)

// HookConfig is what verifies SNS and finds its certificates.
type HookConfig struct {
	// TopicARNs are the topics that events are published to. There are two
	// while one replaces another; they are in the same region.
	TopicARNs []string

	// EndpointURL is where certificates and confirmations are, without a path:
	// SNS in the topics' region when empty. Another one is for tests, and for
	// services that stand in for SNS.
	EndpointURL string

	// HTTPClient is from [providers.NewHTTPClient] when nil. No redirect is
	// followed whatever it says.
	HTTPClient *http.Client
}

// Hook verifies and reads SES' events, which come by way of an SNS topic with a
// subscription for HTTPS. It confirms that subscription by itself. Its methods
// may be called concurrently.
//
// Raw message delivery has to be off: without its envelope a message is not
// signed.
type Hook struct {
	topics       map[string]bool
	endpoint     endpoint
	certificates *certificates
}

var _ providers.Hook = (*Hook)(nil)

// NewHook returns a hook for the topics. It asks nobody over the network.
func NewHook(c HookConfig) (*Hook, error) {
	arns, err := hook.Secrets("ARN of the SNS topic", c.TopicARNs)
	if err != nil {
		return nil, fmt.Errorf("ses: %w", err)
	}
	h := &Hook{topics: map[string]bool{}}
	origin := ""
	for _, arn := range arns {
		at, err := originOf(arn)
		if err != nil {
			return nil, err
		}
		if origin != "" && at != origin {
			return nil, errors.New("ses: the SNS topics are in different regions")
		}
		origin, h.topics[arn] = at, true
	}
	base, err := providers.BaseURL(c.EndpointURL, origin)
	if err != nil {
		return nil, fmt.Errorf("ses: %w", err)
	}
	if c.HTTPClient == nil {
		c.HTTPClient = providers.NewHTTPClient()
	}
	h.endpoint = endpoint{base.Scheme, base.Host, c.HTTPClient}
	h.certificates = newCertificates(h.endpoint)
	return h, nil
}

// topicARN is the name of a topic:
// https://docs.aws.amazon.com/sns/latest/dg/sns-create-topic.html
var topicARN = regexp.MustCompile(`^arn:(aws|aws-cn|aws-us-gov):sns:([a-z0-9-]+):[0-9]{12}:[A-Za-z0-9_-]{1,256}$`)

// originOf returns where SNS is in a topic's region:
// https://docs.aws.amazon.com/general/latest/gr/sns.html
func originOf(arn string) (string, error) {
	parts := topicARN.FindStringSubmatch(arn)
	if parts == nil {
		return "", errors.New("ses: not the ARN of an SNS topic; it looks like arn:aws:sns:eu-west-1:123456789012:name")
	}
	domain := ".amazonaws.com"
	if parts[1] == "aws-cn" {
		domain = ".amazonaws.com.cn"
	}
	return "https://sns." + parts[2] + domain, nil
}

// ParseEvents implements [providers.Hook].
func (h *Hook) ParseEvents(ctx context.Context, _ http.Header, body []byte, now time.Time) ([]providers.Event, error) {
	m, err := h.verify(ctx, body, now)
	if err != nil {
		return nil, err
	}
	switch m.Type {
	case typeNotification:
		return parseEvents(m.Message)
	case typeSubscribe:
		return nil, h.confirm(ctx, m)
	}
	return nil, nil // somebody has ended the subscription: SNS only says so
}

// confirm subscribes, by reading an address of SNS:
// https://docs.aws.amazon.com/sns/latest/dg/SendMessageToHttp.confirm.html
func (h *Hook) confirm(ctx context.Context, m *message) error {
	u, ok := h.endpoint.parse(m.SubscribeURL)
	if !ok || !confirms(u.Query(), m.TopicArn) {
		return hook.Unreadable("its SubscribeURL is not SNS'")
	}
	status, _, err := h.endpoint.get(ctx, u)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("SNS answered %d to the confirmation of the subscription", status)
	}
	return nil
}

// confirms reports whether parameters ask for nothing but a subscription to the
// topic.
func confirms(q url.Values, topic string) bool {
	return q.Get("Action") == "ConfirmSubscription" && q.Get("TopicArn") == topic
}
