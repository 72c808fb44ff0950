package doctor

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/cmd/internal/app"
	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/smtp"
)

func configuration(_ context.Context, p *patient) Finding {
	if p.configErr != nil {
		return problem(oneLine(p.configErr.Error()), "Set these variables; api --help lists all.")
	}
	return ok("api and worker can read it")
}

func oneLine(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ") }

func providersUsable(_ context.Context, p *patient) Finding {
	if p.workerErr != nil {
		return problem(oneLine(p.workerErr.Error()), "Set these variables where the workers run.")
	}
	names := make([]string, len(p.worker.Providers))
	for i, provider := range p.worker.Providers {
		names[i] = provider.Name()
	}
	if len(names) == 0 {
		return problem("no provider is configured", "Set OUTBOXD_PROVIDERS.")
	}
	return ok("%s", strings.Join(names, ", "))
}

// providerEncryption looks for credentials and mail that would cross a network in
// the clear.
func providerEncryption(_ context.Context, p *patient) Finding {
	bases := map[string]string{
		"SENDGRID_BASE_URL": p.cfg.SendGrid.BaseURL, "RESEND_BASE_URL": p.cfg.Resend.BaseURL,
		"POSTMARK_BASE_URL": p.cfg.Postmark.BaseURL, "MAILGUN_BASE_URL": p.cfg.Mailgun.BaseURL,
		"SES_ENDPOINT_URL": p.cfg.SES.EndpointURL,
	}
	var open []string
	for name, base := range bases {
		if u, err := url.Parse(base); err == nil && u.Scheme == "http" && !isLocal(u.Hostname()) {
			open = append(open, name)
		}
	}
	slices.Sort(open)
	if len(open) > 0 {
		return problem(strings.Join(open, ", ")+" sends keys and mail in the clear", "Use https://.")
	}
	if relay, err := smtp.ParseURL(p.cfg.SMTP.URL); err == nil && relay.TLS == smtp.TLSNone && !isLocal(relay.Host) {
		return warning("SMTP_URL says tls=none: the password and mail go to "+relay.Host+" in the clear",
			"Use tls=required or tls=implicit, unless the network is encrypted itself.")
	}
	return ok("providers are reached with TLS, or on this machine")
}

// isLocal reports whether a host is this machine. A path is a Unix socket.
func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || ip != nil && ip.IsLoopback()
}

func timeRelations(_ context.Context, p *patient) Finding {
	t, err := p.worker.Times()
	if err != nil {
		return warning("they depend on the providers, and none can be used", "See the check providers.")
	}
	found := fmt.Sprintf("a send takes at most %v, a stop waits %v, a job may take %v, River rescues after %v",
		t.Send, t.SoftStop, t.Job, t.Rescue)
	if t.Send >= t.SoftStop || t.SoftStop >= t.Job || t.Job >= t.Rescue {
		return problem(found, "Lower OUTBOXD_SEND_TIMEOUT or OUTBOXD_SMTP_FINAL_TIMEOUT: each has to be shorter than the next.")
	}
	return ok("%s", found)
}

func idempotencyRetention(_ context.Context, p *patient) Finding {
	ttl := p.cfg.IdempotencyTTL.D()
	for _, provider := range p.worker.Providers {
		if window := provider.Capabilities().KeyWindow; window > ttl {
			return warning(fmt.Sprintf("keys are kept %v, and %s knows its own for %v", ttl, provider.Name(), window),
				"Raise OUTBOXD_IDEMPOTENCY_TTL to at least that.")
		}
	}
	if ttl < 24*time.Hour {
		return problem(fmt.Sprintf("keys are kept %v, and clients retry for a day", ttl), "Raise OUTBOXD_IDEMPOTENCY_TTL to 24h or more.")
	}
	return ok("keys are kept %v, not less than providers know theirs", ttl)
}

// searchLag is how long a mail that was just accepted may be missing from a
// provider's search. No provider publishes a figure.
const searchLag = time.Minute

