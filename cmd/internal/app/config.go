package app

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/redact"
	"github.com/outboxd/outboxd/outbox"
)

// Config is what both programs read from the environment.
type Config struct {
	DatabaseURL string `env:"DATABASE_URL"`
	// Installation is its name; a process of another finds itself in a restored
	// database.
	Installation string `env:"OUTBOXD_INSTALLATION"`

	// Providers are names in order of preference.
	Providers []string `env:"OUTBOXD_PROVIDERS"`
	LogFormat string   `env:"OUTBOXD_LOG_FORMAT" envDefault:"text"`

	Addr    string `env:"OUTBOXD_ADDR" envDefault:":8080"`
	OpsAddr string `env:"OUTBOXD_OPS_ADDR"`
	// PublicURL is where recipients reach the API, for links to unsubscribe.
	PublicURL string `env:"OUTBOXD_PUBLIC_URL"`

	// MaxBody bounds a request body, MaxConnections those of the API at a time.
	MaxBody        Size  `env:"OUTBOXD_MAX_BODY" envDefault:"10MB"`
	MaxConnections int   `env:"OUTBOXD_MAX_CONNECTIONS" envDefault:"10000"`
	KeyRate        Limit `env:"OUTBOXD_RATE_LIMIT" envDefault:"1000/s"`
	OrgRate        Limit `env:"OUTBOXD_ORG_RATE_LIMIT" envDefault:"off"`
	// MaxQueued is how many emails of an org may wait, if it has no number of its own.
	MaxQueued Quota `env:"OUTBOXD_MAX_QUEUED" envDefault:"off"`

	AdminUser     string `env:"OUTBOXD_ADMIN_USER" envDefault:"admin"`
	AdminPassword string `env:"OUTBOXD_ADMIN_PASSWORD"`
	AdminReadOnly bool   `env:"OUTBOXD_ADMIN_READ_ONLY"`

	IdempotencyTTL Duration `env:"OUTBOXD_IDEMPOTENCY_TTL" envDefault:"7d"`
	SendTimeout    Duration `env:"OUTBOXD_SEND_TIMEOUT" envDefault:"30s"`
	GiveUpAfter    Duration `env:"OUTBOXD_GIVE_UP_AFTER" envDefault:"24h"`
	OnUnknown      string   `env:"OUTBOXD_ON_UNKNOWN" envDefault:"retry"`
	UnknownWait    Duration `env:"OUTBOXD_UNKNOWN_WAIT" envDefault:"2m"`
	Concurrency    int      `env:"OUTBOXD_CONCURRENCY" envDefault:"50"`
	// SuppressOn are the reports of providers that suppress the recipient.
	SuppressOn []string `env:"OUTBOXD_SUPPRESS_ON" envDefault:"hard_bounce,complaint,unsubscribe"`

	// EncryptionKeys seal content: kid:base64, the first one seals, all of them open.
	EncryptionKeys string `env:"OUTBOXD_ENCRYPTION_KEYS"`

	// ContentRetention is how long content is kept after an email's end, where the
	// org has no retention of its own.
	ContentRetention Retention `env:"OUTBOXD_CONTENT_RETENTION" envDefault:"30d"`

	// WebhookAllowPrivate lets webhooks lead into our own network, and over http.
	WebhookAllowPrivate bool `env:"OUTBOXD_WEBHOOK_ALLOW_PRIVATE"`

	Traces   TracesConfig
	Rates    RatesConfig    `envPrefix:"OUTBOXD_"`
	SendGrid SendGridConfig `envPrefix:"SENDGRID_"`
	Resend   ResendConfig   `envPrefix:"RESEND_"`
	Postmark PostmarkConfig `envPrefix:"POSTMARK_"`
	Mailgun  MailgunConfig  `envPrefix:"MAILGUN_"`
	SES      SESConfig
	SMTP     SMTPConfig
}

// Rate is a number of emails per second, minute or hour: 100/s, 600/m, 5000/h.
type Rate float64

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *Rate) UnmarshalText(text []byte) error {
	n, per, err := parseRate(string(text))
	if err != nil {
		return err
	}
	*r = Rate(float64(n) / per.Seconds())
	return nil
}

func parseRate(text string) (count int, per time.Duration, err error) {
	number, unit, _ := strings.Cut(text, "/")
	per = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[unit]
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || n == 0 || per == 0 {
		return 0, 0, fmt.Errorf("%q is not a rate such as 100/s, 600/m or 5000/h", text)
	}
	return int(n), per, nil
}

