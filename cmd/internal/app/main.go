// Package app is what the programs share: configuration, wiring, start and
// stop.
package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// Main is the body of a program: it reads the environment, runs until SIGINT
// or SIGTERM, and returns the exit code. A second signal ends it at once.
func Main(name, purpose string, run func(context.Context, Config, *slog.Logger) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	version := flags.Bool("version", false, "print the version and exit")
	flags.Usage = func() { usage(flags.Output(), name, purpose) }
	switch err := flags.Parse(os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case *version:
		fmt.Println(name, Version)
		return 0
	}
	cfg, err := LoadConfig(os.Environ())
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: the configuration is not usable:\n%v\n", name, err)
		return 2
	}
	log := cfg.NewLogger()
	if err := run(ctx, cfg, log); err != nil {
		log.ErrorContext(ctx, name+" failed", "error", err)
		return 1
	}
	return 0
}

func usage(w io.Writer, name, purpose string) {
	_, _ = fmt.Fprintf(w, `%s: %s

It is configured by environment variables:

%s
Flags:
  --version  print the version and exit
`, name, purpose, variables)
}

// variables is the help text; a test compares it with Config.
const variables = `  DATABASE_URL                 postgres://user:password@host:5432/database
  OUTBOXD_INSTALLATION         its name, such as production: a snapshot restored under another holds its mail (none)
  OUTBOXD_PROVIDERS            providers in order of preference: mailgun, postmark, resend, sendgrid, ses, smtp
  SENDGRID_API_KEY             for the provider sendgrid
  SENDGRID_BASE_URL            another SendGrid host, such as https://api.eu.sendgrid.com
  SENDGRID_SANDBOX             true: SendGrid checks mails and delivers none (false)
  SENDGRID_WEBHOOK_PUBLIC_KEY  verifies SendGrid's events; this and those below: two, by comma, while one is changed
  RESEND_API_KEY               for the provider resend
  RESEND_BASE_URL              another host that speaks Resend's API
  RESEND_WEBHOOK_SECRET        verifies Resend's events: whsec_...
  POSTMARK_SERVER_TOKEN        for the provider postmark: the token of a server, not of the account
  POSTMARK_BASE_URL            another host that speaks Postmark's API
  POSTMARK_MESSAGE_STREAM      the stream that mails go to (outbound)
  POSTMARK_SANDBOX             true: Postmark checks mails and delivers none; needs no token (false)
  POSTMARK_WEBHOOK_USER        user in the URL that Postmark posts events to
  POSTMARK_WEBHOOK_PASSWORD    its password, of 16 characters or more and no comma
  MAILGUN_API_KEY              for the provider mailgun; a sending key cannot search for mails in doubt
  MAILGUN_DOMAIN               the sending domain as Mailgun knows it, such as mg.example.com
  MAILGUN_BASE_URL             another Mailgun host, such as https://api.eu.mailgun.net
  MAILGUN_SANDBOX              true: Mailgun accepts mails and delivers none (false)
  MAILGUN_WEBHOOK_SIGNING_KEY  verifies Mailgun's events; it is not an API key
  AWS_REGION                   for the provider ses; credentials are found as AWS programs do
  SES_CONFIGURATION_SET        publishes the events of emails sent through SES
  SES_ENDPOINT_URL             another host that speaks SES's API
  SES_SNS_TOPIC_ARN            the topic that SES publishes events to
  SES_SNS_ENDPOINT_URL         another host that has SNS' certificates, for tests
  SMTP_URL                     for the provider smtp: smtp://user:password@host:587?tls=required|none|implicit
  OUTBOXD_SMTP_FINAL_TIMEOUT   how long to wait for the reply to a mail's last byte (10m)
  OUTBOXD_MAILGUN_RATE         at most so many emails by all workers: 100/s, 600/m or 5000/h (no bound)
  OUTBOXD_POSTMARK_RATE        the same for the provider postmark
  OUTBOXD_RESEND_RATE          the same for the provider resend
  OUTBOXD_SENDGRID_RATE        the same for the provider sendgrid
  OUTBOXD_SES_RATE             the same for the provider ses
  OUTBOXD_SMTP_RATE            the same for the provider smtp
  OUTBOXD_ADDR                 where the API listens (:8080)
  OUTBOXD_PUBLIC_URL           where recipients reach the API, for links to unsubscribe: https://mail.example.com
  OUTBOXD_SUPPRESS_ON          reports that suppress the recipient: hard_bounce, complaint, unsubscribe; or off (all)
  OUTBOXD_OPS_ADDR             where health checks and the console listen (127.0.0.1:9090; worker: 127.0.0.1:9091)
  OUTBOXD_MAX_BODY             largest request body, 64KB to 40MB (10MB)
  OUTBOXD_MAX_CONNECTIONS      connections to one API process at a time (10000)
  OUTBOXD_RATE_LIMIT           requests of one API key to one API process: 100/s, 600/m, 5000/h or off (1000/s)
  OUTBOXD_ORG_RATE_LIMIT       the same for all keys of one org (off)
  OUTBOXD_MAX_QUEUED           emails of one org that may wait, if outboxctl org limit sets no other number (off)
  OUTBOXD_ADMIN_USER           user of the console, River UI and pprof (admin)
  OUTBOXD_ADMIN_PASSWORD       their password; without it they are off
  OUTBOXD_ADMIN_READ_ONLY      true: the console and River UI change nothing (false)
  OUTBOXD_SEND_TIMEOUT         time-out of a call to a provider (30s)
  OUTBOXD_GIVE_UP_AFTER        age at which an email that no provider took fails (24h)
  OUTBOXD_ON_UNKNOWN           what becomes of emails in doubt: retry, hold or drop (retry)
  OUTBOXD_UNKNOWN_WAIT         how long emails in doubt wait for evidence before that (2m)
  OUTBOXD_CONCURRENCY          deliveries at a time in one worker (50)
  OUTBOXD_IDEMPOTENCY_TTL      how long idempotency keys are kept, at least 24h (7d)
  OUTBOXD_CONTENT_RETENTION    how long content is kept after an email's end, at least 1h; off: for ever (30d)
  OUTBOXD_ENCRYPTION_KEYS      seals content in the database: kid:base64 of 32 bytes,...; the first seals, all open (none)
  OUTBOXD_WEBHOOK_ALLOW_PRIVATE true: webhooks may be in private networks, and http (false)
  OUTBOXD_LOG_FORMAT           text or json (text)
  OTEL_TRACES_EXPORTER         otlp or none (otlp if one of the endpoints below is set)
  OTEL_EXPORTER_OTLP_ENDPOINT  where traces go, such as http://collector:4318; see docs/traces.md for the other OTEL_*
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT  the same with the path, such as http://collector:4318/v1/traces
  OTEL_EXPORTER_OTLP_PROTOCOL  http/protobuf or http/json (http/protobuf)
  OTEL_EXPORTER_OTLP_TRACES_PROTOCOL  the same
  OTEL_SDK_DISABLED            true: there are no traces (false)

Durations are like 30s, 10m, 24h or 7d.
`

// Version is set by the linker.
var Version = "dev"
