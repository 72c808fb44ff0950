// Package ses hands messages over to Amazon SES, with SendEmail of its API v2
// and the whole message in MIME.
//
// SES honours no idempotency key: SendEmail has no parameter for one. The
// attempt's key travels as a tag that comes back in every event, provided that
// there is a configuration set to publish events:
// https://docs.aws.amazon.com/ses/latest/dg/event-publishing-send-email.html
//
// There is no [providers.Finder] either. GetMessageInsights asks for the
// message id, which is what a doubt lacks, and an export job filters by sender,
// recipient and subject but not by tag:
// https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_MessageInsightsFilters.html
//
// The SDK serialises, signs and reads replies. What goes over the wire is
// [providers.Call]'s: left to itself the SDK sends a message three times when
// the connection breaks or the reply is a 500, and takes an accepted message
// whose reply is cut short for a failure.
package ses

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/aws/aws-sdk-go-v2/service/sesv2/types"
	"github.com/aws/smithy-go/logging"

	"github.com/outboxd/outboxd/providers"
)

// Name is the provider's name.
const Name = "ses"

const (
	// ReferenceTag is the tag with the attempt's key.
	ReferenceTag = "outboxd_attempt"

	// credentialsTime bounds the search for credentials. Off AWS, its last
	// step asks an address of the machine's own network that does not answer.
	credentialsTime = 5 * time.Second
)

// Limits of https://docs.aws.amazon.com/ses/latest/dg/quotas.html: recipients,
// and bytes of the message with its files in base64.
const (
	maxBytes      = 40 << 20
	maxRecipients = 50
)

// Config describes an account in one region.
type Config struct {
	// Region is where the account sends from. When empty it is that of the
	// environment (AWS_REGION) or of the profile in ~/.aws/config.
	Region string

	// EndpointURL is the region's endpoint when empty.
	EndpointURL string

	// ConfigurationSet publishes events. Without one the account's default is
	// used, and if there is none, nobody learns what became of a message.
	ConfigurationSet string

	// Credentials are by default what AWS programs usually find: environment,
	// ~/.aws, web identity, container or instance role. They are looked for
	// when a message is sent.
	Credentials aws.CredentialsProvider

	// HTTPClient is from [providers.NewHTTPClient] when nil.
	HTTPClient *http.Client
}

// Provider hands messages over to one account in one region.
type Provider struct {
	api              *sesv2.Client
	credentials      aws.CredentialsProvider
	client           *http.Client
	configurationSet *string
	now              func() time.Time
}

var _ providers.Provider = (*Provider)(nil)

// New returns a provider for the account that c describes. It reads files and
// the environment, and asks nobody over the network.
func New(c Config) (*Provider, error) {
	if err := checkEndpoint(c.EndpointURL); err != nil {
		return nil, err
	}
	account, err := c.account()
	if err != nil {
		return nil, err
	}
	if account.Region == "" {
		return nil, errors.New("ses: no region; set AWS_REGION, for example to eu-west-1")
	}
	if c.HTTPClient == nil {
		c.HTTPClient = providers.NewHTTPClient()
	}
	p := &Provider{
		api: sesv2.NewFromConfig(account, func(o *sesv2.Options) {
			o.Retryer = aws.NopRetryer{}
			o.RetryMaxAttempts = 1
			if c.EndpointURL != "" {
				o.BaseEndpoint = aws.String(c.EndpointURL)
			}
		}),
		credentials: account.Credentials, client: c.HTTPClient, now: time.Now,
	}
	if c.ConfigurationSet != "" {
		p.configurationSet = aws.String(c.ConfigurationSet)
	}
	return p, nil
}