// RatesConfig are the rates that all workers together keep to at a provider.
type RatesConfig struct {
	Mailgun  Rate `env:"MAILGUN_RATE"`
	Postmark Rate `env:"POSTMARK_RATE"`
	Resend   Rate `env:"RESEND_RATE"`
	SendGrid Rate `env:"SENDGRID_RATE"`
	SES      Rate `env:"SES_RATE"`
	SMTP     Rate `env:"SMTP_RATE"`
}

// SendGridConfig configures the provider sendgrid.
type SendGridConfig struct {
	APIKey  string `env:"API_KEY"`
	BaseURL string `env:"BASE_URL"`
	Sandbox bool   `env:"SANDBOX"`

	WebhookPublicKeys []string `env:"WEBHOOK_PUBLIC_KEY"`
}

// ResendConfig configures the provider resend.
type ResendConfig struct {
	APIKey  string `env:"API_KEY"`
	BaseURL string `env:"BASE_URL"`

	WebhookSecrets []string `env:"WEBHOOK_SECRET"`
}

// PostmarkConfig configures the provider postmark.
type PostmarkConfig struct {
	ServerToken   string `env:"SERVER_TOKEN"`
	BaseURL       string `env:"BASE_URL"`
	MessageStream string `env:"MESSAGE_STREAM"`
	Sandbox       bool   `env:"SANDBOX"`

	WebhookUsers     []string `env:"WEBHOOK_USER"`
	WebhookPasswords []string `env:"WEBHOOK_PASSWORD"`
}

// MailgunConfig configures the provider mailgun.
type MailgunConfig struct {
	APIKey  string `env:"API_KEY"`
	Domain  string `env:"DOMAIN"`
	BaseURL string `env:"BASE_URL"`
	Sandbox bool   `env:"SANDBOX"`

	WebhookSigningKeys []string `env:"WEBHOOK_SIGNING_KEY"`
}

// SESConfig configures the provider ses. Its credentials are those that AWS
// programs find by themselves, and the region may come from there too.
type SESConfig struct {
	Region           string `env:"AWS_REGION"`
	EndpointURL      string `env:"SES_ENDPOINT_URL"`
	ConfigurationSet string `env:"SES_CONFIGURATION_SET"`

	TopicARNs        []string `env:"SES_SNS_TOPIC_ARN"`
	TopicEndpointURL string   `env:"SES_SNS_ENDPOINT_URL"`
}

// SMTPConfig configures the provider smtp.
type SMTPConfig struct {
	URL          string   `env:"SMTP_URL"`
	FinalTimeout Duration `env:"OUTBOXD_SMTP_FINAL_TIMEOUT" envDefault:"10m"`
}

// Duration is a Go duration that also knows days: 7d, 1d12h.
type Duration time.Duration

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	wrong := fmt.Errorf("%q is not a duration such as 30s, 24h or 7d", text)
	days, rest, hasDays := strings.Cut(string(text), "d")
	if !hasDays {
		days, rest = "0", days
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return wrong
	}
	var parsed time.Duration
	if rest != "" || !hasDays {
		if parsed, err = time.ParseDuration(rest); err != nil {
			return wrong
		}
	}
	*d = Duration(time.Duration(n)*24*time.Hour + parsed)
	return nil
}

// D returns the duration as Go's own type.
func (d Duration) D() time.Duration { return time.Duration(d) }

// LoadConfig reads and checks an environment, in the form of [os.Environ]. Its
// error lists everything that is wrong, one line each, and quotes no secret.
func LoadConfig(environ []string) (Config, error) {
	var cfg Config
	err := env.ParseWithOptions(&cfg, env.Options{Environment: env.ToMap(environ)})
	if errs := parseErrors(err); errs != nil {
		return cfg, errors.Join(errs...)
	}
	return cfg, errors.Join(cfg.check()...)
}

// parseErrors names the variables, where the library names the Go fields.
func parseErrors(err error) []error {
	if err == nil {
		return nil
	}
	all, ok := errors.AsType[env.AggregateError](err)
	if !ok {
		return []error{err}
	}
	errs := slices.Clone(all.Errors)
	for i := range errs {
		if parse, ok := errors.AsType[env.ParseError](errs[i]); ok {
			errs[i] = fmt.Errorf("%s: %w", variable(reflect.TypeFor[Config](), parse.Name), parse.Err)
		}
	}
	return errs
}

// variable returns the environment variable of a field.
func variable(config reflect.Type, field string) string {
	for f := range config.Fields() {
		if f.Name == field {
			return f.Tag.Get("env")
		}
		if f.Type.Kind() == reflect.Struct {
			if name := variable(f.Type, field); name != "" {
				return f.Tag.Get("envPrefix") + name
			}
		}
	}
	return ""
}