func doubtTimes(_ context.Context, p *patient) Finding {
	wait, giveUp := p.cfg.UnknownWait.D(), p.cfg.GiveUpAfter.D()
	if wait >= giveUp {
		return problem(fmt.Sprintf("a doubt waits %v for evidence, and emails are given up after %v", wait, giveUp),
			"Make OUTBOXD_UNKNOWN_WAIT shorter than OUTBOXD_GIVE_UP_AFTER.")
	}
	for _, provider := range p.worker.Providers {
		if _, finds := provider.(providers.Finder); finds && wait < searchLag {
			return warning(fmt.Sprintf("a doubt waits %v, and the search of %s may show a mail later than that", wait, provider.Name()),
				"Raise OUTBOXD_UNKNOWN_WAIT to 2m, or mails in doubt may be sent twice without need.")
		}
	}
	return ok("a doubt waits %v for evidence, emails are given up after %v", wait, giveUp)
}

func publicURL(_ context.Context, p *patient) Finding {
	u, err := url.Parse(p.cfg.PublicURL)
	switch {
	case p.cfg.PublicURL == "":
		return ok("OUTBOXD_PUBLIC_URL is not set: emails with list_unsubscribe are refused")
	case err != nil || u.Scheme != "https":
		return warning("links to unsubscribe lead to "+p.cfg.PublicURL, "Set OUTBOXD_PUBLIC_URL to an https:// address that recipients reach.")
	}
	return ok("links to unsubscribe lead to %s", p.cfg.PublicURL)
}

func opsAddress(_ context.Context, p *patient) Finding {
	host, _, err := net.SplitHostPort(p.cfg.OpsAddr)
	switch {
	case p.cfg.OpsAddr == "":
		return ok("the ops listeners are on this machine only")
	case err != nil:
		return problem(fmt.Sprintf("OUTBOXD_OPS_ADDR is %q", p.cfg.OpsAddr), "Use host:port, such as 127.0.0.1:9090.")
	case isLocal(host):
		return ok("the ops listener is on %s only", host)
	case p.cfg.AdminPassword == "":
		return warning("the ops listener at "+p.cfg.OpsAddr+" is open to the network; without a password it has health checks and no more",
			"Keep OUTBOXD_OPS_ADDR on a loopback or private address.")
	}
	return warning("the console, River UI and pprof at "+p.cfg.OpsAddr+" are open to the network, behind a password that is sent in the clear",
		"Keep OUTBOXD_OPS_ADDR on a loopback or private address, or put TLS in front of it.")
}

// minPassword is how long an admin password has to be.
const minPassword = 12

// wellKnown are passwords that are tried first.
var wellKnown = []string{"admin", "password", "changeme", "change-me", "secret", "outboxd", "postgres", "letmein", "123456789012", "adminadminadmin"}

func adminPassword(_ context.Context, p *patient) Finding {
	password := p.cfg.AdminPassword
	const advice = "Set OUTBOXD_ADMIN_PASSWORD to the output of: openssl rand -base64 18"
	switch {
	case password == "":
		return ok("OUTBOXD_ADMIN_PASSWORD is not set: the console, River UI and pprof are off")
	case slices.Contains(wellKnown, strings.ToLower(password)), strings.EqualFold(password, p.cfg.AdminUser):
		return problem("OUTBOXD_ADMIN_PASSWORD is one that everybody tries first", advice)
	case len(password) < minPassword:
		return warning(fmt.Sprintf("OUTBOXD_ADMIN_PASSWORD has less than %d characters", minPassword), advice)
	}
	return ok("OUTBOXD_ADMIN_PASSWORD is set, and long enough")
}

func privateWebhooks(_ context.Context, p *patient) Finding {
	if p.cfg.WebhookAllowPrivate {
		return warning("OUTBOXD_WEBHOOK_ALLOW_PRIVATE is true: whoever has an admin key can have requests made inside this network",
			"Unset it, unless this is for development.")
	}
	return ok("webhooks lead to the public internet only")
}

func rateLimits(_ context.Context, p *patient) Finding {
	limit := func(l app.Limit) string {
		if l.Count == 0 {
			return "off"
		}
		return api.Rate(l).String()
	}
	key, org := limit(p.cfg.KeyRate), limit(p.cfg.OrgRate)
	if key == "off" && org == "off" {
		return warning("no client is limited: one can take all that the api processes have",
			"Set OUTBOXD_RATE_LIMIT or OUTBOXD_ORG_RATE_LIMIT.")
	}
	return ok("requests to one API process: %s of an API key, %s of an org", key, org)
}