// account finds region and credentials. Files are read for what c leaves open.
func (c Config) account() (aws.Config, error) {
	if c.Region != "" && c.Credentials != nil {
		return aws.Config{
			Region: c.Region, Credentials: aws.NewCredentialsCache(c.Credentials), Logger: logging.Nop{},
		}, nil
	}
	options := []func(*config.LoadOptions) error{
		// The mode "auto" would ask the instance's metadata for its region.
		config.WithDefaultsMode(aws.DefaultsModeStandard),
		// What matters is in the errors; the SDK's lines on standard error are
		// in no log's format.
		config.WithLogger(logging.Nop{}),
	}
	if c.Region != "" {
		options = append(options, config.WithRegion(c.Region))
	}
	if c.Credentials != nil {
		options = append(options, config.WithCredentialsProvider(c.Credentials))
	}
	account, err := config.LoadDefaultConfig(context.Background(), options...)
	if err != nil {
		// The cause may quote lines of the files.
		return aws.Config{}, errors.New("ses: the AWS configuration cannot be read; check AWS_PROFILE and the files in ~/.aws")
	}
	return account, nil
}

// checkEndpoint refuses what [providers.BaseURL] refuses; empty is the region's.
func checkEndpoint(raw string) error {
	if raw == "" {
		return nil
	}
	if _, err := providers.BaseURL(raw, ""); err != nil {
		return fmt.Errorf("ses: the endpoint: %w", err)
	}
	return nil
}

// Name implements [providers.Provider].
func (p *Provider) Name() string { return Name }

// Capabilities implements [providers.Provider].
func (p *Provider) Capabilities() providers.Capabilities {
	return providers.Capabilities{MaxBytes: maxBytes, MaxRecipients: maxRecipients}
}

// Send implements [providers.Provider].
func (p *Provider) Send(ctx context.Context, s providers.Sending) (providers.Receipt, error) {
	signer, err := p.retrieve(ctx)
	if err != nil {
		return providers.Receipt{}, err
	}
	wire := &carrier{ctx: ctx, client: p.client, sending: s}
	out, err := p.api.SendEmail(ctx, p.input(s), func(o *sesv2.Options) {
		o.HTTPClient = wire
		o.Credentials = signer
	})
	switch {
	case wire.err != nil:
		return providers.Receipt{}, wire.err
	case wire.reply == nil:
		return providers.Receipt{}, unsent(ctx)
	}
	if e := judge(*wire.reply, err, p.now()); e != nil {
		secrets := wire.secrets(signer.credentials)
		e.Code = providers.Redact(e.Code, secrets...)
		e.Detail = providers.Redact(e.Detail, secrets...)
		return providers.Receipt{}, e
	}
	return providers.Receipt{ProviderMessageID: messageID(out), Status: wire.reply.Status}, nil
}

// input is the request around the message. The recipients are the envelope:
// those in the message's own fields are not sent to, and Bcc is nowhere else.
func (p *Provider) input(s providers.Sending) *sesv2.SendEmailInput {
	return &sesv2.SendEmailInput{
		ConfigurationSetName: p.configurationSet,
		Content:              &types.EmailContent{Raw: &types.RawMessage{Data: s.Payload}},
		Destination: &types.Destination{
			ToAddresses:  emails(s.Message.To),
			CcAddresses:  emails(s.Message.Cc),
			BccAddresses: emails(s.Message.Bcc),
		},
		EmailTags: tags(s.Request),
	}
}

func emails(list []providers.Address) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.Email)
	}
	return out
}

func tags(r providers.Request) []types.MessageTag {
	out := []types.MessageTag{{Name: aws.String(ReferenceTag), Value: aws.String(r.Key)}}
	for _, t := range r.Message.Tags {
		out = append(out, types.MessageTag{Name: aws.String(t.Name), Value: aws.String(t.Value)})
	}
	return out
}

// messageID returns the id in the reply to an accepted message, and nothing
// when there is none or it could not be stored.
func messageID(out *sesv2.SendEmailOutput) string {
	if out == nil {
		return ""
	}
	return providers.MessageID(aws.ToString(out.MessageId))
}