func (c *Config) check() []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.DatabaseURL == "" {
		fail("DATABASE_URL is not set; it looks like postgres://user:password@host:5432/database")
	} else if _, err := pgxpool.ParseConfig(c.DatabaseURL); err != nil {
		fail("DATABASE_URL: %s", redact.Error(err))
	}
	if len(c.Providers) == 0 {
		fail("OUTBOXD_PROVIDERS is not set; it names providers in order of preference, of %s", strings.Join(knownProviders(), ", "))
	}
	for i, name := range c.Providers {
		if _, known := factories[name]; !known {
			fail("OUTBOXD_PROVIDERS: there is no provider %q; known are %s", name, strings.Join(knownProviders(), ", "))
		}
		if slices.Contains(c.Providers[:i], name) {
			fail("OUTBOXD_PROVIDERS: %q is named twice", name)
		}
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		fail("OUTBOXD_LOG_FORMAT is %q; use text or json", c.LogFormat)
	}
	if c.OnUnknown != "retry" && c.OnUnknown != "hold" && c.OnUnknown != "drop" {
		fail("OUTBOXD_ON_UNKNOWN is %q; use retry, hold or drop", c.OnUnknown)
	}
	if c.Concurrency < 1 || c.Concurrency > 10_000 {
		fail("OUTBOXD_CONCURRENCY is %d; use 1 to 10000", c.Concurrency)
	}
	if c.IdempotencyTTL.D() < 24*time.Hour {
		fail("OUTBOXD_IDEMPOTENCY_TTL is %v; use at least 24h, clients retry that long", c.IdempotencyTTL.D())
	}
	if err := checkPublicURL(c.PublicURL); err != nil {
		fail("OUTBOXD_PUBLIC_URL: %w", err)
	}
	if _, err := c.suppressOn(); err != nil {
		fail("OUTBOXD_SUPPRESS_ON: %w", err)
	}
	errs = append(errs, c.checkLimits()...)
	errs = append(errs, c.Traces.check()...)
	if _, err := c.keys(); err != nil {
		fail("OUTBOXD_ENCRYPTION_KEYS: %w", err)
	}
	for name, d := range map[string]Duration{
		"OUTBOXD_SEND_TIMEOUT": c.SendTimeout, "OUTBOXD_GIVE_UP_AFTER": c.GiveUpAfter,
		"OUTBOXD_SMTP_FINAL_TIMEOUT": c.SMTP.FinalTimeout, "OUTBOXD_UNKNOWN_WAIT": c.UnknownWait,
	} {
		if d <= 0 {
			fail("%s must be positive", name)
		}
	}
	return errs
}

// checkPublicURL wants what mail programs open: RFC 8058 (3.1) demands HTTPS.
// Plain HTTP is for this machine only.
func checkPublicURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("use an address such as https://mail.example.com")
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if u.Scheme != "https" && (u.Scheme != "http" || !local) {
		return errors.New("links in emails must be https://; http:// is for this machine only")
	}
	return nil
}

// suppressOn is never nil, which would stand for the default.
func (c *Config) suppressOn() ([]outbox.SuppressionReason, error) {
	reasons := []outbox.SuppressionReason{}
	if slices.Equal(c.SuppressOn, []string{"off"}) {
		return reasons, nil
	}
	for _, name := range c.SuppressOn {
		reason := outbox.SuppressionReason(name)
		if !slices.Contains(outbox.DefaultSuppressOn, reason) {
			return nil, fmt.Errorf("%q is not one of hard_bounce, complaint and unsubscribe; off is none of them", name)
		}
		reasons = append(reasons, reason)
	}
	return reasons, nil
}

// keys is nil without keys.
func (c *Config) keys() (*outbox.KeyRing, error) { return outbox.ParseKeyRing(c.EncryptionKeys) }

// NewLogger writes to standard error in the configured format.
func (c *Config) NewLogger() *slog.Logger {
	return c.newLogger(os.Stderr)
}

// newLogger writes nothing that a sender wrote, whoever logs: River, Go's HTTP
// server and our own code.
func (c *Config) newLogger(w io.Writer) *slog.Logger {
	if c.LogFormat == "json" {
		return redact.Logger(slog.New(slog.NewJSONHandler(w, nil)))
	}
	return redact.Logger(slog.New(slog.NewTextHandler(w, nil)))
}

// WarnLogger writes warnings and errors to standard error.
func WarnLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
